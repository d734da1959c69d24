"""Two whole products on one database: one conducts, the other waits and takes over when that one is killed.

Each takes over from the other once, while a producer publishes and tries whichever of the two takes it.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from broker.client import AsyncClient, ClientError, Event, NewEvent, RetryPolicy
from tests.adversity.failover import judge
from tests.deployments.instance import PASSWORD, Instance
from tests.servers import Servers, make_template

_PROGRAM = "shared"
_WAITS = "waiting"
_BETWEEN = 50  # events at least before and after somebody dies
_LIMIT_S = 120.0


class Producer:
    """Publishes one event after the other, each by whoever takes it, under one idempotency key."""

    def __init__(self, clients: list[AsyncClient]) -> None:
        self._clients = clients
        self.acknowledged: list[Event] = []
        self.longest_s = 0.0

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            key, began_s = f"event-{len(self.acknowledged)}", time.monotonic()
            while (event := await self._try(key)) is None:
                self._clients.reverse()
                await asyncio.sleep(0.1)
            self.acknowledged.append(event)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.01)

    async def _try(self, key: str) -> Event | None:
        with suppress(ClientError, OSError):
            return await self._clients[0].publish(_PROGRAM, NewEvent("Count#up"), idempotency_key=key)
        return None

    async def more(self) -> None:
        """Return after so many more events."""
        enough = len(self.acknowledged) + _BETWEEN
        async with asyncio.timeout(_LIMIT_S):
            while len(self.acknowledged) < enough:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)


async def play(first: Instance, second: Instance) -> list[str]:
    """Have each take over from the other; what is wrong then."""
    await asyncio.to_thread(first.start)
    impatient = RetryPolicy(deadline_s=1.0)
    urls = [f"http://demo.localhost:{each.http_port}" for each in (first, second)]
    async with (
        AsyncClient(urls[0], username="admin", password=PASSWORD, retry=impatient) as one,
        AsyncClient(urls[1], username="admin", password=PASSWORD, retry=impatient) as two,
    ):
        await one.programs.create(_PROGRAM, _PROGRAM)
        producer = Producer([one, two])
        publishing = asyncio.create_task(producer.run())
        faults = []
        try:
            for leaving, coming in ((first, second), (second, first)):
                starting = asyncio.create_task(asyncio.to_thread(coming.start))
                await _until_it_waits(coming)
                await producer.more()
                if starting.done():
                    faults.append("the second one did not wait")
                leaving.kill_everything()
                await starting
                await producer.more()
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        stored = [event async for event in one.events.iterate(_PROGRAM)]
    sys.stdout.write(f"{len(producer.acknowledged)} events, longest wait {producer.longest_s:.1f} s\n")
    return [*faults, *judge(producer.acknowledged, [], stored), *_told_otherwise(producer, stored)]


def _told_otherwise(producer: Producer, stored: list[Event]) -> list[str]:
    seqs = {event.id: event.seq for event in stored}
    wrong = [event for event in producer.acknowledged if seqs.get(event.id) != event.seq]
    return [f"{len(wrong)} events are stored otherwise than they were acknowledged"] if wrong else []


async def _until_it_waits(instance: Instance) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not any(line.startswith(_WAITS) for line in instance.lines):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


@asynccontextmanager
async def open_products(root: Path) -> AsyncIterator[tuple[Instance, Instance]]:
    """Two products, not started, on one server."""
    template = await asyncio.to_thread(make_template, root / "template")
    servers = Servers(root, template)
    await servers.start("first")
    await servers.put_in_charge("first")
    both = [Instance(root / name, database_url=servers.dsn) for name in ("one", "two")]
    try:
        yield both[0], both[1]
    finally:
        for instance in both:
            await asyncio.to_thread(instance.end)
        await servers.stop()


async def main() -> int:
    """Print what came out; 1 when anything was wrong."""
    with tempfile.TemporaryDirectory(prefix="tp-", ignore_cleanup_errors=True) as name:
        async with open_products(Path(name)) as (first, second):
            faults = await play(first, second)
    sys.stdout.write("\n".join([*faults, f"each took over from the other, {len(faults)} findings"]) + "\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
