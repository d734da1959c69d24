"""A long show with many producers, viewers and faults, judged at its end: `make soak`.

Producers and viewers are processes of their own (`producers`, `viewers`); this one hits the instance's
processes in a random order that the seed fixes, waits after each fault until everything is there and at work
again, and in the end hands all logs and the database to the judge.
"""

import argparse
import asyncio
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import orjson

from broker.settings import child_environment
from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity import producers, viewers
from tests.adversity.edits_and_votes import edits_and_votes
from tests.adversity.faults import CUT, KINDS, STALL, TITLES, choose_victims, draw_plan, find, hit
from tests.adversity.figures import Fault, Outage, Pause, outages, publish_pauses, table
from tests.adversity.judge import Publish, Push, Stored, judge, short_id
from tests.adversity.proxy import Proxy, tcp
from tests.adversity.votes import UNLIMITED
from tests.deployments.instance import Instance

_ROOT = Path(__file__).parents[2]
_WHOLE_S = 120.0  # until the product must have recovered
_LATE_S = 13.0  # a publish that its producer gave up may still be stored so much later
_VIEWERS_EACH = 100  # of one process
_POLL_S = 0.1
_STALL_S = 3.0

STORED = """
SELECT e.seq, e.id::text, (e.metadata->>'by')::int, (e.metadata->>'n')::int
FROM events e JOIN program_heads h USING (history) JOIN programs p ON p.uid = h.program_uid
WHERE p.id = $1 ORDER BY e.seq
"""
PUSHES = """
SELECT pushes.seq, pushes.id::text FROM (
    SELECT e.history, e.seq, e.id FROM events e
    UNION ALL SELECT c.history, c.seq, c.event_id FROM event_changes c
) AS pushes JOIN program_heads h USING (history) JOIN programs p ON p.uid = h.program_uid
WHERE p.id = $1 ORDER BY pushes.seq
"""
HEADS = (
    "SELECT p.id, h.seq FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.id = any($1)"
)


@dataclass(frozen=True)
class Size:
    """How large a show is.

    Attributes:
        events_per_s: of all producers together.
        largest_batch, gives_up: see `producers.Habits`.
    """

    producers: int = 20
    viewers: int = 200
    programs: int = 10
    events_per_s: float = 3_000.0
    largest_batch: int = 60
    gives_up: float = 0.05


@dataclass
class Verdict:
    """What came out of a show."""

    events: int
    pushes: int
    deliveries: int
    reconnects: int
    failures: int
    given_up: int
    findings: list[str]
    outages: list[Outage]


@dataclass
class Show:
    """A show on a running instance. `open` it, let things happen in it, then `close` it and read its verdict.

    Producers and viewers come through proxies, so that their connections can be cut.

    Attributes:
        passing: statuses over HTTP that producers take for passing trouble.
        seed: of where connections are cut.
        cut_after: see `Proxy`.
        side_program: one of its own, which no producer publishes to; the judge does not look at it.
    """

    instance: Instance
    size: Size
    directory: Path
    passing: Sequence[int] = producers.PASSING
    seed: int = 0
    cut_after: tuple[int, int] | None = None
    tally: dict[str, Any] = field(default_factory=dict)
    deliveries: int = 0
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        ports = (self.instance.http_port, self.instance.ws_port)
        self.proxies = [Proxy(tcp(port), chance, cut_after=self.cut_after) for port in ports]
        self.side_program = ""
        self._unready = "of a fault no process has come back"
        self._epochs: dict[str, str] = {}
        self._producers: Process | None = None
        self._viewers: list[Process] = []
        self._readers: list[asyncio.Task[None]] = []

    @property
    def acknowledged(self) -> int:
        """Events so far."""
        return int(self.tally.get("acknowledged", 0))

    @property
    def programs(self) -> list[str]:
        """The programs that are published to."""
        return list(self._epochs)

    @property
    def dsn(self) -> str:
        """The instance's own database."""
        return self.instance.database_url or EmbeddedPostgres(self.instance.data_dir / "postgres").dsn

    async def open(self) -> None:
        """Make the programs, let the viewers in, and begin to publish, once every part is there."""
        async with asyncio.timeout(_WHOLE_S):
            await (
                self.until_ready()
            )  # what died before may still be starting, and its programs be none of ours
        for proxy in self.proxies:
            await proxy.open()
        token = await asyncio.to_thread(self.instance.token)
        name = f"show-{secrets.token_hex(4)}"
        self.side_program = f"{name}-side"
        async with httpx.AsyncClient(base_url=f"{self.instance.url}/api/v1", headers=token) as client:
            names = [f"{name}-{number}" for number in range(self.size.programs)]
            for program_id in (*names, self.side_program):
                reply = await client.post("/programs", json={"id": program_id, "name": program_id})
                reply.raise_for_status()
            for program_id in names:
                reply = await client.get(f"/programs/{program_id}/lastUpdate")
                self._epochs[program_id] = reply.raise_for_status().json()["epoch"]
        for first in range(0, self.size.viewers, _VIEWERS_EACH):
            count = min(_VIEWERS_EACH, self.size.viewers - first)
            spec = {
                "port": self.proxies[1].port,
                "epochs": self._epochs,
                "viewers": count,
                "first": first,
                "directory": str(self.directory),
            }
            self._viewers.append(await self._spawn("viewers", spec))
        self._producers = await self._spawn(
            "producers",
            {
                "url": f"http://localhost:{self.proxies[0].port}",
                "ws_port": self.proxies[1].port,
                "token": token,
                "programs": self.programs,
                "passing": self.passing,
                "producers": self.size.producers,
                "events_per_s": self.size.events_per_s,
                "largest_batch": self.size.largest_batch,
                "gives_up": self.size.gives_up,
                "directory": str(self.directory),
            },
        )
        self._readers = [asyncio.create_task(self._hear_producers())]
        self._readers += [asyncio.create_task(_swallow(process)) for process in self._viewers]
        await self.until_at_work(time.monotonic())

    async def until_at_work(self, since_s: float) -> None:
        """Until every program has taken something after `since_s`. Raises TimeoutError."""
        async with asyncio.timeout(_WHOLE_S):
            await until(lambda: all(self._last_s(name) > since_s for name in self._epochs))

    async def suffer(self, kinds: Sequence[str], chance: random.Random) -> Fault:
        """Let these kinds of fault happen at once and wait until all is well. Raises TimeoutError."""
        killed = [kind for kind in kinds if kind in TITLES]
        victims = [process for kind in killed for process in choose_victims(self.instance, kind, chance)]
        began_s = time.monotonic()
        hit(victims, signal.SIGKILL)
        if CUT in kinds:
            for proxy in self.proxies:
                proxy.cut()
        if STALL in kinds:
            async with self.proxies[0].stalled(), self.proxies[1].stalled():
                await asyncio.sleep(_STALL_S)
        try:
            async with asyncio.timeout(_WHOLE_S):
                for kind in killed:
                    await until(partial(find, self.instance, TITLES[kind]))
                await self.until_ready()
        except TimeoutError:
            raise TimeoutError(f"not ready again after {', '.join(kinds)}: {self._unready}") from None
        await self.until_at_work(time.monotonic())
        return self.note_fault(" and ".join(sorted(kinds)), began_s)

    def note_fault(self, name: str, began_s: float) -> Fault:
        """Write down a fault that is over now."""
        fault = Fault(name, began_s, time.monotonic())
        self.faults.append(fault)
        return fault

    async def until_ready(self) -> None:
        """Until the instance says that every part answers."""
        async with httpx.AsyncClient(timeout=10) as client:
            while True:
                try:
                    answer = await client.get(f"{self.instance.ops_url}/readyz")
                    if answer.status_code == 200:
                        return
                    self._unready = answer.text
                except httpx.TransportError as error:
                    self._unready = repr(error)
                await asyncio.sleep(_POLL_S)

    async def close(self) -> Verdict:
        """End the producers, let the viewers catch up, judge."""
        for proxy in self.proxies:
            proxy.spare()  # what was missed comes in one answer, which a wire cut too often never carries
        assert self._producers is not None
        await _tell(self._producers, b"\n")
        await self._producers.wait()
        await self._readers[0]
        late_s = self.tally["given_up_s"] + _LATE_S - time.monotonic()
        await asyncio.sleep(max(0.0, late_s))
        connection = await asyncpg.connect(self.dsn)
        try:
            heads = dict(await connection.fetch(HEADS, list(self._epochs)))
            for process in self._viewers:
                await _tell(process, orjson.dumps(heads) + b"\n")
            await asyncio.gather(*(process.wait() for process in self._viewers), *self._readers[1:])
            return await self._judge(connection)
        finally:
            await connection.close()

    async def abandon(self) -> None:
        """End the processes, whatever they are at. Idempotent."""
        for proxy in self.proxies:
            await proxy.close()
        for process in filter(None, [self._producers, *self._viewers]):
            if process.returncode is None:
                process.kill()
                await process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _last_s(self, program_id: str) -> float:
        """When the program took something last."""
        return float(self.tally.get("last_s", {}).get(program_id, 0.0))

    # -- processes

    async def _spawn(self, module: str, spec: dict[str, Any]) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"tests.adversity.{module}",
            orjson.dumps(spec).decode(),
            stdin=PIPE,
            stdout=PIPE,
            cwd=_ROOT,
            env=child_environment({}),
        )

    async def _hear_producers(self) -> None:
        assert self._producers is not None
        assert self._producers.stdout is not None
        async for line in self._producers.stdout:
            self.tally = orjson.loads(line)

    # -- judging

    async def _judge(self, connection: asyncpg.Connection) -> Verdict:
        published: dict[str, list[Publish]] = {name: [] for name in self._epochs}
        for program_id, publish in producers.read_log(self.directory / "producers.log"):
            published[program_id].append(publish)
        seen: dict[str, dict[str, list[Push]]] = {name: {} for name in self._epochs}
        findings = list(self.tally["notes"])
        pauses: list[list[Pause]] = []
        deliveries = reconnects = 0
        for number in range(self.size.viewers):
            head, log = viewers.read_log(self.directory / f"viewer-{number}.log")
            seen[head["program"]][f"viewer {number}"] = log
            findings += [f"viewer {number}: {note}" for note in head["notes"]]
            pauses.append([Pause(*pause) for pause in head["pauses"]])
            deliveries += len(log)
            reconnects += head["connections"] - 1
        events = pushed = 0
        for program_id in self._epochs:
            rows = await connection.fetch(STORED, program_id, timeout=120)
            stored = [Stored(seq, short_id(id_), by, n) for seq, id_, by, n in rows]
            if stored != await self._read_api(program_id):
                findings.append(f"{program_id}: the API tells other events than the database holds")
            rows = await connection.fetch(PUSHES, program_id, timeout=120)
            pushes = [Push(seq, short_id(id_)) for seq, id_ in rows]
            found = judge(published[program_id], stored, pushes, seen[program_id])
            findings += [f"{program_id}: {finding}" for finding in found]
            events += len(stored)
            pushed += len(pushes)
        costs = outages(self.faults, map(publish_pauses, published.values()), pauses)
        tally = self.tally
        return Verdict(
            events, pushed, deliveries, reconnects, tally["failures"], tally["given_up"], findings, costs
        )

    async def _read_api(self, program_id: str) -> list[Stored]:
        async with httpx.AsyncClient(timeout=120) as client:
            reply = await client.get(f"{self.instance.url}/api/v1/programs/{program_id}/events")
        events = reply.raise_for_status().json()
        stored = [
            Stored(e["seq"], short_id(e["id"]), e["metadata"]["by"], e["metadata"]["n"]) for e in events
        ]
        return sorted(stored)


@asynccontextmanager
async def open_show(instance: Instance, size: Size, **wires: Any) -> AsyncIterator[Show]:
    """A show under way."""
    with tempfile.TemporaryDirectory(prefix="broker-show-") as directory:
        show = Show(instance, size, Path(directory), **wires)
        try:
            await show.open()
            yield show
        finally:
            await show.abandon()


async def until(is_so: Callable[[], object], limit_s: float = _WHOLE_S) -> None:
    """Wait for something that happens in other processes. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while not is_so():  # noqa: ASYNC110 - see above
            await asyncio.sleep(_POLL_S)


async def _tell(process: Process, line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    await process.stdin.drain()


async def _swallow(process: Process) -> None:
    assert process.stdout is not None
    async for _ in process.stdout:
        continue


async def soak(
    instance: Instance,
    size: Size,
    plan: Iterator[tuple[str, ...]],
    chance: random.Random,
    *,
    events: int,
    faults: int,
    limit_s: float = float("inf"),
    **wires: Any,
) -> Verdict:
    """Play until so many events are acknowledged and so many faults are over, or time is up.

    Args:
        wires: how those of the show are cut; see `Show`.
    """
    began_s = time.monotonic()
    async with open_show(instance, size, **wires) as show:
        while show.acknowledged < events or len(show.faults) < faults:
            if time.monotonic() > began_s + limit_s:
                break
            fault = await show.suffer(next(plan), chance)
            _print(
                f"{time.monotonic() - began_s:6.0f} s  {show.acknowledged:9,} events "
                f" {len(show.faults):3} faults  {fault.over_s - fault.began_s:5.1f} s until whole"
                f" after: {fault.name}"
            )
            await asyncio.sleep(chance.uniform(0.5, 3.0))
        _print("judging")
        return await show.close()


def _summary(verdict: Verdict) -> str:
    lines = [table(_merged(verdict.outages)), ""]
    lines += [f"FINDING {finding}" for finding in verdict.findings]
    lines.append(
        f"{'WRONG' if verdict.findings else 'RIGHT'}: {verdict.events:,} events stored,"
        f" {verdict.deliveries:,} deliveries, {verdict.reconnects:,} reconnects,"
        f" {verdict.failures:,} failed tries, {verdict.given_up:,} publishes given up"
    )
    return "\n".join(lines)


def _merged(found: Sequence[Outage]) -> list[Outage]:
    """All pairs under one name."""
    return [
        outage._replace(fault=outage.fault._replace(name="two of these at once"))
        if " and " in outage.fault.name and outage.fault.name not in KINDS
        else outage
        for outage in found
    ]


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """The command line of `make soak`."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversity.soak", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=20, help="at least so many")
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=5_000, help="events a second at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends after these")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    options = parser.parse_args()
    size = Size(options.producers, options.viewers, options.programs, options.rate, largest_batch=1_000)
    _print(f"--seed {options.seed}")

    async def work(instance: Instance) -> Verdict:
        chance = random.Random(options.seed)
        limits = {"events": options.events, "faults": options.faults, "limit_s": options.seconds}
        async with edits_and_votes(instance) as findings:
            verdict = await soak(instance, size, draw_plan(chance), chance, **limits)
        verdict.findings += findings
        return verdict

    verdict = on_own_instance(work)
    _print(_summary(verdict))
    sys.exit(bool(verdict.findings))


def on_own_instance(work: Callable[[Instance], Awaitable[Verdict]]) -> Verdict:
    """What `work` comes to on an instance that is started for it and stopped then.

    Its log is printed, and its directory kept, when something is raised.
    """
    directory = Path(tempfile.mkdtemp(prefix="broker-show-"))
    # what a viewer misses meanwhile must be recoverable
    instance = Instance(directory / "data", environment={"BROKER_HISTORY_EVENTS": "100000"} | UNLIMITED)
    try:
        instance.start()
        verdict = asyncio.run(work(instance))
        instance.stop()
    except BaseException:
        _print(f"{instance.log()}\nkept: {directory}")
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)
        return verdict
    finally:
        instance.end()


if __name__ == "__main__":
    main()
