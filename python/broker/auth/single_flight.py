"""Equal work at the same time is done once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs at most one piece of work for a key at a time; who comes meanwhile gets its result or error.

    A caller that is cancelled leaves the work running for the others. `close` cancels and awaits all of it.
    """

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}

    async def run(
        self,
        key: K,
        work: Callable[[], Coroutine[Any, Any, V]],
        personal: tuple[type[BaseException], ...] = (),
    ) -> V:
        """The result of `work`, started now or already running for `key`.

        Args:
            personal: errors that concern who began the work; who came later then begins anew.
        """
        while True:
            task = self._running.get(key)
            has_begun = task is None
            if task is None:
                task = asyncio.create_task(work())
                self._running[key] = task
                task.add_done_callback(lambda done: self._finish(key, done))
            try:
                return await asyncio.shield(task)
            except personal:
                if has_begun:
                    raise
            finally:
                del task  # its error holds this frame, which would hold the error, and all it was about

    async def close(self) -> None:
        """End what is running."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finish(self, key: K, task: "asyncio.Task[V]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # read, so that nobody's failure is not reported as forgotten
