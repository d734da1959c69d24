"""Runs the demonstration: stage, cast, producers, viewers, view and verdict."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from broker.client import AsyncClient, Event, Program
from broker.clock import Clock, SystemClock
from broker.concurrency.tasks import cancel_and_wait
from broker.demo import analytics, cast, view
from broker.demo.audience import Crowd
from broker.demo.figures import Meter, ShowVerdict, judge, judge_answers, percentile
from broker.demo.matomo import StandIn, open_stand_in
from broker.demo.portraits import Portraits, find_photographs, open_portraits
from broker.demo.producers import Show, produce_over_http, produce_over_websocket
from broker.demo.stage import Stage, choose_ports, open_stage
from broker.demo.voters import Results, Voters

_SETTLE_S = 15.0  # until the last event has reached the last viewer, and the channel told the last answer
_FRAME_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play; `seconds` of None goes on until Ctrl-C, and ports of None are chosen."""

    data_dir: Path
    viewers: int
    voters: int
    seconds: float | None
    seed: int
    speed: float
    http_port: int | None
    ws_port: int | None


async def play(plan: Plan, console: Console, prepare: Callable[[], Awaitable[None]]) -> ShowVerdict:
    """Play the demonstration and judge it.

    Args:
        prepare: makes the account and its users in the database of `plan.data_dir`.

    Raises:
        StageError: the product does not start, or died.
        ClientError: the producers cannot publish.
    """
    clock = SystemClock()
    plan.data_dir.mkdir(parents=True, exist_ok=True)
    http_port, ws_port = choose_ports(plan.http_port, plan.ws_port)
    async with _stop_signal() as stopped:
        console.print("making the account and its users")
        await prepare()
        async with (
            open_stand_in() as matomo,
            open_portraits(find_photographs()) as portraits,
            open_stage(
                plan.data_dir,
                http_port,
                ws_port,
                console.print,
                analytics.settings_for(matomo) | portraits.settings,
            ) as stage,
        ):
            for text in view.invitation(stage):
                console.print(text, soft_wrap=True, highlight=False)
            return await _perform(plan, stage, matomo, portraits, clock, console, stopped)


async def _perform(
    plan: Plan,
    stage: Stage,
    matomo: StandIn,
    portraits: Portraits,
    clock: Clock,
    console: Console,
    stopped: asyncio.Event,
) -> ShowVerdict:
    # The set-up: members, configuration, and a report of the stand-in Matomo.
    admin, producer = cast.LOGINS[:2]
    async with AsyncClient(stage.url, username=admin.username, password=admin.password) as client:
        await cast.ensure_members(client)
        await cast.ensure_look(client)
        console.print(await analytics.measure(client, matomo), soft_wrap=True, highlight=False)
    async with (
        AsyncClient(stage.url, username=producer.username, password=producer.password) as producing,
        AsyncClient(stage.url) as watching,
    ):
        # The program, and everybody who takes part in it.
        program = await cast.ensure_program(producing, clock)
        since = (await producing.programs.get_last_update(program.id)).cursor
        audience = Crowd(watching, program.id, plan.viewers, since, clock)
        voters = Voters(watching, program, plan.voters, plan.seed, clock)
        results = Results(producing, program)
        board = view.Board(results=results.told, seq=since.seq)
        acknowledged: dict[int, str] = {}

        def publish(event: Event) -> None:
            board.apply(event)
            voters.hear(event)
            acknowledged[event.seq] = event.id

        # Viewers, voters, results and portraits begin to follow before anything is published.
        show, stop = Show(program.id, plan.seed, plan.speed, portraits), asyncio.Event()
        watch = asyncio.create_task(audience.watch(), name="demo audience")
        voting = asyncio.create_task(voters.vote(), name="demo voters")
        following = asyncio.create_task(results.follow(), name="demo results")
        portrayed = asyncio.create_task(portraits.show(watching), name="demo portraits")
        producers: list[asyncio.Task[None]] = []
        try:
            publish(await producing.publish(program.id, "Audience#wait", {"viewers": plan.viewers}))
            console.print(f"{plan.viewers} viewers take their seats")
            await _unless(stopped, stage.died, audience.wait_until_inside())
            audience.meter = Meter()
            # The show.
            producers += [
                asyncio.create_task(produce_over_http(producing, show, clock, publish, stop)),
                asyncio.create_task(produce_over_websocket(producing, show, clock, publish, stop)),
            ]
            playing = [stage.died, watch, voting, following, *producers]
            await _show(plan, stage, console, board, audience, playing, stopped)
            # The verdict on deliveries: what was acknowledged, stored and seen.
            stop.set()
            await asyncio.gather(*producers)
            voters.end()
            await voting
            log = {event.seq: event.id async for event in producing.events.iterate(program.id)}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await audience.wait_until_seen(max(log, default=since.seq))
            verdict = judge(acknowledged, log, since.seq, audience.viewers)
            _summarise(console, verdict, audience)
            # The verdict on votes.
            faults = await _judge_answers(producing, program, voters, results)
            _summarise_answers(console, voters, faults)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    console.print(await portrayed, soft_wrap=True, highlight=False)
            return replace(verdict, faults=(*verdict.faults, *faults))
        finally:
            await cancel_and_wait(watch, voting, following, portrayed, *producers)


async def _judge_answers(
    client: AsyncClient, program: Program, voters: Voters, results: Results
) -> tuple[str, ...]:
    counted = voters.votes.counted
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S):
            await results.wait_for({context: counts.total() for context, counts in counted.items()})
    report = await client.responses.get_report(program.id, project_id=program.project_id)
    kept = {
        entry.context_id: {option.measure_value: option.total for option in entry.options} for entry in report
    }
    return judge_answers(voters.votes, kept, results.told)


async def _show(
    plan: Plan,
    stage: Stage,
    console: Console,
    board: view.Board,
    audience: Crowd,
    tasks: list["asyncio.Task[None]"],
    stopped: asyncio.Event,
) -> None:
    """Show what happens until the time is over, a signal comes, or a task fails, which is raised."""
    drawing = asyncio.create_task(_draw(stage, console, board, audience), name="demo view")
    ending = asyncio.create_task(_end(stopped), name="demo end")
    try:
        done, _ = await asyncio.wait(
            [drawing, ending, *tasks], timeout=plan.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(drawing, ending)


async def _unless(
    stopped: asyncio.Event, died: "asyncio.Task[None]", work: Coroutine[Any, Any, None]
) -> None:
    """Wait for `work`, but not longer than until a signal or the product's end, which is raised."""
    tasks = [asyncio.create_task(work), asyncio.create_task(_end(stopped))]
    try:
        done, _ = await asyncio.wait([*tasks, died], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(*tasks)


async def _end(stopped: asyncio.Event) -> None:
    await stopped.wait()


async def _draw(stage: Stage, console: Console, board: view.Board, audience: Crowd) -> None:
    frames = max(1, round(1 / _FRAME_S))
    if not console.is_terminal:
        while True:
            await asyncio.sleep(1)
            audience.meter.tick()
            console.print(view.line(board, audience), soft_wrap=True, highlight=False)
    with Live(view.render(stage, board, audience), console=console, auto_refresh=False, screen=True) as live:
        while True:
            for _ in range(frames):
                await asyncio.sleep(_FRAME_S)
                live.update(view.render(stage, board, audience), refresh=True)
            audience.meter.tick()


def _summarise(console: Console, verdict: ShowVerdict, audience: Crowd) -> None:
    p50, p99 = (percentile(audience.meter.latencies_ms, share) for share in (0.5, 0.99))
    console.print(
        f"{verdict.events} events, {verdict.viewers} viewers, {audience.meter.total:,} deliveries,"
        f" {audience.reconnects} reconnects; publish→viewer p50 {p50:.0f} ms, p99 {p99:.0f} ms",
        soft_wrap=True,
        highlight=False,
    )
    if not verdict.faults:
        console.print("every viewer saw every event, once and in order", highlight=False)
    _blame(console, verdict.faults)


def _summarise_answers(console: Console, voters: Voters, faults: tuple[str, ...]) -> None:
    votes = voters.votes
    console.print(
        f"{voters.size} voters, {votes.sent:,} answers sent,"
        f" {votes.acknowledged:,} acknowledged ({votes.repeats:,} of them repeats),"
        f" {votes.late:,} too late",
        soft_wrap=True,
        highlight=False,
    )
    if not faults:
        console.print("the report counts every acknowledged answer, each visitor once", highlight=False)
    _blame(console, faults)


def _blame(console: Console, faults: tuple[str, ...]) -> None:
    for fault in faults[:10]:
        console.print(fault, style="red", highlight=False)


@asynccontextmanager
async def _stop_signal() -> AsyncIterator[asyncio.Event]:
    """Set by Ctrl-C and by SIGTERM, which end the demonstration in order."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
