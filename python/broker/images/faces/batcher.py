"""Batches without a timer: requests that wait while a batch runs form the next one.

A lone item runs at once, so batching costs no latency; under load batches grow by themselves. A timer would
do neither: it delays the lone item, and says nothing of how busy the network is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from broker.concurrency.tasks import cancel_and_wait
from broker.images.errors import FacesUnavailable

Item = TypeVar("Item")
ResultT = TypeVar("ResultT")


class FaceBatcher(Generic[Item, ResultT]):
    """Collects items for one network, within one event loop. `close` ends what waits and what runs."""

    def __init__(
        self, run: Callable[[Sequence[Item]], Awaitable[Sequence[ResultT]]], *, largest: int, waiting: int
    ) -> None:
        """A batcher that has nothing to do yet.

        Args:
            run: results in the order of the items; what it raises, all items of that batch get.
            largest: items of one batch.
            waiting: items that wait for their batch; more are refused.
        """
        self._run = run
        self._largest = largest
        self._most_waiting = waiting
        self._waiting: deque[tuple[Item, asyncio.Future[ResultT]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._is_closed = False

    async def submit(self, item: Item) -> ResultT:
        """The result of one item. Safe to cancel: an item whose batch has not begun is left out of it.

        Raises:
            FacesUnavailable: too many items wait, or the batcher closes.
            Exception: what the batch failed with.
        """
        if self._is_closed:
            raise _stopping()
        if len(self._waiting) >= self._most_waiting:
            raise FacesUnavailable("too many images are waiting for face detection")
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not future)
            raise

    async def close(self) -> None:
        """Fail what waits; the batch that runs is not waited for."""
        self._is_closed = True
        worker, self._worker = self._worker, None
        await cancel_and_wait(worker)
        _fail([future for _, future in self._waiting])
        self._waiting.clear()

    async def _work(self) -> None:
        """Run batches until nothing waits."""
        batch: list[tuple[Item, asyncio.Future[ResultT]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._largest, len(self._waiting)))]
                await self._settle(batch)
            self._worker = None
        except asyncio.CancelledError:
            _fail([future for _, future in batch])
            raise

    async def _settle(self, batch: Sequence[tuple[Item, asyncio.Future[ResultT]]]) -> None:
        """Run one batch and tell everybody who still waits for it."""
        try:
            results = await self._run([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


def _fail(futures: Sequence[asyncio.Future[ResultT]]) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(_stopping())


def _stopping() -> FacesUnavailable:
    return FacesUnavailable("the face detector stops")
