"""A producer and a viewer that must be served whatever else happens: in order, none lost."""

import asyncio
from contextlib import suppress
from types import TracebackType

from broker.client import AsyncClient, ClientError
from tests.attack.target import WITNESSED, Target

_PACE_S = 0.1
_PATIENCE_S = 30.0


class Witness:
    """Publishes ten events a second over HTTP and follows them over WebSocket, while its block lasts."""

    def __init__(self, target: Target) -> None:
        url = target.instance.url
        self._producer = AsyncClient(url, token=target.tokens["producer"])
        self._viewer = AsyncClient(url)
        self._tasks: list[asyncio.Task[None]] = []
        self._following = asyncio.Event()
        self._news = asyncio.Event()
        self.acknowledged: list[int] = []
        self.told: list[int] = []
        self.faults: list[str] = []

    async def __aenter__(self) -> "Witness":
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._publish())]
        async with asyncio.timeout(_PATIENCE_S):
            while not self.told:
                self._news.clear()
                await self._news.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()
        for client in (self._producer, self._viewer):
            await client.close()

    async def judge(self) -> None:
        """Publish once more and wait until the viewer has been told everything; notes what is wrong."""
        self._tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[1]
        await self._one()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self.acknowledged and (not self.told or self.told[-1] < self.acknowledged[-1]):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self.faults.append(f"{self.acknowledged[-1]} was acknowledged and not delivered")
        if self.told != list(range(self.told[0], self.told[0] + len(self.told))):
            self.faults.append(f"out of order: {self.told}")

    async def _publish(self) -> None:
        while True:
            await self._one()
            await asyncio.sleep(_PACE_S)

    async def _one(self) -> None:
        try:
            event = await self._producer.publish(WITNESSED, "Clock#tick", {})
        except ClientError as error:
            self.faults.append(f"a publish failed: {error}")
        else:
            self.acknowledged.append(event.seq)

    async def _follow(self) -> None:
        try:
            async for event in self._viewer.subscribe(WITNESSED):
                self.told.append(event.seq)
                self._news.set()
        except ClientError as error:
            self.faults.append(f"the subscription ended: {error}")
            self._news.set()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
