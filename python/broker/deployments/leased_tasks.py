"""What a conductor does only while it has the lease (`broker.storage.conductor_lease`).

A conductor that cannot reach the database cannot know whether another one has taken over. From the moment at
which its lease ends by the clock of this machine, it therefore starts, exchanges and ends nothing. What it
has started goes on serving. It acts again when `broker up` says that the lease was renewed, which it is only
if no other conductor had it in between; otherwise `broker up` ends this one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from broker.clock import boot_s
from broker.concurrency.tasks import cancel_and_wait, keep_running, run_once
from broker.errors import Unavailable

_LOOK_S = 1.0  # at most, between two looks: timers stand still while a machine is suspended

_log = logging.getLogger(__name__)

_Work = Callable[[], Coroutine[Any, Any, None]]


class LeasedTasks:
    """Long-lived tasks that are cancelled when the lease lapses, and begun again when it is renewed.

    `run` must run; all methods belong to its event loop.
    """

    def __init__(self, now_s: Callable[[], float] = boot_s) -> None:
        """There is no lease yet."""
        self._now_s = now_s
        self._until_s = float("-inf")
        self._extended = asyncio.Event()
        self._works: list[tuple[str, _Work]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = False  # what is to run, while the lease lasts

    @property
    def is_held(self) -> bool:
        """Whether the lease lasts."""
        return self._now_s() < self._until_s

    def extend(self, until_s: float | None) -> None:
        """Take note of the lease's end, in seconds of `boot_s`; None where this conductor needs none."""
        self._until_s = float("inf") if until_s is None else until_s
        self._extended.set()

    async def until_held(self) -> None:
        """Return when the lease lasts."""
        while not self.is_held:
            self._extended.clear()
            await self._extended.wait()

    def keep(self, name: str, work: _Work) -> None:
        """Run `work` as `keep_running` does, from now on while the lease lasts."""
        self._works.append((name, work))
        if self._is_running:
            self._begin(keep_running(name, work))

    def run_once(self, name: str, work: _Work) -> bool:
        """Run `work` once, as `run_once` does; it is cancelled when the lease lapses.

        Returns:
            False when the lease does not last: then nothing was begun.
        """
        if self._is_running and self.is_held:
            self._begin(run_once(name, work()))
            return True
        return False

    async def within(self, work: Awaitable[None]) -> None:
        """Await `work`, which is cancelled when the lease lapses. Raises Unavailable then."""
        working, lapsed = asyncio.ensure_future(work), asyncio.create_task(self._until_lapsed())
        try:
            await asyncio.wait({working, lapsed}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Unavailable("the database was away for longer than the lease of the conductor lasts")
            await working
        finally:
            await cancel_and_wait(working, lapsed)

    async def run(self) -> None:
        """Begin and cancel tasks as the lease comes and goes, until cancelled."""
        try:
            while True:
                await self.until_held()
                self._is_running = True
                for name, work in self._works:
                    self._begin(keep_running(name, work))
                await self._until_lapsed()
                _log.warning("conductor_lease_lapsed")
                await self._stop()
        finally:
            await self._stop()

    async def _until_lapsed(self) -> None:
        while (left_s := self._until_s - self._now_s()) > 0:
            self._extended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await self._extended.wait()

    def _begin(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        self._is_running = False
        await cancel_and_wait(*self._tasks)
