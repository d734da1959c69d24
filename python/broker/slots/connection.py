"""The caller's side of a link: calls that share one connection to the actor of a slot."""

import asyncio
from itertools import count
from typing import Any

from broker.slots.wire import EMPTY_FRAME, Address, CallerWire, pack

_LOOK_S = 1.0
_SILENCE_S = 5.0  # of an actor that was asked: it hangs, or its node is cut off


class ConnectionEnded(Exception):
    """The call brought no answer."""


class Connection(CallerWire):
    """See the module's docstring; `open_connection` makes one. `end` it on the same loop."""

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self._numbers = count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_silent_s = 0.0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_over = False

    async def call(self, method: str, *arguments: object) -> Any:
        """What the actor's method answers. Raises ConnectionEnded.

        Cancelling leaves the call running there.
        """
        if self.is_over:
            raise ConnectionEnded(method)
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self.transport.write(pack((number, method, arguments)))
        if self._timer is None:
            self._watch()
        try:
            return await answer
        finally:
            self._calls.pop(number, None)

    def end(self) -> None:
        """Close; calls under way raise."""
        self.transport.abort()

    def _open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _take(self, value: Any) -> None:
        self._is_silent_s = 0.0
        if value is None:
            return
        number, is_answer, result = value
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if is_answer:
            answer.set_result(result)
        else:
            answer.set_exception(ConnectionEnded("the call failed"))

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for answer in (self.opened, *self._calls.values()):
            if not answer.done():
                answer.set_exception(ConnectionEnded("the connection is over"))
        self.opened.exception()  # read: perhaps nobody waits for it any more

    def _watch(self) -> None:
        """While calls wait, ask every second whether the actor lives; end it all when it is silent."""
        self._timer = None
        if not self._calls:
            self._is_silent_s = 0.0
            return
        if self._is_silent_s >= _SILENCE_S:
            self.end()
            return
        if self._is_silent_s:
            self.transport.write(EMPTY_FRAME)
        self._is_silent_s += _LOOK_S
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._watch)


async def open_connection(address: Address) -> Connection:
    """Connect, and prove each other's right. Raises ConnectionEnded, OSError."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(address.secret), address.host, address.port
    )
    try:
        await connection.opened
    except BaseException:
        connection.end()
        raise
    return connection
