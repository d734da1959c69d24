"""The caller's side of a link: calls that share one connection to the actor of a slot."""

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from itertools import count
from typing import Any

from broker.rpc.calls import CallError, Calls
from broker.rpc.wire import Address, CallerWire, OtherVersion, WireError

_LOOK_S = 0.5
_NEAR = 2  # times as long, where no node can be lost between: each look wakes two processes
_SILENCE_S = 5.0  # of an actor that was asked: it hangs, or its node is cut off
_NOBODY = "", None


class ConnectionEnded(Exception):
    """The call brought no reply."""


class LinkRefused(ConnectionEnded):
    """The listener speaks another version of the wire, as while processes are exchanged for an upgrade."""


class Connection(CallerWire):
    """A link from the calling side. `open_connection` creates it; `end` it on the same event loop."""

    def __init__(self, address: Address, calls: Calls[Any], note_silence: Callable[[], None]) -> None:
        super().__init__(address.secret)
        self._methods = calls
        self._is_near = ip_address(address.host).is_loopback
        self._note_silence = note_silence
        self._numbers = count(1)
        self._calls: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_silent_s = 0.0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_over = False

    @property
    def _look_s(self) -> float:
        return _LOOK_S * _NEAR if self._is_near else _LOOK_S

    @property
    def is_silent(self) -> bool:
        """Whether the actor has left a question unanswered that was asked a look ago."""
        return self._is_silent_s >= 2 * self._look_s

    async def call(self, method: str, *arguments: object) -> Any:
        """What the actor's method answers. Cancelling leaves the call running there.

        Raises ConnectionEnded, and CannotTravel for the arguments.
        """
        if self.is_over:
            raise ConnectionEnded(method)
        number = next(self._numbers)
        message = self._methods.pack_call(number, method, arguments)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(message)
        self._calls[number] = method, reply
        if self._timer is None:
            self._watch()
        try:
            return await reply
        finally:
            self._calls.pop(number, None)

    def end(self) -> None:
        """Close; calls under way raise."""
        self.transport.abort()

    def _open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _take(self, message: bytes) -> None:
        self._is_silent_s = 0.0
        if not message:
            return
        try:
            number, kind, body = self._methods.unpack_reply(message)
        except CallError as error:
            raise WireError(str(error)) from None
        method, reply = self._calls.get(number, _NOBODY)
        if reply is None or reply.done():
            return
        try:
            reply.set_result(self._methods.read_reply(method, kind, body))
        except CallError as error:
            reply.set_exception(ConnectionEnded(str(error)))

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        kind = LinkRefused if isinstance(self.fault, OtherVersion) else ConnectionEnded
        text = str(self.fault or "the connection is over")
        for reply in (self.opened, *(reply for _, reply in self._calls.values())):
            if not reply.done():
                reply.set_exception(kind(text))
        if not self.opened.cancelled():  # as by whoever gave up to connect
            self.opened.exception()  # read: perhaps nobody waits for it any more

    def _watch(self) -> None:
        """While calls wait, ask at each look whether the actor lives; end it all when it stays silent."""
        self._timer = None
        if not self._calls:
            self._is_silent_s = 0.0
            return
        if self._is_silent_s >= _SILENCE_S:
            self.end()
            return
        if self._is_silent_s:
            self.send(b"")
        if self.is_silent:
            self._note_silence()
        self._is_silent_s += self._look_s
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._watch)


async def open_connection(
    address: Address, calls: Calls[Any], note_silence: Callable[[], None] = lambda: None
) -> Connection:
    """Connect, and prove each other's right.

    Args:
        note_silence: is called at each look at which the actor is silent, until it is given up.

    Raises:
        ConnectionEnded: the listener is none of ours, or not there any more; `LinkRefused` among them.
        OSError: nobody listens.
    """
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(address, calls, note_silence), address.host, address.port
    )
    try:
        await connection.opened
    except BaseException:
        connection.end()
        raise
    return connection
