"""Queues that are drained in batches, in order.

While one batch is delivered, what arrives waits and goes with the next. Nothing is delayed on purpose: an
item that finds nothing under way is delivered alone, at once. One batch at a time also keeps the order.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.concurrency.tasks import cancel_and_wait

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds in the unit of `Backlog.add`; the first item of a batch or queue is let in anyway.

    Attributes:
        batch_size: of one batch.
        queue_size: of what waits.
        batch_items, queue_items: how many, whatever their size.
    """

    batch_size: int
    queue_size: int
    batch_items: int = sys.maxsize
    queue_items: int = sys.maxsize


class Backlog(Generic[T]):
    """What waits, in its order and within bounds; it knows nothing of who takes it."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._items: deque[tuple[T, int]] = deque()
        self.size = 0
        """The sum of the sizes of what waits."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, size: int) -> bool:
        """Put an item behind the others; False, and nothing happens, where there is no room."""
        limits = self._limits
        if self._items and (self.size + size > limits.queue_size or len(self._items) >= limits.queue_items):
            return False
        self._items.append((item, size))
        self.size += size
        return True

    def take(self, admits: Callable[[T], bool] | None = None) -> list[T]:
        """The next batch, a prefix of the queue; empty when nothing waits.

        Args:
            admits: asked of each item in turn; the first one that it does not want ends the batch. It is
                asked of the first of all, too, which goes whatever it says.
        """
        batch: list[T] = []
        room, most = self._limits.batch_size, self._limits.batch_items
        while self._items and len(batch) < most:
            item, size = self._items[0]
            if batch and size > room:
                break
            if admits is not None and not admits(item) and batch:
                break
            self._items.popleft()
            room -= size
            batch.append(item)
            self.size -= size
        return batch

    def take_out(self, is_over: Callable[[T], bool]) -> list[T]:
        """Take these out, wherever they stand."""
        over = [item for item, _ in self._items if is_over(item)]
        if over:
            self._items = deque(each for each in self._items if not is_over(each[0]))
            self.size = sum(size for _, size in self._items)
        return over

    def clear(self) -> list[T]:
        """Take out everything."""
        items = [item for item, _ in self._items]
        self._items.clear()
        self.size = 0
        return items


class BatchQueue(Generic[T]):
    """A backlog with a task that delivers it. Belongs to one event loop.

    The task starts with the first item and ends with `close`.
    """

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
        self._deliver = deliver
        self._give_up = give_up
        self._is_wanted = is_wanted
        self._backlog: Backlog[T] = Backlog(limits)
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_delivering = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._backlog)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being delivered."""
        return not self._backlog and not self._is_delivering

    @property
    def size(self) -> int:
        """The sum of the sizes of what waits."""
        return self._backlog.size

    def add(self, item: T, size: int) -> None:
        """Queue an item, which is settled in the end; at once where the queue is full or closed."""
        if self._closed or not self._backlog.add(item, size):
            self._give_up(item, False)
            return
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=self._name)

    def take_out(self, is_over: Callable[[T], bool]) -> list[T]:
        """Take these out of what waits, in their order; whoever does so settles them."""
        return self._backlog.take_out(is_over)

    async def close(self) -> None:
        """End the task and give up what waits. Idempotent."""
        self._closed = True
        await cancel_and_wait(self._task)
        for item in self._backlog.clear():  # of a task that was cancelled before it began
            self._give_up(item, False)

    async def _run(self) -> None:
        batch: list[T] = []
        try:
            while True:
                await self._arrived.wait()
                while taken := self._backlog.take():
                    batch = [item for item in taken if self._is_wanted(item)]
                    if batch:
                        self._is_delivering = True
                        await self._deliver(batch)
                        self._is_delivering = False
                self._arrived.clear()
        finally:
            for item in batch:
                self._give_up(item, True)
            for item in self._backlog.clear():
                self._give_up(item, False)
