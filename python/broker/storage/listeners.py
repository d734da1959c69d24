"""Notifications of PostgreSQL (LISTEN), on one connection for all who listen in a process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import cancel_and_wait, is_set_within, keep_running
from broker.errors import Unavailable
from broker.storage.errors import connecting, using

_CHECK_S = 2.0  # a connection that has lost its server is noticed within two of these
_RETRY = Backoff(0.1, 2.0, jitter=0.5)


@dataclass(eq=False, slots=True)
class _Listener:
    channel: str
    callback: Callable[[str | None], None]
    has_left: bool = False

    def hear(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        if not self.has_left:
            self.callback(payload)


class Listeners:
    """All who listen through one `Database`. The connection is there while anybody does."""

    def __init__(self, dsn: str, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._present: set[_Listener] = set()
        self._news = asyncio.Event()  # somebody has come, or the connection has ended
        self._task: asyncio.Task[None] | None = None

    async def hear(self, channel: str, callback: Callable[[str | None], None]) -> None:
        """See `Database.listen`. Whoever comes makes the others connect anew."""
        listener = _Listener(channel, callback)
        self._present.add(listener)
        self._news.set()
        if self._task is None:
            self._task = keep_running("listen", self._run)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._present.discard(listener)
            listener.has_left = True
            if not self._present:
                task, self._task = self._task, None
                await cancel_and_wait(task)

    async def _run(self) -> None:
        delays = Delays(_RETRY)
        while True:
            self._news.clear()
            present = list(self._present)
            try:
                async with self._connected(present) as connection:
                    for listener in present:
                        listener.callback(None)
                    delays.reset()
                    await self._watch(connection)
            except Unavailable:
                await delays.wait()

    @asynccontextmanager
    async def _connected(self, present: Sequence[_Listener]) -> AsyncIterator[asyncpg.Connection]:
        with connecting():
            connection = await asyncpg.connect(
                self._dsn, timeout=self._timeout_s, server_settings={"application_name": "broker"}
            )
        try:
            with using(connection):
                for listener in present:
                    await connection.add_listener(listener.channel, listener.hear)
                connection.add_termination_listener(self._note_end)
                yield connection
        finally:
            connection.remove_termination_listener(self._note_end)
            connection.terminate()

    def _note_end(self, _connection: object) -> None:
        self._news.set()

    async def _watch(self, connection: asyncpg.Connection) -> None:
        """Return when there is news. Raises when the connection is dead and nobody told us (a lost route)."""
        while not await is_set_within(self._news, _CHECK_S):
            await connection.execute("SELECT 1", timeout=_CHECK_S)
