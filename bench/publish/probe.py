"""A publisher and follower behind the doors: `python -m bench.publish.probe RAYLET_PID`.

Run with the environment of an instance's conductor, it joins its Ray and does what a replica and a gateway
do with their owner, by the same classes. For each line `EVENTS PER_S` it calls, so many times, the owner's
actor for nothing, publishes one event, and follows the program as a gateway does. It answers one JSON object:
figure → milliseconds, the median.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence

import ray
import uvloop

from bench.product import PROGRAM
from bench.publish.doors import build_metadata
from bench.rest.bare import find_ray
from broker.actors.link import SlotLink
from broker.clock import SystemClock
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS
from broker.owners.commands import Publish
from broker.owners.linked_feed import LinkedFeed
from broker.owners.linked_owners import LinkedOwners
from broker.owners.placement import OWNER, owner_of
from broker.owners.protocol import Entry, NewEventRow, program_topic
from broker.settings import Settings

FOLLOWED_S = 10.0


async def measure(events: int, per_s: float) -> dict[str, float]:
    """Publish one event at a time."""
    settings, clock = Settings.load(), SystemClock()
    ids, arrived = IdSource(clock), asyncio.Queue[float]()

    def take(_topic: str, entries: Sequence[Entry]) -> None:
        for _ in entries:
            arrived.put_nowait(time.monotonic())

    topic = program_topic(settings.default_account, PROGRAM)
    link = SlotLink(OWNER, owner_of(topic, settings.owners), OWNER_CALLS)
    owners, feed = LinkedOwners(settings, clock, ids), LinkedFeed(settings, clock, ids, take)
    figures: dict[str, list[float]] = {"call": [], "published": [], "followed": []}
    try:
        await feed.follow(topic)
        await link.call("process_id", timeout_s=FOLLOWED_S)
        began = time.monotonic()
        for turn in range(events):
            await asyncio.sleep(max(0.0, began + turn / per_s - time.monotonic()))
            called = time.monotonic()
            await link.call("process_id", timeout_s=FOLLOWED_S)
            figures["call"].append(time.monotonic() - called)
            await asyncio.sleep(0.5 / per_s)
            sent_ns = time.monotonic_ns()
            row = NewEventRow(ids.uuid7(), None, None, "Score#update", build_metadata(sent_ns))
            await owners.submit(Publish(ids.uuid7(), settings.default_account, PROGRAM, (row,), None))
            figures["published"].append(time.monotonic() - sent_ns / 1e9)
            followed = await asyncio.wait_for(arrived.get(), FOLLOWED_S)
            figures["followed"].append(followed - sent_ns / 1e9)
    finally:
        await owners.close()
        await feed.close()
    return {name: statistics.median(values) * 1000 for name, values in figures.items()}


def main() -> None:
    """Join, and measure until the input ends."""
    address, ip = find_ray(int(sys.argv[1]))
    ray.init(address, namespace="broker", log_to_driver=False, configure_logging=False, _node_ip_address=ip)
    print(json.dumps({"phase": "joined"}), flush=True)
    for line in sys.stdin:
        events, per_s = line.split()
        print(json.dumps(uvloop.run(measure(int(events), float(per_s)))), flush=True)


if __name__ == "__main__":
    main()
