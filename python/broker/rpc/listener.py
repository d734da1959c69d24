"""The actor's side of the links: takes calls of its methods."""

import asyncio
import logging
import secrets
from typing import Any, Generic, TypeVar

import msgspec

from broker.concurrency.tasks import cancel_and_wait
from broker.rpc.calls import CallError, Calls
from broker.rpc.wire import SECRET_BYTES, VERSION, Address, ListenerWire, OtherVersion, WireError

_GREETING_S = 5.0
_MAX_STRANGERS = 512
_log = logging.getLogger(__name__)

T = TypeVar("T")


class Listener(Generic[T]):
    """Listens from the first call of `address` on; `close` it on the same loop.

    Calls run beside each other, begun in the order in which they came. One whose caller is gone runs to its
    end: others may wait for what it has begun.

    Args:
        calls: what may be called.
        called: whose methods they are.
    """

    def __init__(self, host: str, calls: Calls[T], called: T) -> None:
        self._host = host
        self._contract = calls
        self._methods = {name: getattr(called, name) for name in calls.methods}
        self._is_version_told = False
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._peers: set[_Peer] = set()
        self._strangers: dict[_Peer, None] = {}  # who have not proved themselves yet, longest first
        self._calls: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._server: asyncio.Server | None = None

    async def address(self) -> Address:
        """Where to connect, with the secret. Raises OSError."""
        async with self._starting:
            if self._server is None:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(lambda: _Peer(self._secret, self), self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return Address(self._host, port, self._secret)

    async def close(self) -> None:
        """Take no more calls, end those under way and all connections."""
        if self._server is not None:
            self._server.close()
        for peer in self._peers:
            peer.transport.abort()
        await cancel_and_wait(*self._calls)

    def _admit(self, peer: "_Peer") -> None:
        """Let it prove itself; when too many have yet to, who has had the longest time makes room."""
        self._peers.add(peer)
        self._strangers[peer] = None
        if len(self._strangers) > _MAX_STRANGERS:
            longest = next(iter(self._strangers))
            del self._strangers[longest]
            longest.transport.abort()

    def _tell_version(self, error: OtherVersion) -> None:
        """Log once that callers of another version come; anybody can claim to be one."""
        if not self._is_version_told:
            _log.warning("link_version_refused", extra={"version": error.version, "own_version": VERSION})
        self._is_version_told = True

    def _begin(self, peer: "_Peer", message: bytes) -> None:
        try:
            number, method, arguments = self._contract.unpack_call(message)
        except CallError as error:
            raise WireError(str(error)) from None
        call = asyncio.get_running_loop().create_task(self._serve(peer, number, method, arguments))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _serve(self, peer: "_Peer", number: int, method: str, body: msgspec.Raw) -> None:
        try:
            arguments = self._contract.read_arguments(method, body)
            reply = self._contract.pack_result(number, await self._methods[method](*arguments))
        except Exception:
            _log.exception("call_failed", extra={"method": method})
            reply = self._contract.pack_failure(number)
        if not peer.transport.is_closing():
            peer.send(reply)


class _Peer(ListenerWire):
    """One caller."""

    def __init__(self, secret: bytes, listener: Listener[Any]) -> None:
        super().__init__(secret)
        self._listener = listener
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection and start the time-out of its greeting."""
        super().connection_made(transport)
        self._listener._admit(self)
        self._timer = asyncio.get_running_loop().call_later(_GREETING_S, self.transport.abort)

    def _open(self) -> None:
        self._listener._strangers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        if isinstance(self.fault, OtherVersion):
            self._listener._tell_version(self.fault)
        self._open()
        self._listener._peers.discard(self)

    def _take(self, message: bytes) -> None:
        if message:
            self._listener._begin(self, message)
        else:
            self.send(b"")
