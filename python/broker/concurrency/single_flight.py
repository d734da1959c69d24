"""Single flight: equal work at the same time is done once."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from broker.concurrency.tasks import cancel_and_wait
from broker.errors import Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs at most one piece of work for a key at a time; callers meanwhile share its result or its error.

    A caller that is cancelled leaves the work running for the others. The tasks belong to this object, and
    `close` ends them. Belongs to one event loop.
    """

    __slots__ = ("_closed", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._closed = False

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def begin(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """The task that runs for `key`, begun by `work` when there is none.

        Raises:
            Unavailable: this object is closed.
        """
        if self._closed:
            raise Unavailable("this process is shutting down", retry_after_s=1)
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(work())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._finish(key, done))
        return task

    async def run(
        self,
        key: K,
        work: Callable[[], Coroutine[Any, Any, V]],
        personal: tuple[type[BaseException], ...] = (),
    ) -> V:
        """The result of `begin`'s task. Safe to cancel.

        Args:
            personal: errors that concern only the caller who began the work; a later one begins again.
        """
        while True:
            has_begun = key not in self._tasks
            task = self.begin(key, work)
            try:
                return await asyncio.shield(task)
            except personal:
                if has_begun:
                    raise
            finally:
                del task  # its error holds this frame, which would hold the error, and all that is about

    async def settled(self, key: K) -> None:
        """Return when no work runs for `key`, whatever its outcome."""
        while (task := self._tasks.get(key)) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # the callback that forgets the task runs in the next turn

    async def close(self) -> None:
        """Cancel all work and return when it has ended. Idempotent."""
        self._closed = True
        await cancel_and_wait(*self._tasks.values())

    def _finish(self, key: K, task: "asyncio.Task[V]") -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # read, so that a failure that nobody waited for is not reported as forgotten
