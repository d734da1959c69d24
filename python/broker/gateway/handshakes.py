"""Handshakes with a token that native code does not know: checks it, then accepts or refuses them."""

import asyncio
import logging
from typing import Protocol

import orjson

from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.errors import BrokerError, InternalError, Unavailable
from broker.gateway.sessions import Sessions
from broker.gateway.upcalls import Authenticate

_log = logging.getLogger(__name__)

CHECKED_AT_ONCE = 32  # a check of a new user is a query; more would only wait for the pool
MAX_WAITING = 20_000  # handshakes a second that native code can bring, twice
MAX_WAITING_BYTES = 32 << 20  # of tokens: as many of 1,600 bytes, which is longer than ours are


class Doorkeeper(Protocol):
    """The part of the native server that holds handshakes."""

    def resume(self, conn: int) -> None:
        """Go on with a handshake whose token has been granted."""

    def refuse(self, conn: int, status: int, body: bytes, headers: list[tuple[str, str]] = ...) -> None:
        """End a handshake with an HTTP error."""


class Handshakes:
    """Checks tokens with a bounded number of workers; what comes over the bound is told to come again."""

    def __init__(self, door: Doorkeeper, sessions: Sessions) -> None:
        self._door = door
        self._sessions = sessions
        self._waiting: asyncio.Queue[Authenticate] = asyncio.Queue(MAX_WAITING)
        self._waiting_bytes = 0
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to check, on the running loop."""
        self._workers = [keep_running("handshakes", self._work) for _ in range(CHECKED_AT_ONCE)]

    def submit(self, handshake: Authenticate) -> None:
        """Check the token when a worker is free."""
        size = len(handshake.token)
        if self._waiting.full() or self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._refuse(handshake, Unavailable("too many handshakes are waiting", retry_after_s=1))
            return
        self._waiting_bytes += size
        self._waiting.put_nowait(handshake)

    async def stop(self) -> None:
        """Cancel the workers; native code's own time limit ends what waits. Idempotent."""
        await cancel_and_wait(*self._workers)
        self._workers = []

    async def _work(self) -> None:
        while True:
            handshake = await self._waiting.get()
            self._waiting_bytes -= len(handshake.token)
            try:
                await self._sessions.open(handshake.account, handshake.token, handshake.address)
            except BrokerError as error:
                self._refuse(handshake, error)
            except Exception:
                _log.exception("handshake_failed")
                self._refuse(handshake, InternalError("an internal error"))
            else:
                self._door.resume(handshake.conn)

    def _refuse(self, handshake: Authenticate, error: BrokerError) -> None:
        headers: list[tuple[str, str]] = []
        if error.status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        if error.retry_after_s is not None:
            headers.append(("Retry-After", str(error.retry_after_s)))
        self._door.refuse(handshake.conn, error.status, orjson.dumps(error.body()), headers)
