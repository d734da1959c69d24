"""A timeline releases events when the video is where they belong."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.client import AsyncClient, Client, Event, ProgramDeleted, Seek, Timeline
from broker.client import playback as playback_module
from broker.client.held import MOST, Held
from broker.client.playback import Move, Playback
from broker.clock import to_datetime
from tests.client.doors import Doors, open_doors
from tests.gateway.world import World, open_world

BASE = 1_800_000_040_000  # forty seconds into a minute, years ahead: nothing here is due by the clock
WAIT_S = 20.0
QUIET_S = 0.25  # two looks at the video


def event(number: int, timecode: int, *, created: int | None = None) -> Event:
    time = to_datetime(timecode if created is None else created)
    return Event(number, "e", f"id-{number}", "p", time, timecode, timecode, "A#b")


class Player:
    """A video that is moved by hand."""

    def __init__(self, ms: float | datetime | None = BASE) -> None:
        self.ms = ms

    def __call__(self) -> float | datetime | None:
        return self.ms


class TestPlayback:
    """Times are those of `look`: the machine's, then the broker's."""

    def test_it_plays(self) -> None:
        player = Player(1_000.5)
        playback = Playback(player, 0)
        assert playback.look(0, 9e12) is Move.BEGUN
        for now, shown in ((100, 1_100), (200, 1_600), (300, 2_900), (90_000, 91_000)):
            player.ms = shown
            assert playback.look(now, 9e12) is Move.NONE
            assert playback.place_ms == shown

    def test_a_second_back_is_jitter_and_more_is_a_seek(self) -> None:
        player = Player(10_000)
        playback = Playback(player, 0)
        playback.look(0, 0)
        player.ms = 9_000
        assert (playback.look(100, 0), playback.place_ms) == (Move.NONE, 10_000)
        player.ms = 8_999
        assert (playback.look(200, 0), playback.place_ms) == (Move.BACK, 8_999)

    def test_a_leap_is_a_seek(self) -> None:
        player = Player(10_000)
        playback = Playback(player, 0)
        playback.look(0, 0)
        player.ms = 11_401
        assert (playback.look(100, 0), playback.place_ms) == (Move.FORWARD, 11_401)

    @pytest.mark.parametrize("unknown", [None, math.nan, math.inf, datetime(2026, 1, 1), True, "1"])
    def test_who_knows_nothing_stands_and_then_falls_back(self, unknown: Any) -> None:
        player = Player(10_000)
        playback = Playback(player, 30_000)
        playback.look(0, 50_000)
        player.ms = unknown
        assert playback.look(4_999, 55_000) is Move.NONE
        assert (playback.place_ms, playback.falls_back) == (10_000, False)
        assert playback.look(5_000, 55_000) is Move.NONE
        assert (playback.place_ms, playback.falls_back) == (25_000, True)
        player.ms = 23_000
        assert (playback.look(5_100, 55_100), playback.falls_back) == (Move.BACK, False)

    def test_after_a_fall_back_the_video_goes_on(self) -> None:
        player = Player(None)
        playback = Playback(player, 0)
        assert playback.look(0, 50_000) is Move.NONE
        assert playback.look(5_000, 55_000) is Move.BEGUN
        player.ms = 90_000
        assert (playback.look(5_100, 55_100), playback.place_ms) == (Move.NONE, 90_000)

    def test_one_that_raises_knows_nothing(self) -> None:
        playback = Playback(lambda: 1 / 0, 0)
        assert (playback.look(0, 0), playback.place_ms) == (Move.NONE, None)

    def test_a_datetime_is_a_place(self) -> None:
        playback = Playback(lambda: datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 0)
        playback.look(0, 0)
        assert playback.place_ms == 1_000


class TestHeld:
    def test_what_is_due_comes_in_the_order_of_timecode_and_seq(self) -> None:
        held = Held()
        for one in (event(3, 200), event(1, 200), event(2, 100), event(4, 300)):
            held.tell(one)
        assert held.next_due_ms() == 100
        assert [each.seq for each in held.release(200, falls_back=False)] == [2, 1, 3]
        assert [each.seq for each in held.release(300, falls_back=False)] == [4]

    def test_nothing_comes_twice(self) -> None:
        held = Held()
        held.tell(event(1, 100))
        held.release(100, falls_back=False)
        held.tell(event(1, 100))
        held.put([event(1, 100)])
        held.change(event(1, 200), 150, falls_back=False)
        assert held.release(math.inf, falls_back=False) == []
        held.begin(math.inf)
        held.put([event(1, 100)])
        assert [each.timecode for each in held.release(math.inf, falls_back=False)] == [200]

    def test_a_change_moves_what_is_held(self) -> None:
        held = Held()
        held.tell(event(1, 100))
        held.change(event(1, 500), 0, falls_back=False)
        assert held.release(499, falls_back=False) == []
        held.change(event(2, 400), 450, falls_back=False)  # it was released, or lies behind
        assert [each.seq for each in held.release(500, falls_back=False)] == [1]

    def test_what_was_told_counts_over_what_was_read(self) -> None:
        held = Held()
        held.delete("id-1")
        held.change(event(2, 250), 0, falls_back=False)
        held.put([event(1, 100), event(2, 200)])
        assert [each.timecode for each in held.release(math.inf, falls_back=False)] == [250]

    def test_a_clock_that_is_ahead_holds_nothing_back(self) -> None:
        held = Held()
        held.tell(event(1, 90_000, created=1_000))
        assert held.next_due_ms(falls_back=True) == 1_000
        assert len(held.release(1_000, falls_back=True)) == 1

    def test_too_many_are_dropped_from_the_end(self) -> None:
        held = Held()
        held.put(event(n, n) for n in range(MOST + 1))
        assert (len(held), held.horizon_ms) == (MOST // 2, MOST // 2)
        held.tell(event(MOST + 2, MOST + 2))
        assert len(held) == MOST // 2

    def test_those_of_one_moment_stay_together(self) -> None:
        held = Held()
        held.put(event(n, 7) for n in range(MOST + 5))
        assert (len(held), held.horizon_ms) == (MOST + 5, math.inf)


@pytest.fixture(scope="module")
async def shared_world(module_dsn: str) -> AsyncIterator[World]:
    async with open_world(module_dsn, ws_messages_per_s=0) as world:
        yield world


@pytest.fixture
async def world(shared_world: World) -> AsyncIterator[World]:
    yield shared_world
    await shared_world.leave()


@pytest.fixture
async def doors(world: World) -> AsyncIterator[Doors]:
    async with open_doors(world) as doors:
        yield doors


class Overlay:
    """Somebody who watches a timeline; `shown` and `seeks` are in order."""

    def __init__(self, timeline: Timeline, seeks: list[Seek]) -> None:
        self.seeks = seeks
        self._shown: asyncio.Queue[int] = asyncio.Queue()
        self._task = asyncio.create_task(self._watch(timeline))

    async def shows(self, *numbers: int) -> None:
        """The next events shown are these, and no other one follows at once."""
        async with asyncio.timeout(WAIT_S):
            assert [await self._shown.get() for _ in numbers] == list(numbers)
        await asyncio.sleep(QUIET_S)
        assert self._shown.empty()

    async def end(self) -> BaseException | None:
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        return outcome if isinstance(outcome, BaseException) else None

    async def failure(self) -> BaseException | None:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait([self._task])
        return self._task.exception()

    async def _watch(self, timeline: Timeline) -> None:
        async for each in timeline:
            self._shown.put_nowait(each.metadata["n"])


@asynccontextmanager
async def overlay(doors: Doors, program: str, **options: Any) -> AsyncIterator[Overlay]:
    seeks: list[Seek] = []
    async with AsyncClient(doors.url) as client:
        watching = Overlay(client.events.timeline(program, seeked=seeks.append, **options), seeks)
        try:
            yield watching
        finally:
            await watching.end()


async def publish(world: World, program: str, **timecodes: int) -> list[str]:
    """Publish an event for each `n1=…`; returns the ids."""
    admin = await world.admin()
    events = [
        {"event": "Goal#show", "timecode": timecode, "metadata": {"n": int(name[1:])}}
        for name, timecode in timecodes.items()
    ]
    published = await admin.call("producer", programId=program, events=events)
    return [each["id"] for each in published["events"]]


@pytest.mark.anyio
@pytest.mark.postgres
class TestTimeline:
    async def test_an_event_waits_for_the_video(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player()
        await publish(world, program, n1=BASE + 500, n2=BASE - 1, n3=BASE)
        async with overlay(doors, program, position=player) as watching:
            await watching.shows(3)
            await publish(world, program, n5=BASE + 900, n4=BASE + 800, n6=BASE - 500)
            await watching.shows(6)  # it comes late, and so at once
            player.ms = BASE + 850
            await watching.shows(1, 4)
            doors.relay.cut()
            player.ms = BASE + 1_000
            await publish(world, program, n7=BASE + 1_000)
            await watching.shows(5, 7)
            assert watching.seeks == []

    async def test_a_seek_back_shows_it_again(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player(BASE + 120_000)
        await publish(world, program, n1=BASE, n2=BASE + 500)
        async with overlay(doors, program, position=player, lookback_ms=1_000) as watching:
            await watching.shows()
            player.ms = BASE + 100
            await watching.shows(1)
            player.ms = BASE + 600
            await watching.shows(2)
            player.ms = BASE - 2_000
            await watching.shows()
            player.ms = BASE - 1_000
            await watching.shows()
            player.ms = BASE
            await watching.shows(1)
            assert [(seek.reason, seek.position_ms) for seek in watching.seeks] == [
                ("back", BASE + 100),
                ("back", BASE - 2_000),
            ]

    async def test_a_seek_forward_skips(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player()
        await publish(world, program, n1=BASE + 10_000, n2=BASE + 30_000, n3=BASE + 31_000)
        async with overlay(doors, program, position=player, lookback_ms=2_000) as watching:
            await watching.shows()
            player.ms = BASE + 31_000
            await watching.shows(2, 3)
            assert [seek.reason for seek in watching.seeks] == ["forward"]

    async def test_all_that_was_before_comes_where_it_is_wanted(self, world: World, doors: Doors) -> None:
        program = await world.program()
        await publish(world, program, n1=1, n2=BASE - 900_000, n3=BASE + 1)
        async with overlay(doors, program, position=Player(), lookback_ms=math.inf) as watching:
            await watching.shows(1, 2)

    async def test_a_long_show_is_read_by_and_by(
        self, world: World, doors: Doors, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Years ago: each minute is a window of its own."""
        monkeypatch.setattr(playback_module, "SPEED", 1_000.0)
        program, start = await world.program(), 1_600_000_000_000
        await publish(world, program, n1=start + 1_000, n2=start + 70_000, n3=start + 130_000)
        player = Player(start)
        async with overlay(doors, program, position=player) as watching:
            for at, number in ((1_000, 1), (70_000, 2), (130_000, 3)):
                while player.ms < start + at:
                    player.ms += 1_000
                    await asyncio.sleep(0.01)
                await watching.shows(number)
            assert watching.seeks == []

    async def test_changes_count_until_it_is_due(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player()
        first, second, _ = await publish(world, program, n1=BASE + 500, n2=BASE + 600, n3=BASE + 700)
        admin = await world.admin()
        async with overlay(doors, program, position=player) as watching:
            await watching.shows()
            await admin.call("updateProgramEvent", programId=program, eventId=first, timecode=BASE + 800)
            await admin.call("deleteProgramEvent", programId=program, eventId=second)
            player.ms = BASE + 900
            await watching.shows(3, 1)

    async def test_an_import_begins_anew(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player()
        await publish(world, program, n1=BASE + 500)
        admin = await world.admin()
        async with overlay(doors, program, position=player) as watching:
            await watching.shows()
            events = [{"event": "Goal#show", "timecode": BASE + 500, "metadata": {"n": 2}}]
            await admin.call("importProgramEvents", programId=program, events=events)
            await watching.shows()
            player.ms = BASE + 500
            await watching.shows(2)
            await admin.call("deleteAllProgramEvents", programId=program)
            await publish(world, program, n3=BASE)
            await watching.shows(3)
            assert {seek.reason for seek in watching.seeks} == {"replaced"}

    async def test_a_history_replaced_while_cut_is_read_anew(self, world: World, doors: Doors) -> None:
        program, player = await world.program(), Player()
        await publish(world, program, n1=BASE, n2=BASE + 500)
        admin = await world.admin()
        async with overlay(doors, program, position=player) as watching:
            await watching.shows(1)
            doors.relay.is_open = False
            doors.relay.cut()
            events = [
                {"event": "Goal#show", "timecode": BASE + ms, "metadata": {"n": n}}
                for n, ms in ((3, 0), (4, 600))
            ]
            await admin.call("importProgramEvents", programId=program, events=events)
            doors.relay.is_open = True
            await watching.shows(3)
            await publish(world, program, n5=BASE + 700)
            player.ms = BASE + 900
            await watching.shows(4, 5)
            assert [(seek.reason, seek.position_ms) for seek in watching.seeks] == [("lost", BASE)]

    async def test_without_a_video_it_is_now(self, world: World, doors: Doors) -> None:
        program = await world.program()
        await publish(world, program, n1=BASE - 1)
        async with overlay(doors, program) as watching:
            await watching.shows()
            await publish(world, program, n3=BASE + 90_000, n2=BASE)
            await watching.shows(2, 3)

    async def test_without_a_video_it_is_so_much_later(self, world: World, doors: Doors) -> None:
        program, delay_ms = await world.program(), 1_500.0
        async with overlay(doors, program, delay_ms=delay_ms) as watching:
            await asyncio.sleep(QUIET_S)
            await publish(world, program, n1=BASE)
            published_s = asyncio.get_running_loop().time()
            await watching.shows(1)
            took_s = asyncio.get_running_loop().time() - published_s - QUIET_S
            assert took_s > (delay_ms - 200) / 1_000

    async def test_a_player_that_knows_nothing_falls_back(
        self, world: World, doors: Doors, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(playback_module, "PATIENCE_MS", 200.0)
        program, player = await world.program(), Player()
        await publish(world, program, n1=BASE + 500)
        async with overlay(doors, program, position=player) as watching:
            await watching.shows()
            player.ms = None
            await watching.shows(1)
            await publish(world, program, n2=BASE + 90_000)
            await watching.shows(2)

    async def test_a_deleted_program_ends_it(self, world: World, doors: Doors) -> None:
        program = await world.program()
        async with overlay(doors, program, position=Player()) as watching:
            await watching.shows()
            await (await world.admin()).call("admin/deleteProgram", programId=program)
            assert isinstance(await watching.failure(), ProgramDeleted)

    async def test_without_async_it_is_the_same(self, world: World, doors: Doors) -> None:
        program = await world.program()
        await publish(world, program, n1=BASE - 10, n2=BASE)

        def watch() -> list[int]:
            with (
                Client(doors.url) as client,
                closing(client.events.timeline(program, position=Player(), lookback_ms=100)) as items,
            ):
                return [next(items).metadata["n"], next(items).metadata["n"]]

        async with asyncio.timeout(WAIT_S):
            assert await asyncio.to_thread(watch) == [1, 2]


@pytest.mark.parametrize("options", [{"delay_ms": -1}, {"lookback_ms": -1}])
def test_negative_times_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="negative"):
        AsyncClient("http://localhost:1").events.timeline("p", **options)
