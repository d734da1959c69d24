"""What feeding gateways costs an owner or a relay, and following a gateway: processes, links between them.

The gateways that follow are as many `LinkedFeed`s of this process, each with a connection of its own and a
sink that counts; the relays, if there are any, are a process together. Native logs and sockets are not in it,
nor is another node's network.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import uvloop

from bench.capacity.direct import Direct
from bench.child import Child
from bench.contenders import ROOT
from broker.actors.link import Link
from broker.clock import SystemClock
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS, SESSION_CALLS
from broker.owners.linked_feed import LinkedFeed
from broker.owners.protocol import Entry, program_topic
from broker.owners.upstreams import Upstreams
from broker.rpc.wire import Address
from broker.settings import Settings

TOPIC = program_topic("bench", "p")
INTERVAL_US = 5_000
"""Between events, so that each is polled for by itself."""
WARM_UP = 50
DEADLINE_S = 60.0
_SELF = "follower"


class Load(NamedTuple):
    """How many gateways follow, and by how many relays; 0 is by the owner."""

    followers: int
    relays: int = 0


@dataclass(frozen=True, slots=True)
class Feeding:
    """What feeding costs.

    Attributes:
        owner_us: CPU of the owner an event, with all that follow it.
        follow_us: CPU of one that follows an event.
        relay_us: CPU of one relay an event, with all that follow it; 0 without relays.
        last_ms: median of the times from the call that publishes an event until the last follower has it.
    """

    owner_us: float
    follow_us: float
    relay_us: float
    last_ms: float


def measure_medians(loads: Sequence[Load], events: int, runs: int) -> list[Feeding]:
    """What each of these loads costs: medians of runs in turns. Raises as a run does."""
    gathered = [[measure_feeding(load, events) for load in loads] for _ in range(runs)]
    return [
        Feeding(
            median(one.owner_us for one in turns),
            median(one.follow_us for one in turns),
            median(one.relay_us for one in turns),
            median(one.last_ms for one in turns),
        )
        for turns in zip(*gathered, strict=True)
    ]


def measure_feeding(load: Load, events: int) -> Feeding:
    """Publish `events` single events to an owner whom gateways follow.

    Raises:
        ChildError: the owner or the relays have failed.
        TimeoutError: an event did not reach all that follow.
    """
    with ExitStack() as stack:
        owner = stack.enter_context(Child([sys.executable, "-m", "bench.capacity.owner_child"], ROOT))
        at = owner.receive()
        address = Address(at["host"], at["port"], bytes.fromhex(at["secret"]))
        if not load.relays:
            return uvloop.run(_measure(owner, address, None, [], load, events))
        command = [sys.executable, "-m", "bench.capacity.relay_child", str(load.relays)]
        command += [address.host, str(address.port), at["secret"]]
        relays = stack.enter_context(Child(command, ROOT))
        listed = relays.receive()["relays"]
        addresses = [Address(host, port, bytes.fromhex(secret)) for host, port, secret in listed]
        return uvloop.run(_measure(owner, address, relays, addresses, load, events))


async def _measure(
    owner: Child,
    address: Address,
    relays: Child | None,
    relay_addresses: Sequence[Address],
    load: Load,
    events: int,
) -> Feeding:
    clock, crowd = SystemClock(), _Crowd()
    feeds = []
    for number in range(load.followers):
        link: Link = await Direct.open(address, OWNER_CALLS)
        upstreams = None
        if relay_addresses:
            relay: Link = await Direct.open(relay_addresses[number % len(relay_addresses)], SESSION_CALLS)
            upstreams = Upstreams(_SELF, 1, clock, _open_nobody, relay)
            upstreams.learn([_SELF])  # who is a relay itself follows the link that is given as its own
        feeds.append(LinkedFeed(Settings(), clock, IdSource(clock), crowd.take, [link], upstreams=upstreams))
    try:
        await asyncio.gather(*(feed.follow(TOPIC) for feed in feeds))
        await _publish(owner, crowd, WARM_UP, load.followers)
        relayed_s, before_s = _cpu_s(relays), time.process_time()
        owner_s, last_ms = await _publish(owner, crowd, events, load.followers)
        follow_s = time.process_time() - before_s
        relay_s = (_cpu_s(relays) - relayed_s) / max(1, load.relays)
    finally:
        await asyncio.gather(*(feed.close() for feed in feeds))
    each = 1e6 / events
    return Feeding(owner_s * each, follow_s * each / load.followers, relay_s * each, last_ms)


async def _publish(owner: Child, crowd: "_Crowd", events: int, followers: int) -> tuple[float, float]:
    """Have so many events published, and wait for all that follow.

    Returns:
        The owner's CPU seconds, and the median of the times until the last one had an event, in ms.
    """
    wanted, first = crowd.count + events * followers, crowd.newest + 1
    owner.send(f"{events} {INTERVAL_US}")
    answer = await asyncio.to_thread(owner.receive)
    async with asyncio.timeout(DEADLINE_S):
        await crowd.until(wanted)
    took = [crowd.last_s[first + turn] - began_s for turn, began_s in enumerate(answer["began_s"])]
    return float(answer["cpu_s"]), median(took) * 1e3


def _open_nobody(name: str) -> Link:
    raise AssertionError(f"{name} is not followed: there is one relay for each")


def _cpu_s(relays: Child | None) -> float:
    """CPU seconds that the relays have taken."""
    if relays is None:
        return 0.0
    relays.send(json.dumps("cpu"))
    return float(relays.receive()["cpu_s"])


class _Crowd:
    """Counts what all sinks take, and keeps when the last one has taken each event."""

    def __init__(self) -> None:
        self.count = 0
        self.newest = 0
        self.last_s: dict[int, float] = {}
        self._grew = asyncio.Event()

    def take(self, _topic: str, entries: Sequence[Entry]) -> None:
        now_s = time.monotonic()
        for entry in entries:
            self.last_s[entry.seq] = now_s
        self.newest = max(self.newest, entries[-1].seq)
        self.count += len(entries)
        self._grew.set()

    async def until(self, count: int) -> None:
        while self.count < count:
            self._grew.clear()
            await self._grew.wait()
