"""Batches without a timer: requests that wait while a batch runs form the next one.

A lone item runs at once, so batching costs no latency; under load batches grow by themselves. A timer would
do neither: it delays the lone item, and says nothing of how busy the network is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from broker.concurrency.batch_queue import BatchLimits, BatchQueue
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
        self._is_closed = False
        self._queue: BatchQueue[tuple[Item, asyncio.Future[ResultT]]] = BatchQueue(
            "faces",
            BatchLimits(batch_size=largest, queue_size=waiting),
            self._settle,
            self._refuse,
            lambda entry: not entry[1].done(),
        )

    async def submit(self, item: Item) -> ResultT:
        """The result of one item. Safe to cancel: an item whose batch has not begun is left out of it.

        Raises:
            FacesUnavailable: too many items wait, or the batcher closes.
            Exception: what the batch failed with.
        """
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._queue.add((item, future), 1)
        try:
            return await future
        except asyncio.CancelledError:
            self._queue.take_out(lambda entry: entry[1] is future)
            raise

    async def close(self) -> None:
        """Fail what waits; the batch that runs is not waited for."""
        self._is_closed = True
        await self._queue.close()

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

    def _refuse(self, entry: tuple[Item, asyncio.Future[ResultT]], _has_begun: bool) -> None:
        if not entry[1].done():
            full = "too many images are waiting for face detection"
            entry[1].set_exception(FacesUnavailable("the face detector stops" if self._is_closed else full))
