"""What feeding gateways costs an owner, and following an owner a gateway: two processes, links between them.

The gateways that follow are as many `LinkedFeed`s of this process, each with a connection of its own and a
sink that counts; native logs and sockets are not in it, nor is another node's network.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import uvloop

from bench.child import Child
from bench.contenders import ROOT
from broker.actors.link import LinkLost
from broker.clock import SystemClock
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS
from broker.owners.linked_feed import LinkedFeed
from broker.owners.protocol import Entry, program_topic
from broker.rpc.connection import Connection, ConnectionEnded, open_connection
from broker.rpc.wire import Address
from broker.settings import Settings

TOPIC = program_topic("bench", "p")
INTERVAL_US = 5_000
"""Between events, so that each is polled for by itself."""
WARM_UP = 50
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Feeding:
    """CPU in µs: of the owner an event, with all that follow; of one that follows an event."""

    owner_us: float
    follow_us: float


def measure_medians(followers: Sequence[int], events: int, runs: int) -> list[Feeding]:
    """What each of these numbers of gateways costs: medians of runs in turns. Raises as a run does."""
    gathered = [[measure_feeding(count, events) for count in followers] for _ in range(runs)]
    return [
        Feeding(median(one.owner_us for one in turns), median(one.follow_us for one in turns))
        for turns in zip(*gathered, strict=True)
    ]


def measure_feeding(followers: int, events: int) -> Feeding:
    """Publish `events` single events to an owner whom `followers` gateways follow.

    Raises:
        ChildError: the owner has failed.
        TimeoutError: an event did not reach all that follow.
    """
    with Child([sys.executable, "-m", "bench.capacity.owner_child"], ROOT) as owner:
        at = owner.receive()
        address = Address(at["host"], at["port"], bytes.fromhex(at["secret"]))
        return uvloop.run(_measure(owner, address, followers, events))


async def _measure(owner: Child, address: Address, followers: int, events: int) -> Feeding:
    clock, crowd = SystemClock(), _Crowd()
    feeds = []
    for _ in range(followers):
        link = _Direct(await open_connection(address, OWNER_CALLS))
        feeds.append(LinkedFeed(Settings(), clock, IdSource(clock), crowd.take, [link]))
    try:
        await asyncio.gather(*(feed.follow(TOPIC) for feed in feeds))
        await _publish(owner, crowd, WARM_UP, followers)
        before_s = time.process_time()
        owner_s = await _publish(owner, crowd, events, followers)
        follow_s = time.process_time() - before_s
    finally:
        await asyncio.gather(*(feed.close() for feed in feeds))
    return Feeding(owner_s / events * 1e6, follow_s / events / followers * 1e6)


async def _publish(owner: Child, crowd: "_Crowd", events: int, followers: int) -> float:
    """Have so many events published; returns the owner's CPU seconds once all that follow have them."""
    wanted = crowd.count + events * followers
    owner.send(f"{events} {INTERVAL_US}")
    answer = await asyncio.to_thread(owner.receive)
    async with asyncio.timeout(DEADLINE_S):
        await crowd.until(wanted)
    return float(answer["cpu_s"])


class _Crowd:
    """Counts what all sinks take."""

    def __init__(self) -> None:
        self.count = 0
        self._grew = asyncio.Event()

    def take(self, _topic: str, entries: Sequence[Entry]) -> None:
        self.count += len(entries)
        self._grew.set()

    async def until(self, count: int) -> None:
        while self.count < count:
            self._grew.clear()
            await self._grew.wait()


class _Direct:
    """The way to an owner whose address is known."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call the owner. Raises LinkLost."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection.call(method, *arguments)
        except (ConnectionEnded, TimeoutError) as error:
            raise LinkLost(method) from error

    def close(self) -> None:
        """End the connection."""
        self._connection.end()
