"""Owners become more and fewer while clients publish and follow, over links that lose calls and answers."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import orjson
import pytest

from broker.actors.link import LinkLost
from broker.actors.placement import slot_name
from broker.clock import SystemClock
from broker.errors import BrokerError, Unavailable
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS
from broker.owners.known_placement import KnownPlacement
from broker.owners.linked_feed import LinkedFeed
from broker.owners.linked_owners import LinkedOwners
from broker.owners.moved import Moved
from broker.owners.owner import Owner
from broker.owners.placement import OWNER, owner_of
from broker.owners.protocol import Entry, EntryKind, program_topic
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.fence import Fenced
from broker.storage.journal import Journal
from broker.storage.placements import PlacementRow, Placements
from tests.owners.packed import call_packed
from tests.owners.support import create_programs, fetch, ids, publish, publish_rows, row

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

MOST = 4
SETTINGS = Settings(owners=1, database_pool=2, publish_timeout_s=20.0, statistics=False)
CLOCK = SystemClock()
PROGRAMS = [f"p{number}" for number in range(8)]


class Slot:
    """The process of one slot and the way to it, which loses calls there or answers on the way back.

    Like an actor it starts another owner in the place of one that has ended.
    """

    def __init__(self, dsn: str, index: int, loss: float) -> None:
        self.owner: Owner | None = None
        self.loss = loss
        self.kills = 0
        self._dsn = dsn
        self._index = index
        self._random = random.Random(index)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        started = asyncio.Event()
        self._running = asyncio.create_task(self._run(started))
        await started.wait()

    async def kill(self) -> None:
        """End the process at once; another one starts."""
        self.kills += 1
        await self.end()
        await self.start()

    async def end(self) -> None:
        assert self._running is not None, "it was started"
        self._running.cancel()
        await asyncio.wait([self._running])

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        owner = self.owner
        if owner is None or self._random.random() < self.loss:
            await asyncio.sleep(0.001)
            raise LinkLost(method)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await call_packed(owner, method, arguments)
        except TimeoutError as error:
            raise LinkLost(method) from error
        if self._random.random() < self.loss or owner is not self.owner:
            raise LinkLost(method)
        return reply

    def close(self) -> None:
        """Nothing is open."""

    async def _run(self, started: asyncio.Event) -> None:
        while True:
            self.owner = owner = await Owner.start(SETTINGS, self._dsn, self._index)
            started.set()
            try:
                await owner.ended()  # an actor ends too, unless `was_moved`; then Ray starts it anew
            finally:
                self.owner = None
                await owner.close()


class Stage:
    """Four slots on one database."""

    def __init__(self, dsn: str, database: Database, loss: float) -> None:
        self.placements = Placements(database)
        self.slots = [Slot(dsn, index, loss) for index in range(MOST)]

    async def scale(self, owners: int) -> None:
        """Put a number of owners into effect, as the conductor does once they run."""
        names = [slot_name(OWNER, index) for index in range(MOST)]
        while not await self.placements.change((await self.placements.read()).version, owners, names):
            pass


async def open_stage(dsn: str, loss: float) -> AsyncIterator[Stage]:
    database = await Database.open(dsn, size=2, timeout_s=5.0)
    stage = Stage(dsn, database, loss)
    await asyncio.gather(*(slot.start() for slot in stage.slots))
    try:
        yield stage
    finally:
        await asyncio.gather(*(slot.end() for slot in stage.slots))
        await database.close()


@pytest.fixture
async def stage(dsn: str) -> AsyncIterator[Stage]:
    await create_programs(dsn, PROGRAMS)
    async for stage in open_stage(dsn, 0.0):
        yield stage


@pytest.fixture
async def bad_stage(dsn: str) -> AsyncIterator[Stage]:
    await create_programs(dsn, PROGRAMS)
    async for stage in open_stage(dsn, 0.05):
        yield stage


class Door:
    """A process that publishes and follows; it begins with the placement of the settings."""

    def __init__(self, stage: Stage) -> None:
        self.placement = KnownPlacement(SETTINGS.owners)
        self.owners = LinkedOwners(SETTINGS, CLOCK, ids, stage.slots, placement=self.placement)
        self.feed = LinkedFeed(
            SETTINGS, CLOCK, IdSource(CLOCK), self.hear, stage.slots, placement=self.placement
        )
        self.told: dict[str, list[Entry]] = {}
        self.heard = asyncio.Event()

    def hear(self, topic: str, entries: Sequence[Entry]) -> None:
        assert not {entry.kind for entry in entries} & {EntryKind.RESET, EntryKind.GONE}
        self.told.setdefault(topic, []).extend(entry for entry in entries if entry.kind == EntryKind.PUSH)
        self.heard.set()

    async def until(self, topic: str, count: int) -> list[int]:
        """The numbers of the pushes of a topic, when there are so many."""
        async with asyncio.timeout(30):
            while len(self.told.get(topic, ())) < count:
                self.heard.clear()
                await self.heard.wait()
        return [entry.seq for entry in self.told[topic]]

    async def close(self) -> None:
        await self.feed.close()
        await self.owners.close()


@pytest.fixture
async def door(stage: Stage) -> AsyncIterator[Door]:
    door = Door(stage)
    yield door
    await door.close()


def spread(program_id: str, owners: int) -> int:
    return owner_of(program_topic("demo", program_id), owners)


async def insist(door: Door, program_id: str, number: int) -> None:
    """Publish an event that carries its number, however often it takes; the command stays the same."""
    command = publish_rows(program_id, [row(metadata={"number": number})])
    while True:
        try:
            await door.owners.submit(command)
        except Unavailable:
            continue
        return


class Show:
    """Producers of all programs through one door, and what two doors that follow are told."""

    def __init__(self, stage: Stage, dsn: str) -> None:
        self.doors = [Door(stage), Door(stage)]
        self._dsn = dsn
        self._counts: dict[str, int] = {}
        self._counted = asyncio.Event()
        self._is_over = False

    async def open(self) -> None:
        for name in PROGRAMS:
            for each in self.doors:
                await each.feed.follow(program_topic("demo", name))
        self._producing = [asyncio.create_task(self._produce(name)) for name in PROGRAMS]

    async def until_published(self, changing: Awaitable[object]) -> None:
        """Return when two waves of each program have been published since the change that is awaited."""
        before = dict(self._counts)
        await changing
        async with asyncio.timeout(30):
            while any(self._counts.get(name, 0) <= before.get(name, 0) + 6 for name in PROGRAMS):
                self._counted.clear()
                await self._counted.wait()

    async def judge(self) -> None:
        """End it: each event is stored and told once, in its order, and no program lost its history."""
        self._is_over = True
        await asyncio.gather(*self._producing)
        for name in PROGRAMS:
            rows = await fetch(
                self._dsn,
                "SELECT e.metadata::text FROM events e JOIN program_heads h ON h.history = e.history"
                " JOIN programs p ON p.uid = h.program_uid WHERE p.id = $1 ORDER BY e.seq",
                name,
            )
            assert [orjson.loads(each[0])["number"] for each in rows] == list(range(self._counts[name]))
            for door in self.doors:
                seqs = await door.until(program_topic("demo", name), self._counts[name])
                assert seqs == list(range(1, self._counts[name] + 1))
        reasons = await fetch(self._dsn, "SELECT DISTINCT epoch_reason FROM program_heads")
        assert [each[0] for each in reasons] == ["created"]

    async def close(self) -> None:
        for task in self._producing:
            task.cancel()
        for door in self.doors:
            await door.close()

    async def _produce(self, program_id: str) -> None:
        """Wave after wave; the publishes of one wave are under way at a time, and keep their order."""
        number = 0
        while not self._is_over:
            wave = [insist(self.doors[0], program_id, number + each) for each in range(3)]
            number += len(wave)
            self._counts[program_id] = number
            await asyncio.gather(*wave)
            self._counted.set()


@pytest.fixture
async def show(bad_stage: Stage, dsn: str) -> AsyncIterator[Show]:
    show = Show(bad_stage, dsn)
    await show.open()
    yield show
    await show.close()


async def test_nothing_is_lost_doubled_or_reordered_while_owners_change(bad_stage: Stage, show: Show) -> None:
    async def change(owners: int) -> None:
        await bad_stage.scale(owners)
        if owners == 3:
            await bad_stage.slots[1].kill()

    for owners in (4, 2, 3, 1, 4):
        await show.until_published(change(owners))
    await show.judge()
    assert show.doors[0].placement.current == (5, 4)


async def test_two_changes_at_once_while_owners_die_lose_nothing(bad_stage: Stage, show: Show) -> None:
    """Owners that start meanwhile act on the last placement, or are shut out by it."""
    kills = (slot.kill() for slot in bad_stage.slots[:2])
    await show.until_published(asyncio.gather(bad_stage.scale(2), *kills, bad_stage.scale(4)))
    row = await bad_stage.placements.read()
    await show.judge()
    assert row.version == 2
    assert row.owners in (2, 4)
    assert [door.placement.current for door in show.doors] == [(2, row.owners)] * 2


async def test_commands_under_way_stay_before_later_ones_of_their_program(stage: Stage, door: Door) -> None:
    name = next(name for name in PROGRAMS if spread(name, 2) == 1)
    topic = program_topic("demo", name)
    await door.feed.follow(topic)
    slow, going = asyncio.Event(), asyncio.Event()
    call = stage.slots[0].call

    async def wait_first(method: str, *arguments: object, timeout_s: float) -> Any:
        if method == "submit":
            going.set()
            await slow.wait()
        return await call(method, *arguments, timeout_s=timeout_s)

    stage.slots[0].call = wait_first  # type: ignore[method-assign]
    first = asyncio.create_task(insist(door, name, 1))
    await going.wait()
    await stage.scale(2)
    door.placement.take((await stage.placements.read()).in_effect(1))  # another program's owner has told it
    second = asyncio.create_task(insist(door, name, 2))
    for _ in range(20):
        await asyncio.sleep(0)
    slow.set()
    await asyncio.gather(first, second)
    await door.until(topic, 2)
    numbers = [orjson.loads(entry.params)["metadata"]["number"] for entry in door.told[topic]]
    assert numbers == [1, 2]


async def test_owner_answers_moved_for_programs_of_others(stage: Stage, dsn: str) -> None:
    await stage.scale(2)
    name = next(name for name in PROGRAMS if spread(name, 2) == 1)
    async with asyncio.timeout(10):
        while True:
            owner = stage.slots[0].owner
            if owner is not None:
                (reply,) = await owner.submit([publish(name)], 5.0)
                if isinstance(reply, Moved):
                    break
                assert isinstance(reply, Unavailable), "by the old placement nothing is written any more"
            await asyncio.sleep(0)
    assert reply.placement == (1, 2)
    assert isinstance(await owner.history(program_topic("demo", name), "e", 0, 10), Moved)
    events = await fetch(dsn, "SELECT count(*) FROM events")
    assert events[0][0] == 0


async def test_owner_that_starts_during_a_change_writes_nothing_by_the_placement_before(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes right after the start of the owner has read the placement."""
    name = next(name for name in PROGRAMS if spread(name, 2) == 1)
    await create_programs(dsn, [name])
    database = await Database.open(dsn, size=2, timeout_s=5.0)
    stage, read = Stage(dsn, database, 0.0), Placements.read

    async def read_before_a_change(placements: Placements) -> PlacementRow:
        row = await read(placements)
        monkeypatch.setattr(Placements, "read", read)
        await stage.scale(2)
        return row

    monkeypatch.setattr(Placements, "read", read_before_a_change)
    owner = await Owner.start(SETTINGS, dsn, 0)
    try:
        (reply,) = await owner.submit([publish(name)], 5.0)
        assert isinstance(reply, Unavailable)
        await owner.ended()
        assert await owner.was_moved()
    finally:
        await owner.close()
        await database.close()
    assert (await fetch(dsn, "SELECT count(*) FROM events"))[0][0] == 0


async def test_idle_viewers_hear_of_a_program_at_its_new_owner(stage: Stage, door: Door) -> None:
    name = next(name for name in PROGRAMS if spread(name, 2) == 1)
    topic = program_topic("demo", name)
    await door.feed.follow(topic)
    await stage.scale(2)
    other = Door(stage)
    await insist(other, name, 0)
    assert await door.until(topic, 1) == [1]
    await other.close()


async def test_a_placement_that_the_database_has_lost_is_not_acted_upon(stage: Stage, dsn: str) -> None:
    database = await Database.open(dsn, size=1, timeout_s=5.0)
    journal = Journal(database, "owner-9")
    generation = await journal.acquire()
    journal.placement = 7
    try:
        with pytest.raises(Fenced):
            await journal.renew(generation, journal.next_generation(generation))
    finally:
        await database.close()


async def test_a_change_is_made_once(stage: Stage) -> None:
    names = [slot_name(OWNER, 0)]
    assert await stage.placements.change(0, 2, names)
    assert not await stage.placements.change(0, 3, names)
    assert (await stage.placements.read()).in_effect(1) == (1, 2)


async def test_of_two_changes_of_one_placement_one_is_made(stage: Stage) -> None:
    names = [slot_name(OWNER, index) for index in range(MOST)]
    changes = [stage.placements.change(0, owners, names) for owners in (2, 4)]
    made = dict(zip((2, 4), await asyncio.gather(*changes), strict=True))
    (owners,) = (owners for owners, is_made in made.items() if is_made)
    assert (await stage.placements.read()).in_effect(1) == (1, owners)


def test_error_that_travels_keeps_its_placement() -> None:
    error: BrokerError = Moved.by(KnownPlacement(3).current)
    number, kind, body = OWNER_CALLS.unpack_reply(OWNER_CALLS.pack_result(1, [error]))
    (read,) = OWNER_CALLS.read_reply("submit", kind, body)
    assert number == 1
    assert isinstance(read, Moved)
    assert read.placement == (0, 3)
