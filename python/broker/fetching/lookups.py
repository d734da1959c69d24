"""Look-ups of host names, in threads that are shared out fairly.

The system's resolver blocks, and takes half a minute for a name whose servers are silent. A stranger may name
as many of those as it likes. So look-ups have threads of their own (files are read in the event loop's, of
which there are few), and an account or an address has a share of them; more of its look-ups wait for those
that it has begun. A caller that gives up leaves its thread behind, so a place is held until the thread is
free again, not until nobody waits for it.
"""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from broker.concurrency.shares import NOBODY, Asker, Shares
from broker.errors import Unavailable

_THREADS = 64  # at a time; a thread that waits costs little


class Lookups:
    """The system's resolver. Belongs to one event loop; `close` lets go of its threads."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolve")
        self._shares = Shares(threads, "too many host names are being looked up")
        self._freed = asyncio.Event()
        self._askers: dict[asyncio.Task[Any] | None, Asker] = {}

    def close(self) -> None:
        """Begin no more look-ups; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def counted(self, asker: Asker) -> Iterator[None]:
        """Count the look-ups of the running task as those of `asker`, for the time of the block.

        The pool of connections hands nothing on to where it connects, but it does so in the request's task.
        """
        task = asyncio.current_task()
        self._askers[task] = asker
        try:
            yield
        finally:
            del self._askers[task]

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a name, as texts. Safe to cancel. Raises OSError when there are none."""
        asker = self._askers.get(asyncio.current_task(), NOBODY)
        await self._take_place(asker)
        loop = asyncio.get_running_loop()

        def leave(_: "Future[Any]") -> None:
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(self._leave_place, asker)

        begun = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        begun.add_done_callback(leave)
        found = await asyncio.wrap_future(begun)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def _take_place(self, asker: Asker) -> None:
        while True:
            try:
                self._shares.take(asker)
            except Unavailable:
                await self._freed.wait()
            else:
                return

    def _leave_place(self, asker: Asker) -> None:
        self._shares.give_back(asker)
        self._freed.set()  # wakes whoever waits by now; the first of them that may have it takes it
        self._freed.clear()
