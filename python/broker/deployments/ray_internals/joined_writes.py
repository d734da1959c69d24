"""uvicorn's protocol as replicas use it: one write per reply, and strict ends of headers.

uvicorn makes two writes of a reply.

uvicorn writes the head of a reply when it is told the status and the body when it comes, and uvloop hands
each to the kernel at once. For a short reply the second write takes as long as checking a token, and HAProxy
wakes for each. So what is written first in a turn of the event loop waits for a second part, until the end of
that turn at most.

uvicorn also looks at each header of a reply by itself, four times, which takes a sixth of a short request. So
the head waits for the body (as ASGI has it), and where that is the whole reply both are looked at and written
as one. A reply that is not plain (a stream, `Connection: close`, one without a body) is left to uvicorn.

Trailers (RFC 9112, section 7.1.2) come through the same callback as headers, and uvicorn puts them into the
list that the application has already: `Host` and `Authorization` of a trailer would count. Here they go
into another list, which nobody reads. The host of a target in absolute form, which uvicorn drops, is handed
on for the application to compare.

Names used: `AutoHTTPProtocol`, `HttpToolsProtocol` with `url`, `headers`, `scope` and `cycle`,
`STATUS_LINE` and `RequestResponseCycle` with what `JoinedReply` uses of it, all of uvicorn.
Probe: the import; tests send each kind of reply and trailers through the uvicorn that is installed.
Fall-back: where uvicorn takes its protocol from elsewhere, replies are written in two and go through Serve.
Gain: a fifth of a short request's time for the writes, a sixth for the headers.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from broker.deployments.ray_internals.departures import Departure
from broker.rest.asgi import WholeReply

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:
    Protocol = auto.AutoHTTPProtocol

_START = "http.response.start"
_LINE = b": ".join  # of a header's name and value
_LINES = b"\r\n".join
_CONTROLS = bytes({*range(32), 127} - {9})  # what no header may have (RFC 9110, section 5.5)
_UVICORNS = frozenset({b"connection", b"transfer-encoding"})  # headers by which uvicorn acts


class JoinedWrites:
    """A transport that joins two writes of one turn; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._timer: asyncio.Handle | None = None
        self.is_closing = transport.is_closing  # asked for every request

    def write(self, data: bytes) -> None:
        """Write, at once or at the end of this turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._transport.write(self._held + data)
            return
        self._held = data
        self._timer = self._loop.call_soon(self._write_held)

    def write_last(self, data: bytes) -> None:
        """Write what nothing follows soon, with what waits, at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            data = self._held + data
        self._transport.write(data)

    def write_eof(self) -> None:
        """Say that nothing follows, after everything has been written."""
        self._write_held()
        self._transport.write_eof()

    def close(self) -> None:
        """Close, after everything has been written."""
        self._write_held()
        self._transport.close()

    def _write_held(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._transport.write(self._held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class JoinedReply(RequestResponseCycle):
    """uvicorn's part in one request: the head of its reply goes with the body.

    `response_started` from when the application has told the status, as with uvicorn's own.
    """

    _start: Any = None

    async def send(self, message: Any) -> None:
        """Take a part of the reply."""
        start = self._start
        if start is None:
            if self.response_started or message["type"] != _START:
                await super().send(message)
            else:
                self._start = message
                self.response_started = True
            return
        self._start = None
        lines = self._plain_lines(start, message)
        if lines is None:
            self.response_started = False
            await super().send(start)
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.waiting_for_100_continue = False
        transport: Any = self.transport
        transport.write_last(_whole(start["status"], self.default_headers, lines, message["body"]))
        self.response_complete = True
        self.message_event.set()
        self.on_response()

    def _plain_lines(self, start: Any, message: Any) -> bytes | None:
        """The headers of a reply that is whole with this message; None where uvicorn has more to do."""
        if message.get("more_body") or not self.keep_alive or self.access_log:
            return None
        headers = start["headers"]
        named = dict(headers)
        if named.get(b"content-length") != b"%d" % len(message.get("body", b"")):
            return None
        if not _UVICORNS.isdisjoint(named) or self.scope["method"] == "HEAD":
            return None
        return _safe_lines(headers)


def _safe_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Headers as they are written; None where one has what no header may have."""
    lines = _LINES(map(_LINE, headers))
    is_safe = len(lines.translate(None, _CONTROLS)) == len(lines) - 2 * (len(headers) - 1)
    return lines if is_safe else None


def _whole(status: int, fixed: Iterable[tuple[bytes, bytes]], lines: bytes, body: bytes) -> bytes:
    return b"%b%b%b\r\n\r\n%b" % (STATUS_LINE[status], _encode(tuple(fixed)), lines, body)


@lru_cache(2)  # they change once a second, with the time
def _encode(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return _LINES([*map(_LINE, headers), b""])


class JoiningProtocol(Protocol):
    """uvicorn's protocol over such a transport; the headers of a request are those in front of its body."""

    departure = Departure(None, is_joined=False)
    """After its begin each request is the last one of its connection."""

    def on_headers_complete(self) -> None:
        """Start the request; whatever comes as a header from now on is a trailer."""
        if not self.url.startswith(b"/"):
            self._keep_target_host()
        super().on_headers_complete()
        # What is added from now on is not in the application's list. A method around each header would cost
        # more than checking a token does.
        self.headers = self.headers.copy()
        if self.cycle is not None:  # uvicorn names the class of this in its own code alone
            self.cycle.__class__ = JoinedReply
            if self.departure.has_begun:
                self.cycle.keep_alive = False

    def _keep_target_host(self) -> None:
        scheme, _, rest = self.url.partition(b"://")
        if rest and scheme.isalpha():
            authority = rest.partition(b"/")[0].partition(b"?")[0]
            cast("dict[str, Any]", self.scope)["target_host"] = authority

    def write_at_once(self, reply: WholeReply) -> None:
        """Write a reply to what uvicorn has not seen."""
        headers, body = reply
        lines = _safe_lines(headers)
        assert lines is not None, "the headers are ours"
        self._unset_keepalive_if_required()  # HAProxy closes what it does not use
        transport: Any = self.transport
        transport.write_last(_whole(200, self.server_state.default_headers, lines, body))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport)))
