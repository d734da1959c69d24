"""Gateways without their sockets, over real links: each follows an owner or a relay, and relays if asked.

Owner and relays listen as in the product. Between a relay and its followers is a wire that can be cut or
stalled.
"""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from broker.actors.link import ActorLink, LinkLost
from broker.clock import SystemClock
from broker.domain.relays import choose_relays, rank_relays
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS, SESSION_CALLS, SessionCalls
from broker.owners.linked_feed import LinkedFeed
from broker.owners.log import LogLimits
from broker.owners.owner import Owner
from broker.owners.protocol import Entry, EntryKind, program_topic
from broker.owners.relay import Relay
from broker.owners.upstreams import OwnRelay, Upstreams
from broker.rpc.calls import Calls
from broker.rpc.connection import Connection, open_connection
from broker.rpc.listener import Listener
from broker.rpc.wire import Address
from broker.settings import Settings
from tests.adversity.proxy import Proxy

HOST = "127.0.0.1"
CLOCK = SystemClock()
SETTINGS = Settings(owners=1, database_pool=4, publish_timeout_s=20.0, history_events=50)
TOPIC = program_topic("demo", "p")


class OwnerProcess:
    """The owner of slot 0 where it listens, until another takes its place."""

    def __init__(self, dsn: str) -> None:
        self.owner: Owner
        self._dsn = dsn
        self._listener: Listener[Any] | None = None

    async def start(self) -> None:
        self.owner = await Owner.start(SETTINGS, self._dsn, 0)
        called = {name: _awaited(getattr(self.owner, name, None)) for name in OWNER_CALLS.methods}
        self._listener = Listener(HOST, OWNER_CALLS, SimpleNamespace(**called))

    async def address(self) -> Address:
        if self._listener is None:
            raise ValueError("no owner runs")
        return await self._listener.address()

    async def stop(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()
            await self.owner.close()


class WatchedLink(ActorLink):
    """A link as the product has it, to whom an address is known; keeps the names of what was called.

    While `is_down` nothing gets through; else calls, or what they bring, are lost with the chance `loss`.
    """

    def __init__(self, address: Callable[[], Awaitable[Address]], calls: Calls[Any]) -> None:
        super().__init__(calls)
        self.called: list[str] = []
        self.loss = 0.0
        self.is_down = False
        self._address = address
        self._random = random.Random(0)

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        self.called.append(method)
        await self._lose(method)
        reply = await super().call(method, *arguments, timeout_s=timeout_s)
        await self._lose(method)
        return reply

    def lose(self, loss: float, seed: int) -> None:
        """Lose with this chance from now on."""
        self.loss = loss
        self._random.seed(seed)

    async def _lose(self, method: str) -> None:
        if self.is_down or self._random.random() < self.loss:
            await asyncio.sleep(0.001)
            raise LinkLost(method)

    async def _dial(self) -> Connection:
        return await open_connection(await self._address(), self._calls, self.close)


class Member:
    """One gateway."""

    def __init__(self, fleet: "Fleet", name: str, relay_from: int, limits: LogLimits | None) -> None:
        self.name = name
        self.told: dict[str, list[Entry]] = {}
        self.heard = asyncio.Event()
        self.relay_link = WatchedLink(fleet.process.address, OWNER_CALLS)
        self.relay = Relay(SETTINGS, CLOCK, IdSource(CLOCK), [self.relay_link], limits=limits)
        self._listener: Listener[SessionCalls] = Listener(HOST, SESSION_CALLS, self.relay)
        self.wire = Proxy(self._connect, random.Random(0))
        self.owner_link = WatchedLink(fleet.process.address, OWNER_CALLS)
        self.links: dict[str, WatchedLink] = {}
        self.loss, self.seed = 0.0, 0
        self._fleet = fleet
        self._at: Address | None = None
        self.upstreams = Upstreams(name, relay_from, CLOCK, self._open_link, OwnRelay(self.relay))
        self.feed = LinkedFeed(
            SETTINGS, CLOCK, IdSource(CLOCK), self._hear, [self.owner_link], upstreams=self.upstreams
        )

    @property
    def pushed(self) -> list[int]:
        """The numbers of the program's pushes that came."""
        return [entry.seq for entry in self.told.get(TOPIC, ()) if entry.kind == EntryKind.PUSH]

    async def start(self) -> None:
        self._at = await self._listener.address()
        await self.wire.open()

    async def until(self, is_enough: Callable[[], bool]) -> None:
        """Return when what was heard is enough."""
        async with asyncio.timeout(30):
            while not is_enough():
                self.heard.clear()
                await self.heard.wait()

    async def until_told(self, count: int, topic: str = TOPIC) -> list[Entry]:
        """The entries of a topic when there are so many."""
        await self.until(lambda: len(self.told.get(topic, ())) >= count)
        return self.told[topic]

    async def until_relayed(self, seq: int) -> None:
        """Return when its relay has the program up to a number."""
        async with asyncio.timeout(30):
            while (position := self.relay._feed.position(TOPIC)) is None or position.seq < seq:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def until_called(self, relay: "Member", method: str, times: int) -> None:
        """Return when it has asked a relay so often."""
        async with asyncio.timeout(30):
            while self.links[relay.name].called.count(method) < times:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)

    def lose(self, loss: float, seed: int) -> None:
        """Have its links lose calls and replies, those that are made later too."""
        self.loss, self.seed = loss, seed
        for link in (self.relay_link, self.owner_link, *self.links.values()):
            link.lose(loss, seed)

    async def address(self) -> Address:
        """Where it relays, through the wire."""
        assert self._at is not None, "it was started"
        return self._at._replace(port=self.wire.port)

    async def die(self) -> None:
        """End what others follow, as the end of the process does."""
        await self.wire.close()
        await self._listener.close()

    async def close(self) -> None:
        await self.feed.close()
        await self.die()
        await self.relay.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._at is not None, "it was started"
        return await asyncio.open_connection(self._at.host, self._at.port)

    def _open_link(self, name: str) -> WatchedLink:
        link = self.links[name] = WatchedLink(self._fleet.members[name].address, SESSION_CALLS)
        link.lose(self.loss, self.seed)
        return link

    def _hear(self, topic: str, entries: Sequence[Entry]) -> None:
        self.told.setdefault(topic, []).extend(entries)
        self.heard.set()


class Fleet:
    """Some gateways and their owner. `follower` follows `first` and, when that fails, `second`."""

    def __init__(self, process: OwnerProcess) -> None:
        self.process = process
        self.members: dict[str, Member] = {}

    @property
    def relays(self) -> list[Member]:
        return [self.members[name] for name in choose_relays(self.members.keys(), 1)]

    @property
    def follower(self) -> Member:
        """A gateway that is no relay."""
        relays = self.relays
        return next(member for member in self.members.values() if member not in relays)

    @property
    def first(self) -> Member:
        return self.members[self._order()[0]]

    @property
    def second(self) -> Member:
        return self.members[self._order()[1]]

    def learn(self, names: Collection[str] | None = None, leaving: Collection[str] = ()) -> None:
        """Have all gateways read the list."""
        for member in self.members.values():
            member.upstreams.learn(self.members.keys() if names is None else names, leaving)

    def _order(self) -> list[str]:
        return rank_relays(self.follower.name, [member.name for member in self.relays])


@asynccontextmanager
async def open_fleet(
    dsn: str, count: int = 3, *, relay_from: int = 1, limits: LogLimits | None = None, is_known: bool = True
) -> AsyncIterator[Fleet]:
    """A fleet, whose gateways know of each other unless that is left to the caller."""
    process = OwnerProcess(dsn)
    await process.start()
    fleet = Fleet(process)
    for number in range(count):
        name = f"gateway-{number}"
        fleet.members[name] = Member(fleet, name, relay_from, limits)
        await fleet.members[name].start()
    if is_known:
        fleet.learn()
    try:
        yield fleet
    finally:
        await asyncio.gather(*(member.feed.close() for member in fleet.members.values()))
        for member in fleet.members.values():
            await member.close()
        await process.stop()
        for _ in range(3):
            await asyncio.sleep(0)  # what is closed has ended after some turns


def _awaited(method: Callable[..., Any] | None) -> Callable[..., Awaitable[Any]]:
    """A method as links call it: awaited, whether or not the owner's own is. What it has not answers None."""

    async def call(*arguments: object) -> Any:
        found = None if method is None else method(*arguments)
        return await found if inspect.isawaitable(found) else found

    return call
