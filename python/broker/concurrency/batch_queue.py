"""A queue that is drained in batches, in order.

While one batch is delivered, what arrives waits and goes with the next. Nothing is delayed on purpose: an
item that finds nothing under way is delivered alone, at once. One batch at a time also keeps the order.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds in the unit of `BatchQueue.add`; the first item of a batch or queue is let in anyway.

    Attributes:
        batch_size: of one batch.
        queue_size: of what waits.
        batch_items, queue_items: how many, whatever their size.
    """

    batch_size: int
    queue_size: int
    batch_items: int = sys.maxsize
    queue_items: int = sys.maxsize


class BatchQueue(Generic[T]):
    """Belongs to one event loop. Its task starts with the first item and ends with `close`."""

    def __init__(
        self,
        name: str,
        limits: BatchLimits,
        deliver: Callable[[Sequence[T]], Awaitable[None]],
        give_up: Callable[[T, bool], None],
        is_wanted: Callable[[T], bool],
    ) -> None:
        """Make an empty queue.

        Args:
            name: of the task.
            deliver: settles every item of a batch; it raises nothing.
            give_up: settles an item that is not delivered; True where its delivery had begun and may have had
                its effect. It must cope with one that is settled already.
            is_wanted: whether anybody still waits for an item; if not, it is left out.
        """
        self._name = name
        self._limits = limits
        self._deliver = deliver
        self._give_up = give_up
        self._is_wanted = is_wanted
        self._queue: deque[tuple[T, int]] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.size = 0
        """The sum of the sizes of what waits."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: T, size: int) -> None:
        """Queue an item, which is settled in the end; at once where the queue is full or closed."""
        limits = self._limits
        is_full = self.size + size > limits.queue_size or len(self._queue) >= limits.queue_items
        if self._closed or (is_full and self._queue):
            self._give_up(item, False)
            return
        self._queue.append((item, size))
        self.size += size
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """End the task and give up what waits. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        batch: list[T] = []
        try:
            while True:
                await self._arrived.wait()
                batch = self._take()
                if batch:
                    await self._deliver(batch)
                else:
                    self._arrived.clear()
        finally:
            for item in batch:
                self._give_up(item, True)
            while self._queue:
                self._give_up(self._queue.popleft()[0], False)
            self.size = 0

    def _take(self) -> list[T]:
        """The next batch: a prefix of the queue."""
        batch: list[T] = []
        room = self._limits.batch_size
        most = self._limits.batch_items
        while self._queue and len(batch) < most:
            item, size = self._queue[0]
            if batch and size > room:
                break
            self._queue.popleft()
            self.size -= size
            room -= size
            if self._is_wanted(item):
                batch.append(item)
        return batch
