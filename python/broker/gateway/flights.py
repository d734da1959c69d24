"""Work that many wait for is done once."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

from broker.errors import Unavailable

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Flights(Generic[Key, Value]):
    """At most one piece of work for a key at a time; who comes while it runs shares its outcome.

    Cancelling one who waits does not cancel the work. The tasks belong to this object until `close`.
    """

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Value]] = {}
        self._closed = False

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    def begin(self, key: Key, work: Callable[[], Coroutine[None, None, Value]]) -> asyncio.Task[Value]:
        """The task that runs for `key`, begun by `work` when there is none.

        Raises:
            Unavailable: this object is closed.
        """
        if self._closed:
            raise Unavailable("this gateway is shutting down", retry_after_s=1)
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(work())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        return task

    async def run(self, key: Key, work: Callable[[], Coroutine[None, None, Value]]) -> Value:
        """The outcome of `begin`; cancelling the caller leaves the work running for the others."""
        return await asyncio.shield(self.begin(key, work))

    async def settled(self, key: Key) -> None:
        """Return when no work runs for `key`, whatever its outcome."""
        while (task := self._tasks.get(key)) is not None:
            await asyncio.wait([task])
            await asyncio.sleep(0)  # the callback that forgets the task runs in the next turn

    async def close(self) -> None:
        """Cancel all work and return when it has ended. Idempotent."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, key: Key, task: asyncio.Task[Value]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # all who waited may be gone; the failure was theirs
