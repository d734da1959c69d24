"""The client and the feed over links that lose calls and answers, with owners that are replaced meanwhile."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from broker.actors.link import LinkLost
from broker.clock import SystemClock
from broker.errors import BrokerError, NotFound, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.owners.commands import DeleteProgram
from broker.owners.linked_feed import LinkedFeed
from broker.owners.linked_owners import LinkedOwners
from broker.owners.owner import Owner
from broker.owners.protocol import Cursor, Entry, EntryKind, HistoryLost, program_topic
from broker.settings import Settings
from tests.owners.packed import call_packed
from tests.owners.support import create_programs, delete_all, fetch, ids, publish_rows, row

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = Settings(owners=1, database_pool=4, publish_timeout_s=20.0, history_events=50)
CLOCK = SystemClock()
TOPIC = program_topic("demo", "p")


class BadLink:
    """Calls an owner in this process; loses calls on the way there, or answers on the way back.

    What is not lost goes as bytes, as over a connection.
    """

    def __init__(self, dsn: str, seed: int = 0, loss: float = 0.0) -> None:
        self.owner: Owner | None = None
        self.calls: list[str] = []
        self.loss = loss
        self.is_down = False
        self.was_sent = True
        self._dsn = dsn
        self._random = random.Random(seed)

    async def replace(self) -> None:
        """The owner is gone, and another one takes its slot."""
        old, self.owner = self.owner, await Owner.start(SETTINGS, self._dsn, 0)
        if old is not None:
            await old.close()

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        self.calls.append(method)
        owner = self.owner
        if self.is_down or owner is None or self._random.random() < self.loss:
            await asyncio.sleep(0.001)
            raise LinkLost(method, was_sent=self.was_sent)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await call_packed(owner, method, arguments)
        except TimeoutError as error:
            raise LinkLost(method) from error
        if self.is_down or self._random.random() < self.loss or owner is not self.owner:
            raise LinkLost(method)
        return reply

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def link(dsn: str) -> AsyncIterator[BadLink]:
    link = BadLink(dsn)
    await link.replace()
    yield link
    assert link.owner is not None
    await link.owner.close()


class Listener:
    def __init__(self, link: BadLink) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.heard = asyncio.Event()
        self.feed = LinkedFeed(SETTINGS, CLOCK, IdSource(CLOCK), self.hear, [link])

    def hear(self, topic: str, entries: Sequence[Entry]) -> None:
        self.entries.setdefault(topic, []).extend(entries)
        self.heard.set()

    async def until(self, count: int, topic: str = TOPIC) -> list[Entry]:
        async with asyncio.timeout(30):
            while len(self.entries.get(topic, ())) < count:
                self.heard.clear()
                await self.heard.wait()
        return self.entries[topic]


@pytest.fixture
async def listener(link: BadLink) -> AsyncIterator[Listener]:
    listener = Listener(link)
    yield listener
    await listener.feed.close()


@pytest.fixture
async def owners(link: BadLink) -> AsyncIterator[LinkedOwners]:
    owners = LinkedOwners(SETTINGS, CLOCK, ids, [link])
    yield owners
    await owners.close()


@pytest.mark.parametrize("seed", range(3))
async def test_lost_calls_and_answers_are_made_up_for(
    link: BadLink, listener: Listener, owners: LinkedOwners, dsn: str, seed: int
) -> None:
    link._random.seed(seed)
    link.loss = 0.2
    topics = [program_topic("demo", name) for name in ("p", "q")]
    heads = await asyncio.gather(*(listener.feed.follow(topic) for topic in topics))
    assert [head.seq for head in heads] == [0, 0]

    async def produce(name: str) -> list[bytes]:
        return [(await owners.submit(publish_rows(name, [row()]))).events[0] for _ in range(15)]

    told = await asyncio.gather(produce("p"), produce("q"), produce("p"), link_replaced(link))
    for topic, published in zip(topics, ([*told[0], *told[2]], told[1]), strict=True):
        entries = await listener.until(len(published), topic)
        assert [entry.seq for entry in entries] == list(range(1, len(published) + 1))
        assert sorted(entry.params for entry in entries) == sorted(published)
    assert len(await fetch(dsn, "SELECT FROM events")) == 45


async def link_replaced(link: BadLink) -> None:
    await asyncio.sleep(0.2)
    await link.replace()


async def test_publishes_in_flight_share_the_next_call(link: BadLink, owners: LinkedOwners) -> None:
    link.calls.clear()
    await asyncio.gather(*(owners.submit(publish_rows("p", [row()])) for _ in range(100)))
    assert link.calls == ["submit"]


async def test_events_of_one_commit_share_a_poll(
    link: BadLink, listener: Listener, owners: LinkedOwners
) -> None:
    await listener.feed.follow(TOPIC)
    link.calls.clear()
    await asyncio.gather(*(owners.submit(publish_rows("p", [row()])) for _ in range(100)))
    await listener.until(100)
    assert link.calls.count("poll") <= 2  # the next one may have begun


async def test_what_happened_while_away_is_told(
    link: BadLink, listener: Listener, owners: LinkedOwners, dsn: str
) -> None:
    await listener.feed.follow(TOPIC)
    gone = program_topic("demo", "q")
    await listener.feed.follow(gone)
    link.is_down = True
    assert link.owner is not None
    direct = LinkedOwners(SETTINGS, CLOCK, ids, [OwnLink(link.owner)])
    await direct.submit(publish_rows("p", [row() for _ in range(60)]))
    await direct.submit(delete_all("p"))
    await direct.submit(publish_rows("p", [row()]))
    await direct.submit(DeleteProgram(ids.uuid7(), "demo", "q"))
    await create_programs(dsn, ["q"])
    await direct.close()
    await link.replace()
    link.is_down = False
    entries = (await listener.until(2))[-2:]
    assert [(entry.kind, entry.seq) for entry in entries] == [(EntryKind.RESET, 0), (EntryKind.PUSH, 1)]
    assert [entry.kind for entry in await listener.until(1, gone)] == [EntryKind.GONE]
    assert (await listener.feed.follow(gone)).seq == 0


class OwnLink:
    """A way to the owner that is always open."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        reply = getattr(self._owner, method)(*arguments)
        return await reply if asyncio.iscoroutine(reply) else reply

    def close(self) -> None:
        """Nothing is open."""


async def test_entries_never_come_before_the_head(listener: Listener, owners: LinkedOwners) -> None:
    """Publishing goes on while the topic is followed: the sink hears what is after the head."""
    stop = asyncio.Event()

    async def produce() -> None:
        while not stop.is_set():
            await owners.submit(publish_rows("p", [row()]))

    producing = asyncio.create_task(produce())
    for _ in range(10):
        head = await listener.feed.follow(TOPIC)
        assert TOPIC not in listener.entries
        entries = await listener.until(3)
        assert [entry.seq for entry in entries] == list(range(head.seq + 1, head.seq + 1 + len(entries)))
        await listener.feed.unfollow(TOPIC)
        listener.entries.clear()
    stop.set()
    await producing


async def test_cursor_within_the_limit_is_followed_and_beyond_it_lost(
    listener: Listener, owners: LinkedOwners
) -> None:
    accepted = await owners.submit(publish_rows("p", [row() for _ in range(51)]))
    epoch = orjson.loads(accepted.events[0])["epoch"]
    with pytest.raises(HistoryLost):
        await listener.feed.follow(TOPIC, Cursor(epoch, 0))
    with pytest.raises(HistoryLost):
        await listener.feed.follow(TOPIC, Cursor("other", 51))
    head = await listener.feed.follow(TOPIC, Cursor(epoch, 1))
    assert (head.epoch, head.seq) == (epoch, 1)
    assert [entry.seq for entry in await listener.until(50)] == list(range(2, 52))
    await listener.feed.unfollow(TOPIC)
    with pytest.raises(HistoryLost):
        await listener.feed.follow(TOPIC, Cursor(epoch, 52))


async def test_history_through_the_feed(listener: Listener, owners: LinkedOwners) -> None:
    accepted = await owners.submit(publish_rows("p", [row() for _ in range(3)]))
    epoch = orjson.loads(accepted.events[0])["epoch"]
    entries = await listener.feed.history(TOPIC, epoch, 1, 10)
    assert [entry.params for entry in entries] == accepted.events[1:]
    with pytest.raises(HistoryLost):
        await listener.feed.history(TOPIC, "other", 1, 10)
    with pytest.raises(NotFound):
        await listener.feed.history(program_topic("demo", "none"), epoch, 1, 10)


@pytest.mark.parametrize(("was_sent", "kind"), [(False, Unavailable), (True, OutcomeUnknown)])
async def test_owner_that_does_not_answer_may_have_done_what_it_was_sent(
    link: BadLink, was_sent: bool, kind: type[BrokerError]
) -> None:
    link.was_sent = was_sent
    settings = Settings(owners=1, publish_timeout_s=0.2)
    owners = LinkedOwners(settings, CLOCK, ids, [link])
    link.is_down = True
    try:
        with pytest.raises(Unavailable) as caught:
            await owners.submit(publish_rows("p", [row()]))
        assert (type(caught.value), caught.value.retry_after_s) == (kind, 1)
    finally:
        await owners.close()
    with pytest.raises(Unavailable) as caught:
        await owners.submit(publish_rows("p", [row()]))
    assert type(caught.value) is Unavailable


async def test_unfollow_while_following_ends_it(link: BadLink, listener: Listener) -> None:
    link.is_down = True
    following = asyncio.create_task(listener.feed.follow(TOPIC))
    again = asyncio.create_task(listener.feed.follow(TOPIC))
    await asyncio.sleep(0.01)
    await listener.feed.unfollow(TOPIC)
    link.is_down = False
    for task in (following, again):
        with pytest.raises(Unavailable):
            await task
    assert (await listener.feed.follow(TOPIC)).seq == 0
