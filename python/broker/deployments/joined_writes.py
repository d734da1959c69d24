"""uvicorn's protocol as replicas use it: one write for a reply, and headers that end where they end.

uvicorn makes two writes of a reply.

uvicorn writes the head of a reply when it is told the status and the body when it comes, and uvloop hands
each to the kernel at once. For a short reply the second write takes as long as checking a token, and HAProxy
wakes for each. So what is written first in a turn of the event loop waits for a second part, until the end of
that turn at most.

Trailers (RFC 9112, section 7.1.2) come through the same callback as headers, and uvicorn puts them into the
list that the application has already: `Host` and `Authorization` of a trailer would count. Here they go
into another list, which nobody reads. The host of a target in absolute form, which uvicorn drops, is handed
on for the application to compare.
"""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http import auto

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:
    Protocol = auto.AutoHTTPProtocol


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


class JoiningProtocol(Protocol):
    """uvicorn's protocol over such a transport; the headers of a request are those in front of its body."""

    def on_headers_complete(self) -> None:
        """Start the request; whatever comes as a header from now on is a trailer."""
        if not self.url.startswith(b"/"):
            self._keep_target_host()
        super().on_headers_complete()
        # What is added from now on is not in the application's list. A method around each header would cost
        # more than checking a token does.
        self.headers = self.headers.copy()

    def _keep_target_host(self) -> None:
        scheme, _, rest = self.url.partition(b"://")
        if rest and scheme.isalpha():
            authority = rest.partition(b"/")[0].partition(b"?")[0]
            cast("dict[str, Any]", self.scope)["target_host"] = authority

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport)))
