"""The WebSocket under a `Socket`; apart from it, so that the SDK is imported without the library of it."""

from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio import client as websockets
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from broker.client.address import websocket_options
from broker.client.engine import read_error
from broker.client.errors import ConnectionFailed, ConnectionLost

_MAX_MESSAGE_BYTES = 64 << 20  # an answer may hold a program's whole list of events
_ABNORMAL = 1006


class WebSocket:
    """An open connection, made by `connect`. One task may receive, many may send."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: bytes) -> None:
        """Send a text message. Raises ConnectionLost."""
        try:
            await self._connection.send(message, text=True)
        except ConnectionClosed as error:
            raise _lost(error) from None

    async def receive(self) -> bytes:
        """The next message. Safe to cancel. Raises ConnectionLost."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            raise _lost(error) from None

    def abort(self) -> None:
        """End the connection without a word. Idempotent."""
        self._connection.transport.abort()

    async def close(self, code: int = 1000) -> None:
        """Close the connection. Idempotent."""
        await self._connection.close(code)


async def connect(
    url: str, token: str | None, *, open_timeout_s: float, ping_s: float, pong_s: float
) -> WebSocket:
    """Connect to a gateway; anonymous without a token. Raises as `broker.client.socket.open_socket` does."""
    try:
        connection = await websockets.connect(
            _with_wishes(url),
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            compression="deflate",
            open_timeout=open_timeout_s,
            ping_interval=ping_s,
            ping_timeout=pong_s,
            close_timeout=1,
            max_size=_MAX_MESSAGE_BYTES,
            **websocket_options(url),
        )
    except InvalidStatus as error:
        raise _refusal(url, error) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise ConnectionFailed(f"{url}: {error or type(error).__name__}") from error
    return WebSocket(connection)


def _with_wishes(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, "alive=true")))))


def _refusal(url: str, error: InvalidStatus) -> Exception:
    reply = error.response
    refusal, is_ours = read_error(reply.status_code, reply.body or b"", reply.headers)
    if is_ours:
        return refusal
    return ConnectionFailed(f"{url}: something in front of the broker answered {reply.status_code}")


def _lost(error: ConnectionClosed) -> ConnectionLost:
    if error.rcvd is None:
        return ConnectionLost(_ABNORMAL)
    return ConnectionLost(error.rcvd.code, error.rcvd.reason)
