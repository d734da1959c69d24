"""The simulated viewers: subscriptions of the SDK in one process, each of which checks what it receives."""

import asyncio
from collections.abc import Callable

from broker.client import AsyncClient, ClientError, Cursor, Event, Subscription
from broker.clock import Clock
from broker.demo.figures import Meter, Story, Viewer


class Crowd:
    """Viewers of one program who see what comes after one position."""

    def __init__(self, client: AsyncClient, program_id: str, size: int, since: Cursor, clock: Clock) -> None:
        self._clock = clock
        self._moved = asyncio.Event()
        self._subscriptions: list[Subscription[Event]] = [
            client.subscribe(program_id, since) for _ in range(size)
        ]
        self.meter = Meter()
        self.viewers = [Viewer(Story(since.seq)) for _ in range(size)]

    @property
    def connected(self) -> int:
        """How many viewers are connected now."""
        return sum(subscription.is_live for subscription in self._subscriptions)

    @property
    def reconnects(self) -> int:
        """How often viewers had to come back."""
        return sum(subscription.reconnects for subscription in self._subscriptions)

    async def watch(self) -> None:
        """Let everybody watch until cancelled; who cannot go on says so in its `fault`."""
        async with asyncio.TaskGroup() as group:
            for viewer, subscription in zip(self.viewers, self._subscriptions, strict=True):
                group.create_task(self._watch_one(viewer, subscription), name="demo viewer")

    async def wait_until_seen(self, seq: int) -> None:
        """Wait until every viewer has seen `seq` or has given up."""
        await self._wait(lambda: all(v.fault or v.story.seq >= seq for v in self.viewers))

    async def wait_until_inside(self) -> None:
        """Wait until every viewer has seen something or has given up."""
        await self._wait(lambda: all(v.fault or v.deliveries for v in self.viewers))

    async def _watch_one(self, viewer: Viewer, subscription: Subscription[Event]) -> None:
        try:
            async for event in subscription:
                viewer.see(event.seq, event.id)
                self.meter.count(self._clock.now_ms() - event.timestamp)
                self._moved.set()
        except ClientError as error:
            viewer.fault = str(error)
            self._moved.set()

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._moved.clear()
            await self._moved.wait()
