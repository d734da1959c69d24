"""Gateways that follow a relay in place of the owner: what they get, and where they go when it fails them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker.clock import SystemClock
from broker.concurrency.back_off import Backoff
from broker.domain.programs import Access
from broker.domain.relays import choose_relays, rank_relays
from broker.errors import BrokerError, NotFound, Unavailable
from broker.owners import relay as relays
from broker.owners import upstreams
from broker.owners.calls import SESSION_CALLS
from broker.owners.commands import DeleteProgram, UpdateProgram
from broker.owners.encoding import find_traces, message_id, parse_attributes, trace_entry
from broker.owners.log import LogLimits
from broker.owners.protocol import (
    PROGRAMS_CHANNEL,
    Cursor,
    Entry,
    EntryKind,
    Head,
    channel_topic,
    program_topic,
)
from broker.owners.relay import Relay
from broker.owners.sessions import EntryBatch, Follow, PollReply
from broker.owners.upstreams import Upstreams
from broker.rpc.connection import ConnectionEnded, open_connection
from tests.owners.fleet import TOPIC, Fleet, Member, open_fleet
from tests.owners.support import ask, create_programs, delete_all, ids, publish, published
from tests.owners.test_losses import replaced, take_back
from tests.owners.test_traces import CONTEXT

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CHANNEL = channel_topic("demo", PROGRAMS_CHANNEL)
SESSION = {"open", "follow", "poll"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has gone to the owner comes back soon, but not before it has heard from it."""
    monkeypatch.setattr(upstreams, "_DIRECT", Backoff(1.0, 1.0, jitter=0))


@pytest.fixture
async def fleet(dsn: str) -> AsyncIterator[Fleet]:
    async with open_fleet(dsn) as fleet:
        yield fleet


def sessions_at(member: Member) -> set[str]:
    """Which calls of sessions a gateway has made to its owner itself."""
    return SESSION & set(member.owner_link.called)


@asynccontextmanager
async def events(fleet: Fleet) -> AsyncIterator[None]:
    """Events flow inside the block."""
    over = asyncio.Event()

    async def produce() -> None:
        while not over.is_set():
            try:
                await ask(fleet.process.owner, publish())
            except Unavailable:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)

    task = asyncio.create_task(produce())
    try:
        yield
    finally:
        over.set()
        await task


class StandingClock(SystemClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class NamedWay:
    """A link to nobody."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        raise AssertionError(method)

    def close(self) -> None:
        self.is_closed = True


class HandedOver:
    """Keeps the names of traces that come with entries."""

    def __init__(self) -> None:
        self.traces: list[str] = []

    @contextmanager
    def handed_over(self, _topic: str, entries: Sequence[Entry]) -> Iterator[None]:
        self.traces += find_traces(entries)
        yield


def cursor_at(entries: Sequence[Entry], seq: int) -> Cursor:
    """Of who has taken the pushes up to a number."""
    (entry,) = (entry for entry in entries if entry.seq == seq)
    return Cursor(entry.epoch, seq, message_id(entry.params))


async def follow_at(relay: Relay, cursor: Cursor | None) -> Head | BrokerError:
    """What somebody else is answered who goes on there."""
    replies = await relay.open("other", [Follow(1, TOPIC, cursor)])
    assert isinstance(replies, list)
    (reply,) = replies
    return reply


async def judge(fleet: Fleet, *members: Member) -> None:
    """Nothing was lost, doubled or out of order on the way; what was not acknowledged may be there."""
    (event,) = await published(fleet.process.owner, publish())
    for member in members:
        await until(lambda: event["seq"] in member.pushed)  # noqa: B023 - awaited at once
        assert member.pushed == list(range(1, event["seq"] + 1))


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def until_pushed(member: Member, more: int) -> None:
    """Return when so many more have come."""
    wanted = len(member.pushed) + more
    await member.until(lambda: len(member.pushed) >= wanted)


async def test_followers_get_what_the_owner_sends_and_ask_it_nothing(fleet: Fleet, dsn: str) -> None:
    heads = [await member.feed.follow(TOPIC) for member in fleet.members.values()]
    direct = Member(fleet, "direct", 0, None)
    assert [await direct.feed.follow(TOPIC)] * 3 == heads
    await ask(fleet.process.owner, publish(count=3))
    await ask(fleet.process.owner, UpdateProgram(ids.uuid7(), "demo", "p", {"access": Access.PRIVATE}))
    await ask(fleet.process.owner, delete_all())
    await ask(fleet.process.owner, publish())
    told = await direct.until_told(6)
    assert [entry.kind for entry in told] == [
        EntryKind.PUSH, EntryKind.PUSH, EntryKind.PUSH, EntryKind.ATTRIBUTES, EntryKind.RESET, EntryKind.PUSH,
    ]  # fmt: skip
    for member in fleet.members.values():
        assert await member.until_told(6) == told
        assert sessions_at(member) == set()
    followed = [member for member in fleet.members.values() if member.relay_link.called]
    assert followed == fleet.relays
    assert len(fleet.relays) == 2
    await direct.close()


async def test_owner_feeds_relays_only_and_each_once(fleet: Fleet) -> None:
    """The clients of a relay's own process are fed by it, too."""
    for member in fleet.members.values():
        await member.feed.follow(TOPIC)
    assert len(fleet.process.owner._sessions) == len(fleet.relays)


async def test_relay_that_dies_is_left_and_nothing_is_lost_or_doubled(fleet: Fleet) -> None:
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    async with events(fleet):
        await until_pushed(follower, 20)
        await fleet.first.die()
        await until_pushed(follower, 20)
        assert "open" in fleet.follower.links[fleet.second.name].called
        await fleet.second.die()
        await until_pushed(follower, 20)
        assert sessions_at(follower) == {"open", "poll"}
    await judge(fleet, follower)


async def test_relay_that_hangs_is_left_and_nothing_is_lost_or_doubled(fleet: Fleet) -> None:
    """It accepts connections and answers nothing."""
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    async with events(fleet):
        await until_pushed(follower, 20)
        async with fleet.first.wire.stalled():
            stalled_at = (await published(fleet.process.owner, publish()))[0]["seq"]
            await follower.until(lambda: stalled_at in follower.pushed)
            assert "open" in follower.links[fleet.second.name].called
    await judge(fleet, follower)


async def test_relays_that_drain_are_left_by_their_followers(fleet: Fleet) -> None:
    """The one gateway that is left is a relay then, and follows itself."""
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    fleet.learn(leaving=[member.name for member in fleet.relays])
    async with events(fleet):
        await follower.until(lambda: "poll" in follower.relay_link.called)
        await until_pushed(follower, 5)
    await judge(fleet, follower)


async def test_gateways_begin_to_follow_relays_without_a_gap(dsn: str) -> None:
    """When there are enough of them, while events flow; and stop when there are too few."""
    async with open_fleet(dsn, 4, relay_from=4, is_known=False) as fleet:
        members, last = fleet.members.values(), list(fleet.members)[-1]
        fleet.learn([name for name in fleet.members if name != last])
        for member in members:
            await member.feed.follow(TOPIC)
            assert sessions_at(member) == {"open", "follow", "poll"}
        async with events(fleet):
            await asyncio.gather(*(until_pushed(member, 5) for member in members))
            fleet.learn()
            await until(lambda: sum(member.relay.sessions for member in members) == len(members))
            assert len(fleet.process.owner._sessions) == len(fleet.relays)
            await asyncio.gather(*(until_pushed(member, 5) for member in members))
            fleet.learn(leaving=[last])
            await until(lambda: sum(member.relay.sessions for member in members) == 0)
            await asyncio.gather(*(until_pushed(member, 5) for member in members))
        await judge(fleet, *members)


async def test_owner_is_exchanged_behind_a_relay_and_nobody_notices(fleet: Fleet) -> None:
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    called = len(follower.links[fleet.first.name].called)
    async with events(fleet):
        await until_pushed(follower, 10)
        for _ in range(2):
            await fleet.process.stop()
            await fleet.process.start()
            await until_pushed(follower, 10)
    await judge(fleet, follower)
    assert set(follower.links[fleet.first.name].called[called:]) == {"poll"}
    assert sessions_at(follower) == set()


@pytest.mark.parametrize("seed", range(3))
async def test_lost_calls_and_replies_are_made_up_for(
    fleet: Fleet, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both ways, so that gateways go from relay to relay, to the owner, and back."""
    monkeypatch.setattr(upstreams, "AVOIDED_S", 0.01)
    for member in fleet.members.values():
        member.lose(0.1, seed)
    for member in fleet.members.values():
        await member.feed.follow(TOPIC)
    async with events(fleet):
        await asyncio.gather(*(until_pushed(member, 100) for member in fleet.members.values()))
    await judge(fleet, *fleet.members.values())


async def test_history_that_was_lost_is_told_behind_a_relay(fleet: Fleet, dsn: str) -> None:
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    await ask(fleet.process.owner, publish(count=5))
    await follower.until_told(5)
    await fleet.process.stop()
    await take_back(dsn, 3)
    await fleet.process.start()
    (reset,) = (await follower.until_told(6))[5:]
    assert replaced(reset, follower.told[TOPIC][0].epoch, 3)
    await ask(fleet.process.owner, publish())
    entry = (await follower.until_told(7))[-1]
    assert (entry.kind, entry.epoch, entry.seq) == (EntryKind.PUSH, reset.epoch, 4)
    assert sessions_at(follower) == set()


async def test_relay_goes_on_only_from_what_it_knows(fleet: Fleet) -> None:
    """Who has heard the next owner, or one that told others under these numbers, is for the owner."""
    relay, follower = fleet.first.relay, fleet.follower
    await follower.feed.follow(TOPIC)
    await ask(fleet.process.owner, publish(count=5))
    third = cursor_at(await follower.until_told(5), 3)
    here = follower.feed.position(TOPIC)
    assert here is not None
    for cursor in (here, third, replace(here, id=""), replace(third, uid=here.uid)):
        reply = await follow_at(relay, cursor)
        assert isinstance(reply, Head)
        assert (reply.epoch, reply.seq, reply.id) == (cursor.epoch, cursor.seq, cursor.id)
    for cursor in (
        replace(here, seq=6),
        replace(here, id=ids.uuid7()),
        replace(third, id=ids.uuid7()),
        replace(here, epoch="another"),
        replace(here, uid=here.uid + 1),
        replace(third, seq=0),
    ):
        assert isinstance(await follow_at(relay, cursor), Unavailable)


async def test_program_that_is_deleted_ends_for_who_follows_a_relay(fleet: Fleet, dsn: str) -> None:
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    await ask(fleet.process.owner, DeleteProgram(ids.uuid7(), "demo", "p"))
    (gone,) = await follower.until_told(1)
    assert (gone.kind, gone.method) == (EntryKind.GONE, "programDeleted")
    with pytest.raises(NotFound):
        await follower.feed.follow(TOPIC)
    await create_programs(dsn, ["p"])
    assert (await follower.feed.follow(TOPIC)).seq == 0
    await ask(fleet.process.owner, publish())
    assert (await follower.until_told(2))[1].kind == EntryKind.PUSH
    assert sessions_at(follower) == set()


async def test_rights_of_a_private_program_are_those_of_its_owner(fleet: Fleet) -> None:
    await ask(fleet.process.owner, UpdateProgram(ids.uuid7(), "demo", "p", {"access": Access.PRIVATE}))
    head = await fleet.follower.feed.follow(TOPIC)
    assert head.attributes.public is False
    await ask(fleet.process.owner, UpdateProgram(ids.uuid7(), "demo", "p", {"access": Access.PUBLIC}))
    (entry,) = await fleet.follower.until_told(1)
    assert parse_attributes(entry.params).public is True
    late = await follow_at(fleet.first.relay, None)
    assert isinstance(late, Head)
    assert late.attributes.public is True


async def test_channel_goes_through_a_relay_and_on_at_the_owner(fleet: Fleet, dsn: str) -> None:
    follower = fleet.follower
    await follower.feed.follow(CHANNEL)
    await create_programs(dsn, ["x", "y"])
    fleet.process.owner.nudge("demo")
    await follower.until_told(2, CHANNEL)
    assert sessions_at(follower) == set()
    await fleet.first.die()
    await fleet.second.die()
    await create_programs(dsn, ["z"])
    fleet.process.owner.nudge("demo")
    await follower.until_told(3, CHANNEL)
    assert sessions_at(follower) == {"open", "poll"}
    fleet.learn(leaving=[member.name for member in fleet.relays])
    told = [orjson.loads(entry.params)["program"]["id"] for entry in follower.told[CHANNEL]]
    assert told == ["x", "y", "z"]


async def test_histories_and_heads_are_asked_of_the_owner(fleet: Fleet) -> None:
    follower = fleet.follower
    head = await follower.feed.follow(TOPIC)
    await ask(fleet.process.owner, publish(count=3))
    entries = await follower.feed.history(TOPIC, head.epoch, 1, 10)
    assert [entry.seq for entry in entries] == [2, 3]
    seen: dict[str, Head] = {}
    await follower.feed.ask_heads([TOPIC], seen.__setitem__)
    assert seen[TOPIC].seq == 3
    assert follower.owner_link.called == ["history", "heads"]


async def test_follower_that_falls_behind_the_log_goes_on_at_the_owner(dsn: str) -> None:
    async with open_fleet(dsn, limits=LogLimits(entries=2)) as fleet:
        follower = fleet.follower
        await follower.feed.follow(TOPIC)
        async with fleet.first.wire.stalled():  # for less than it takes to be given up
            for _ in range(8):
                await ask(fleet.process.owner, publish())
            await fleet.first.until_relayed(8)
        await follower.until(lambda: len(follower.pushed) >= 8)
        assert follower.pushed == list(range(1, 9))
        assert "open" in follower.owner_link.called
        async with events(fleet):
            await follower.until_called(fleet.first, "open", 2)


async def test_relay_that_does_not_reach_the_owner_is_left(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = fleet.follower
    await follower.feed.follow(TOPIC)
    for relay in fleet.relays:
        relay.relay_link.is_down = True
    await fleet.first.relay.look()
    assert fleet.first.relay.sessions > 0
    monkeypatch.setattr(relays, "_LOST_S", 0.0)
    await fleet.first.relay.look()
    assert fleet.first.relay.sessions == 0
    await ask(fleet.process.owner, publish())
    assert [entry.seq for entry in await follower.until_told(1)] == [1]
    assert "poll" in follower.owner_link.called


async def test_topics_that_a_relay_refuses_together_are_followed_at_the_owner_together(
    fleet: Fleet, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One refusal is enough to go there: by each further one it would stay away from the relay for longer."""
    topics = [program_topic("demo", f"refused-{number}") for number in range(20)]
    await create_programs(dsn, [topic.rpartition("/")[2] for topic in topics])
    member = fleet.first  # whose relay is in its own process, so that replies come all at once
    await member.relay.open("other", [Follow(number, topic, None) for number, topic in enumerate(topics)])
    monkeypatch.setattr(relays, "_LOST_S", -1.0)
    refused = 0
    refuse = upstreams.SessionRoute.refused

    def count(route: upstreams.SessionRoute) -> None:
        nonlocal refused
        refused += route.is_relayed
        refuse(route)

    monkeypatch.setattr(upstreams, "_DIRECT", Backoff(1e6, 1e6, jitter=0))
    monkeypatch.setattr(upstreams.SessionRoute, "refused", count)
    await asyncio.gather(*(member.feed.follow(topic) for topic in topics))
    assert refused == 1


async def test_topic_that_nobody_follows_is_forgotten(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = fleet.first
    await fleet.follower.feed.follow(TOPIC)
    await fleet.follower.feed.unfollow(TOPIC)
    await relay.relay.sweep()
    assert relay.relay_link.called.count("unfollow") == 0
    monkeypatch.setattr(relays, "LINGER_S", 0.0)
    await relay.relay.sweep()
    assert relay.relay_link.called.count("unfollow") == 1
    assert (await fleet.follower.feed.follow(TOPIC)).seq == 0


async def test_stranger_is_let_in_to_no_relay(fleet: Fleet) -> None:
    address = await fleet.first.address()
    with pytest.raises(ConnectionEnded):
        await open_connection(address._replace(secret=bytes(32)), SESSION_CALLS)


async def test_relay_takes_no_commands_and_reads_no_histories() -> None:
    assert SESSION_CALLS.methods == {"open", "follow", "unfollow", "poll", "leave"}


async def test_relay_takes_so_many_sessions_and_no_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_MOST_SESSIONS", 1)
    relay = fleet.first.relay
    assert await relay.open("one", []) == []
    assert isinstance(await relay.open("two", []), Unavailable)
    assert await relay.open("one", []) == []
    await relay.leave("one")
    assert await relay.open("two", []) == []


async def test_names_of_traces_are_sent_on(fleet: Fleet) -> None:
    """As an entry that says of the topic what is known already."""
    follower, seen = fleet.follower, HandedOver()
    follower.feed.follow_traces(seen)
    await follower.feed.follow(TOPIC)
    relay = fleet.first.relay
    head = await follow_at(relay, None)
    assert isinstance(head, Head)
    traced = trace_entry(head.epoch, head.seq, head.attributes, CONTEXT)
    push = Entry(EntryKind.PUSH, head.epoch, 1, "event", b"{}")
    relay._feed._polls[0]._take(PollReply(1, [EntryBatch(1, head.epoch, 1, [traced, push])]))
    assert await follower.until_told(1) == [push]
    assert seen.traces == [CONTEXT]


def test_list_that_is_empty_for_a_moment_changes_nothing() -> None:
    """As after a crash of the database; who drains counts no more at once."""
    clock = StandingClock()
    upstream = Upstreams("me", 3, clock, NamedWay, NamedWay("me"))
    upstream.learn(["me", "a", "b"])
    best = upstream.best()
    assert best is not None
    upstream.learn([])
    clock.now_s += upstreams.KEPT_S - 1
    upstream.learn(["a"])
    assert upstream.best() is best
    clock.now_s += 1
    upstream.learn(["a"])
    assert upstream.best() is None
    upstream.learn(["me", "a", "b"])
    assert upstream.best() is not None
    upstream.learn(["me", "a"], leaving=["b"])
    assert upstream.best() is None


def test_links_to_former_relays_are_closed_when_their_polls_are_over() -> None:
    clock, ways = StandingClock(), list[NamedWay]()

    def open_way(name: str) -> NamedWay:
        ways.append(NamedWay(name))
        return ways[-1]

    upstream = Upstreams("me", 3, clock, open_way, NamedWay("me"))
    for number in range(20):
        now, before = ([f"{turn}-{each}" for each in range(3)] for turn in (number, number - 1))
        upstream.learn(now, before)
        upstream.best()
        assert [way for way in ways if way.is_closed] == []
    clock.now_s += 60
    upstream.learn(["0-0"])
    assert [way.is_closed for way in ways] == [True] * 19 + [False]
    upstream.close()
    assert ways[-1].is_closed


def test_relay_that_failed_is_tried_again_later() -> None:
    clock = StandingClock()
    names = [f"gateway-{number}" for number in range(30)]
    relays = choose_relays(names, 1)
    me = next(name for name in names if name not in relays)
    upstream = Upstreams(me, 1, clock, NamedWay, NamedWay("me"))
    upstream.learn(names)
    order: list[str] = []
    while isinstance(best := upstream.best(), NamedWay):
        order.append(best.name)
        upstream.avoid(best)
    assert order == rank_relays(me, relays)[:3]
    clock.now_s += upstreams.AVOIDED_S
    best = upstream.best()
    assert isinstance(best, NamedWay)
    assert best.name == order[0]
