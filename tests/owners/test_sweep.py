"""What the sweep forgets while somebody is about to follow it."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import orjson
import pytest

from broker.clock import SystemClock
from broker.domain.history import HeadRow, ProgramKey
from broker.metrics import catalogue
from broker.owners import owner as owners
from broker.owners.log import LogLimits
from broker.owners.owner import LINGER_S, FollowReply, Owner
from broker.owners.protocol import PROGRAMS_CHANNEL, Cursor, Head, channel_topic, program_topic
from broker.owners.sessions import Follow
from broker.owners.topics import Hold, Topics
from broker.storage.database import Database
from broker.storage.history import History
from tests.owners.conftest import SETTINGS
from tests.owners.support import Gateway, create_programs, fetch, holding, publish, published

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

P, Q, UNWANTED = (program_topic("demo", name) for name in ("p", "q", "unwanted"))
_WAITING = """
SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
WHERE NOT granted AND datname = current_database()
"""
CHANNEL = channel_topic("demo", PROGRAMS_CHANNEL)


class MovedClock(SystemClock):
    """The system's clock, ahead by what a test says."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Swept(NamedTuple):
    owner: Owner
    clock: MovedClock


@pytest.fixture
async def swept(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Swept]:
    """An owner that sweeps all the time."""
    monkeypatch.setattr(owners, "_SWEEP_S", 0.01)
    await create_programs(dsn, ["unwanted"])
    clock = MovedClock()
    owner = await Owner.start(SETTINGS, dsn, 0, clock=clock)
    yield Swept(owner, clock)
    await owner.close()


@asynccontextmanager
async def swept_while_loading(
    swept: Swept, dsn: str, *follows: Follow
) -> AsyncIterator["asyncio.Task[Sequence[FollowReply] | None]"]:
    """Follow what was followed once and `q`, whose head cannot be read before a sweep has gone by."""
    owner, clock = swept
    gateway = Gateway(owner, "former")
    await gateway.open(*follows, Follow(9, UNWANTED, None))
    owner.leave("former")
    await owner.open("gateway", [])
    idle = _topics(owner)
    async with holding(dsn, "LOCK TABLE program_heads IN ACCESS EXCLUSIVE MODE"), asyncio.timeout(20):
        following = asyncio.create_task(owner.follow("gateway", [*follows, Follow(8, Q, None)]))
        while not await fetch(dsn, _WAITING):  # noqa: ASYNC110 - the event is in the server
            await asyncio.sleep(0)
        clock.ahead_s += LINGER_S
        while _topics(owner) == idle:  # noqa: ASYNC110 - the sweep tells nobody
            await asyncio.sleep(0.01)
    yield following


def _topics(owner: Owner) -> int:
    (count,) = (sample.value for sample in owner.figures() if sample.name == catalogue.TOPICS.name)
    assert isinstance(count, int)
    return count


async def test_program_that_is_swept_while_another_is_loaded_is_followed(swept: Swept, dsn: str) -> None:
    (event,) = await published(swept.owner, publish())
    cursor = Cursor(event["epoch"], event["seq"])
    async with swept_while_loading(swept, dsn, Follow(1, P, cursor)) as following:
        replies = await following
        assert replies is not None
        assert [type(reply) for reply in replies] == [Head, Head]
    gateway = Gateway(swept.owner)
    gateway.entries[1] = []
    await published(swept.owner, publish())
    (entry,) = await gateway.until(1, 1)
    assert (entry.method, entry.seq) == ("event", 2)


async def test_channel_that_is_swept_while_a_program_is_loaded_goes_on(swept: Swept, dsn: str) -> None:
    async with swept_while_loading(swept, dsn, Follow(1, CHANNEL, None)) as following:
        replies = await following
        assert replies is not None
        assert [type(reply) for reply in replies] == [Head, Head]
    gateway = Gateway(swept.owner)
    gateway.entries[1] = []
    await create_programs(dsn, ["new"])
    (entry,) = await gateway.until(1, 1)
    assert orjson.loads(entry.params)["program"]["id"] == "new"


async def test_topic_that_is_swept_while_it_is_read_again_ends_nothing(dsn: str) -> None:
    class SweptHistory(History):
        async def heads(self, programs: Collection[ProgramKey]) -> dict[ProgramKey, HeadRow]:
            heads = await super().heads(programs)
            clock.ahead_s += LINGER_S
            topics.sweep()
            return heads

    key, clock, order = ("demo", "p"), MovedClock(), asyncio.Lock()
    database = await Database.open(dsn, size=1, timeout_s=5)
    try:
        topics = Topics(SweptHistory(database), order, clock, LogLimits(), LINGER_S)
        with Hold() as hold:
            await topics.load([key], hold)
        async with order:
            await topics.resync([key])
        assert len(topics) == 0
    finally:
        await database.close()


async def test_topic_that_nobody_followed_in_the_end_is_swept(swept: Swept, dsn: str) -> None:
    async with swept_while_loading(swept, dsn, Follow(1, P, None)) as following:
        await following
    swept.owner.leave("gateway")
    swept.clock.ahead_s += LINGER_S
    async with asyncio.timeout(10):
        while _topics(swept.owner):  # noqa: ASYNC110 - the sweep tells nobody
            await asyncio.sleep(0.01)


async def test_topic_that_another_load_brings_is_kept_while_this_one_reads(dsn: str) -> None:
    """It comes between the look at memory and the read: what loaded it does not hold it any more."""

    class SweptHistory(History):
        async def heads(self, programs: Collection[ProgramKey]) -> dict[ProgramKey, HeadRow]:
            heads = await super().heads(programs)
            if second in programs:
                clock.ahead_s += LINGER_S
                topics.sweep()
            return heads

    async def load(*keys: ProgramKey) -> set[ProgramKey]:
        with Hold() as hold:
            return set(await topics.load(keys, hold))

    first, second, clock, order = ("demo", "p"), ("demo", "q"), MovedClock(), asyncio.Lock()
    database = await Database.open(dsn, size=1, timeout_s=5)
    try:
        topics = Topics(SweptHistory(database), order, clock, LogLimits(), LINGER_S)
        await order.acquire()
        loads = [asyncio.create_task(load(first)), asyncio.create_task(load(first, second))]
        await asyncio.sleep(0)  # both have looked, and wait for the lock in this order
        order.release()
        assert await asyncio.gather(*loads) == [{first}, {first, second}]
    finally:
        await database.close()
