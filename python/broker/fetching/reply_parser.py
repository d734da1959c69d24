"""Reads one reply from bytes as they come, without any I/O (RFC 9112).

llhttp, the parser of Node.js, takes a reply apart. This adds what it leaves to its user: how long a head may
be, which replies are none, where a body ends that has no length, and whether the connection can carry another
request. Informational replies before it are passed over (RFC 9110, section 15.2), and trailers are ignored.

A parser is strict where two readers could see two replies: a length beside `chunked`, two lengths, and a
transfer coding that was not asked for are refused. A line may end in LF alone, as section 2.2 allows.

A 204 and an informational reply have no body and must not declare one (RFC 9110, section 8.6; RFC 9112,
section 6.1). Where one does, its server may send that body later, which the next request would read as the
beginning of its reply: such a reply is taken, and its connection is not used again. A 304 and a reply to HEAD
may say how long the body of a 200 would be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httptools

from broker.errors import BrokerError
from broker.fetching.bodies import BodyReader
from broker.fetching.errors import UpstreamFailed

MAX_HEAD_BYTES = 100 << 10
"""Of all heads of a reply together, the informational ones too, and of what comes after its body.

Servers bound what they read to a tenth.
"""

_VERSIONS = frozenset({"1.0", "1.1"})
_FIRST, _FIRST_FINAL, _NO_CONTENT = 100, 200, 204
_CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status and headers.

    Attributes:
        headers: names in lower case, repeated ones joined by a comma.
    """

    status: int
    headers: Mapping[str, str]


Begin = Callable[[ReplyHead], BodyReader | None]
"""Called with a reply's head before its body: what takes the body, None to leave it unread. May raise."""


class ReplyParser:
    """The reply to one request.

    Attributes:
        is_complete: whether all has come that is wanted.
        is_reusable: whether nothing is left on the connection, and its server keeps it open.
    """

    def __init__(self, begin: Begin, *, is_head: bool) -> None:
        """Nothing has come. Args: is_head: whether it was asked with HEAD, so that no body comes."""
        self._begin = begin
        self._is_head = is_head
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._head: ReplyHead | None = None
        self._headers_bytes = 0
        # Since the last part of the body; of trailers, too, llhttp keeps the present one.
        self._outside_bytes = 0
        self._is_body_fed = False
        self._headers: dict[str, list[str]] = {}  # values by name
        self._body: BodyReader | None = None
        self._keeps_open = False
        self._may_owe_body = False
        self._error: BrokerError | None = None
        self.is_complete = False
        self.is_reusable = False

    @property
    def head(self) -> ReplyHead:
        """Status and headers of a reply that is complete."""
        assert self._head is not None, "a reply is complete after its head"
        return self._head

    def body(self) -> tuple[bytes, ...]:
        """The parts of the body of a reply that is complete. Raises UpstreamFailed: it cannot be unpacked."""
        return () if self._body is None else self._body.finish()

    def feed(self, data: memoryview) -> None:
        """Take what came.

        Raises:
            UpstreamFailed: it is no reply of HTTP/1.1 or 1.0.
            BrokerError: what `begin` and the reader of the body raise.
        """
        assert self._parser is not None, "nobody feeds a parser that is closed"
        self._is_body_fed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # whatever has the status 101
            raise UpstreamFailed("the upstream changes the protocol") from None
        except httptools.HttpParserError as error:
            if not self.is_complete and self._error is None:
                raise _malformed(repr(error)) from None
            self.is_reusable = False  # what follows a whole reply is nothing that was asked for
        self._outside_bytes = 0 if self._is_body_fed else self._outside_bytes + len(data)
        self._bound(self._outside_bytes)
        if self._error is not None:
            refusal, self._error = self._error, None
            try:
                raise refusal
            finally:
                del refusal  # whose traceback has this frame, and with it what has come of the body

    def close(self) -> None:
        """Feed no more. llhttp's parser refers to this one, so that both would wait for the collector."""
        self._parser = None

    def end(self) -> None:
        """The server has closed the connection. Raises UpstreamFailed unless that ends the body."""
        head = self._head
        if head is None or not {"content-length", "transfer-encoding"}.isdisjoint(head.headers):
            raise UpstreamFailed("the upstream closes the connection before its reply is complete")
        self.is_complete = True

    # What llhttp calls. An error that were raised here would come out as one of its own.

    def on_message_begin(self) -> None:
        """A reply begins: ours, an informational one before it, or one that nobody asked for."""
        self._headers = {}
        self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        if self._head is not None or self._error is not None:
            return
        self._headers_bytes += len(name) + len(value)
        self._bound(self._headers_bytes)
        self._headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser = self._parser
        assert parser is not None, "it calls this"
        status = parser.get_status_code()
        if parser.get_http_version() not in _VERSIONS or status < _FIRST:
            self._error = self._error or _malformed("another version, or no status")
        if self._head is not None or self._error is not None:
            return
        if status < _FIRST_FINAL or status == _NO_CONTENT:
            self._may_owe_body |= self._declares_body()
        if status < _FIRST_FINAL:
            return
        headers = {name: ", ".join(values) for name, values in self._headers.items()}
        if headers.get("transfer-encoding", _CHUNKED).lower() != _CHUNKED:
            self._error = UpstreamFailed("the upstream's reply has a transfer coding that was not requested")
            return
        self._head = ReplyHead(status, headers)
        self._keeps_open = parser.should_keep_alive() and not self._may_owe_body
        try:
            self._body = self._begin(self._head)
        except BrokerError as error:
            self._error = error
            return
        self.is_complete = self._is_head or self._body is None

    def on_body(self, chunk: bytes) -> None:
        """A part of the body."""
        self._is_body_fed = True
        if self._body is None or self.is_complete or self._error is not None:
            return
        try:
            self._body.feed(chunk)
        except BrokerError as error:
            self._error = error

    def on_message_complete(self) -> None:
        """A reply is whole."""
        if self._head is not None and not self.is_complete:
            self.is_complete = True
            self.is_reusable = self._keeps_open

    def _declares_body(self) -> bool:
        return "transfer-encoding" in self._headers or self._headers.get("content-length", ["0"]) != ["0"]

    def _bound(self, size_bytes: int) -> None:
        if size_bytes > MAX_HEAD_BYTES and self._error is None:
            part = "head" if self._head is None else "end"
            self._error = UpstreamFailed(f"the {part} of the upstream's reply is too long")


def _malformed(cause: str) -> UpstreamFailed:
    return UpstreamFailed("the upstream's reply is malformed", log_text=cause)
