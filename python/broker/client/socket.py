"""One WebSocket connection that speaks JSON-RPC 2.0: calls, replies and notifications.

A task of its own reads. Notifications wait in a buffer for whoever iterates; when it is full, reading stops,
so that TCP slows the broker down and not our memory grows. While a call waits for its answer, which may lie
behind notifications, reading goes on up to a hard limit, and there the connection is given up.
"""

import asyncio
import contextlib
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from broker.client import wire
from broker.client.answers import Counted, choice
from broker.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    parse_rpc_error,
)

if TYPE_CHECKING:
    from broker.client.websocket import WebSocket

_HARD_FACTOR = 10  # over the buffer's limit, while calls are waiting
_GOING_AWAY = 1001
_READ_S = 0.05


@dataclass(frozen=True, slots=True)
class Notification:
    """A JSON-RPC notification of the broker: `event`, `program`, `tokenExpiring`, `reconnect` and others."""

    method: str
    params: Any


@dataclass(frozen=True, slots=True)
class SocketConfig:
    """Limits of one connection.

    Attributes:
        open_timeout_s: for TCP, TLS and handshake together.
        call_timeout_s: for the answer to a call.
        ping_s, pong_s: after how long a ping goes out, and how long its pong may take, before the peer is
            taken for dead.
        buffer: notifications that wait for the iterator before reading stops.
    """

    open_timeout_s: float = 10.0
    call_timeout_s: float = 15.0
    ping_s: float = 20.0
    pong_s: float = 10.0
    buffer: int = 10_000


class Socket:
    """An open connection, made by `open_socket`. One task may iterate, many may call."""

    def __init__(self, connection: "WebSocket", config: SocketConfig) -> None:
        self._connection = connection
        self._config = config
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._buffer: deque[Notification] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._lost: ConnectionFailed | ProtocolError | None = None
        self._every_s = 0.0
        self._announced = asyncio.Event()
        self._heard_s = self._now_s()
        self._reader = asyncio.create_task(self._read(), name="broker socket reader")

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Call an operation and return its result. Safe to cancel; the answer is then passed over.

        Raises:
            ApiError: the operation refused or failed.
            RpcError: no such method, or not a valid request.
            ConnectionFailed: no answer in time, or the connection ended.
        """
        number = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._room.set()
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
            async with asyncio.timeout(self._config.call_timeout_s):
                return await answer
        except TimeoutError:
            raise ConnectionFailed(f"no reply to {method} within {self._config.call_timeout_s:g} s") from None
        finally:
            del self._waiting[number]

    async def respond(
        self,
        program_id: str,
        measure_name: str,
        context_id: str,
        measure_value: int | Sequence[int],
        *,
        visitor_id: str | None = None,
    ) -> Counted:
        """Answer one measure; returns once that is durable. Sent again, it counts no second time.

        Args:
            visitor_id: who answers: the user of the token when absent, else this very connection, so that
                an anonymous caller who may have to connect again had better name a visitor.

        Raises:
            Conflict: the event is not open yet, or has closed.
            SlowDown: more than this connection may send.
            ApiError, ConnectionFailed: as `call`.
        """
        entry = _entry(program_id, measure_name, context_id, visitor_id)
        return Counted.parse(await self.call("respond", entry | {"measureValue": choice(measure_value)}))

    async def impression(
        self,
        program_id: str,
        measure_name: str,
        context_id: str,
        *,
        visitor_id: str | None = None,
        session_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Counted:
        """Say that a measure was shown. Each call counts, except a repeat with the same key.

        Args:
            idempotency_key: to call again after `ConnectionFailed` or `OutcomeUnknown`, from the first call
                on.
            visitor_id: as in `respond`.
            session_id: this connection when absent.

        Raises:
            ApiError, ConnectionFailed: as `call`.
        """
        entry = _entry(program_id, measure_name, context_id, visitor_id)
        given = {"sessionId": session_id, "idempotencyKey": idempotency_key}
        entry |= {name: value for name, value in given.items() if value is not None}
        return Counted.parse(await self.call("impression", entry))

    async def receive(self) -> Notification:
        """The next notification. Safe to cancel.

        Raises:
            ConnectionLost: the connection ended, after all that came before has been handed out.
        """
        while not self._buffer:
            if self._lost is not None:
                raise self._lost
            self._changed.clear()
            await self._changed.wait()
        notification = self._buffer.popleft()
        self._room.set()
        return notification

    def __aiter__(self) -> AsyncIterator[Notification]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Notification]:
        while True:
            yield await self.receive()

    async def silent(self) -> None:
        """Return once the gateway has been silent for two of the intervals at which it shows life.

        Never returns for a gateway that has not said how often it does. While the buffer is full nothing is
        read, which is no silence. Safe to cancel.
        """
        await self._announced.wait()
        while (wait_s := self._heard_s + 2 * self._every_s - self._now_s()) > 0:
            await asyncio.sleep(min(wait_s, self._every_s))
            # Where the loop itself was held up, what has arrived meanwhile is read first.
            await asyncio.sleep(_READ_S)

    @property
    def heard_s(self) -> float:
        """When the gateway was last heard, by the loop's clock."""
        return self._heard_s

    def lose(self, error: ConnectionLost) -> None:
        """End the connection at once and without a word; what came before is still handed out."""
        self._end(error)
        self._reader.cancel()
        self._connection.abort()

    async def close(self) -> None:
        """Close the connection and end the reader. Idempotent."""
        await self._connection.close()
        self._room.set()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._lost is not None:
            raise self._lost
        await self._connection.send(wire.encode(message))

    async def _read(self) -> None:
        try:
            while True:
                await self._wait_for_room()
                frame = await self._connection.receive()
                self._heard_s = self._now_s()
                self._accept(frame)
        except ConnectionLost as error:
            self._end(error)
        except ProtocolError as error:
            self._end(error)
            await self._connection.close(1002)
        except asyncio.CancelledError:
            self._end(ConnectionLost(_GOING_AWAY, "closed by this side"))
            raise

    async def _wait_for_room(self) -> None:
        while len(self._buffer) >= self._config.buffer:
            if self._waiting and len(self._buffer) < self._config.buffer * _HARD_FACTOR:
                return
            if self._waiting:
                raise ProtocolError("too many notifications arrived before the reply")
            self._room.clear()
            self._heard_s = math.inf
            await self._room.wait()
            self._heard_s = self._now_s()

    def _accept(self, frame: bytes) -> None:
        message = wire.parse(frame)
        for part in message if isinstance(message, list) else [message]:
            self._accept_one(part)

    def _accept_one(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ProtocolError("the broker sent a message that is not a JSON-RPC object")
        if message.get("method") == "alive":
            self._note_interval(message.get("params"))
            return
        if "method" in message:
            self._buffer.append(Notification(str(message["method"]), message.get("params")))
            self._changed.set()
            return
        answer = self._waiting.get(message.get("id", 0))
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(parse_rpc_error(message["error"]))
        else:
            answer.set_result(message.get("result"))

    def _note_interval(self, params: Any) -> None:
        every_ms = params.get("everyMs") if isinstance(params, dict) else None
        if isinstance(every_ms, int) and every_ms > 0:
            self._every_s = every_ms / 1000
            self._announced.set()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _end(self, error: ConnectionFailed | ProtocolError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._changed.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)


async def open_socket(url: str, token: str | None, config: SocketConfig) -> Socket:
    """Connect to a gateway; anonymous without a token.

    Raises:
        ApiError: the gateway refused the handshake (a bad token, an unknown account, overload).
        ConnectionFailed: there is no gateway at `url`, it did not answer in time, or it is not the broker's.
        ValueError: `url` is no WebSocket URL.
    """
    # Not above: whoever imports the SDK need not wait for websockets.
    from broker.client.websocket import connect

    connection = await connect(
        url, token, open_timeout_s=config.open_timeout_s, ping_s=config.ping_s, pong_s=config.pong_s
    )
    return Socket(connection, config)


def _entry(program_id: str, measure: str, context: str, visitor: str | None) -> dict[str, Any]:
    entry = {"programId": program_id, "measureName": measure, "contextId": context}
    return entry if visitor is None else entry | {"visitorId": visitor}
