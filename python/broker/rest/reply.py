"""Writes a response: status, headers, body or stream, and errors in their common form."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any

import orjson

from broker.errors import BrokerError, Unauthenticated
from broker.operations.rendering import result_json
from broker.operations.results import Forwarded, Json, Reply, Result, Stream
from broker.rest.asgi import Receive, Send
from broker.rest.headers import EVERY_REPLY, RawHeader
from broker.rest.request import ClientGone
from broker.rest.routing import Endpoint
from broker.tracing.contexts import trace_id_of
from broker.tracing.tracer import Span

PREFLIGHT: tuple[RawHeader, ...] = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-allow-headers",
        b"Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Request-Id",
    ),
    (b"access-control-max-age", b"7200"),
)

_USUAL = {"Cache-Control": "no-store"}
_USUAL_LINES = ((b"cache-control", b"no-store"),)
_WITH_HEADERS = (Json, Stream, Forwarded, Reply)
_NAMES = 500  # remembered at a time
_OF_MOMENT = frozenset({429, 500, 503})  # statuses that say nothing of what was asked for; nobody keeps them


class Exchange:
    """One reply on its way; knows whether it has begun and how large it became.

    `has_effect` once something runs that changes something. `error_cache` is the `Cache-Control` of an error
    that says something of what was asked for. `began_s` is when its request came, in monotonic seconds, and
    `trace` the span of a request that is traced.
    """

    __slots__ = (
        "_if_none_match", "_is_head", "_is_over", "_is_watched", "_receive", "_send",
        "began_s", "error_cache", "has_effect", "request_id", "sent_bytes", "status", "trace",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        receive: Receive,
        request_id: str,
        *,
        is_head: bool,
        if_none_match: str | None = None,
        error_cache: bytes = b"no-store",
        began_s: float = 0.0,
    ) -> None:
        """Remember how to reply.

        Args:
            if_none_match: the request's, when it is a GET or HEAD.
        """
        self._send = send
        self._if_none_match = if_none_match
        self._receive = receive
        self._is_head = is_head
        self._is_over = False  # all of it has been handed over, or there is nothing to wait for
        self._is_watched = False
        self.request_id = request_id
        self.began_s = began_s
        self.error_cache = error_cache
        self.trace: Span | None = None
        self.has_effect = False
        self.status = 0
        self.sent_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether the status has been sent, so that an error can no longer be told."""
        return self.status != 0

    @property
    def trace_id(self) -> str | None:
        """The id of the request's trace, for logs; None when it is not traced."""
        return None if self.trace is None else trace_id_of(self.trace.context)

    async def whole(
        self, status: int, body: bytes, media_type: str, headers: Iterable[RawHeader] = ()
    ) -> None:
        """Send a reply in one piece."""
        self._is_over = True
        await self._send(self._start(status, _fixed_headers(status, body, media_type, headers)))
        await self._send(self._part(b"" if self._is_head else body, more=False))

    async def error(self, error: BrokerError, headers: Iterable[RawHeader] = ()) -> None:
        """Send an error."""
        cache = b"no-store" if error.status in _OF_MOMENT else self.error_cache
        extra = [(b"cache-control", cache), *headers]
        if error.retryable:  # unknown is soon
            extra.append((b"retry-after", b"%d" % max(1, error.retry_after_s or 1)))
        if isinstance(error, Unauthenticated):
            extra.append((b"www-authenticate", b"Bearer"))
        await self.whole(error.status, orjson.dumps(error.body()), "application/json", extra)

    async def representation(
        self, body: bytes, media_type: str, etag: str, headers: Iterable[RawHeader]
    ) -> None:
        """Send 200 with what has an ETag, or 304 to a client that has it already."""
        extra = [etag_header(etag), *headers]
        if _is_known(etag, self._if_none_match):
            await self.whole(304, b"", "", extra)
        else:
            await self.whole(200, body, media_type, extra)

    async def result(self, endpoint: Endpoint, result: Result) -> None:
        """Send what an operation answered."""
        headers: Mapping[str, str] = _USUAL
        if isinstance(result, _WITH_HEADERS) and result.headers:
            headers = {**_USUAL, **result.headers}
        if isinstance(result, Stream):
            await self._stream(endpoint.route.status, result, _encoded(headers))
            return
        if isinstance(result, Forwarded):
            await self.whole(result.status, result.body, result.media_type, _encoded(headers))
            return
        if "ETag" in headers and _is_known(headers["ETag"], self._if_none_match):
            await self.whole(304, b"", "", _encoded(headers))
            return
        body = result_json(result)
        status = (result.status if isinstance(result, Json) else None) or endpoint.route.status
        route = endpoint.route
        if route.location and "Location" not in headers and not route.locates_itself:
            headers = {**headers, "Location": f"/api/v1{route.location.format_map(orjson.loads(body))}"}
        await self.whole(status, body, "application/json", _encoded(headers))

    async def _stream(self, status: int, stream: Stream, headers: Sequence[RawHeader]) -> None:
        """Send a stream's parts as they come; stop reading it when the client hangs up."""
        fixed = [(b"content-type", stream.media_type.encode()), *headers]
        chunks = stream.chunks
        try:
            if self._is_head:
                await self._send(self._start(status, fixed))
                await self._end()
                return
            # The first part is made before the status is sent: what fails at once can still be told.
            first = await anext(chunks, b"")
            await self._send(self._start(status, fixed))
            await self._send(self._part(first, more=True))
            if self._is_watched:
                async for chunk in chunks:
                    await self._send(self._part(chunk, more=True))
                await self._end()
            else:
                await self._until_hung_up(chunks)
        finally:
            await stream.close()

    async def _end(self) -> None:
        """Send the end of a stream; from now on it is no loss when the client goes."""
        self._is_over = True
        await self._send(self._part(b"", more=False))

    async def _until_hung_up(self, chunks: AsyncIterator[bytes]) -> None:
        hung_up = asyncio.ensure_future(self._hang_up())
        try:
            async for chunk in chunks:
                if hung_up.done():
                    return
                await self._send(self._part(chunk, more=True))
            await self._end()
        finally:
            hung_up.cancel()
            with suppress(asyncio.CancelledError):
                await hung_up

    @asynccontextmanager
    async def ended_by_client(self) -> AsyncIterator[None]:
        """Cancel the block when the client hangs up before it has the whole reply. Raises ClientGone then."""
        task = asyncio.current_task()
        assert task is not None, "what can be cancelled is a task"
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            await self._hang_up()
            if not self._is_over:
                is_gone = True
                task.cancel()

        watching = asyncio.ensure_future(watch())
        self._is_watched = True
        try:
            yield
        except asyncio.CancelledError:
            if is_gone and task.uncancel() == 0:
                raise ClientGone("the client hung up") from None
            raise
        finally:
            self._is_over = True
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _hang_up(self) -> None:
        """Return when the client is gone; a server goes on taking parts for nobody."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _start(self, status: int, headers: list[RawHeader]) -> dict[str, Any]:
        self.status = status
        _complete(headers, self.request_id)
        return {"type": "http.response.start", "status": status, "headers": headers}

    def _part(self, body: bytes, *, more: bool) -> dict[str, Any]:
        self.sent_bytes += len(body)
        return {"type": "http.response.body", "body": body, "more_body": more}


def etag_header(etag: str) -> RawHeader:
    """The header of a representation's ETag."""
    return b"etag", etag.encode()


def whole_headers(
    body: bytes, media_type: str, headers: Iterable[RawHeader], request_id: str
) -> list[RawHeader]:
    """All headers of a whole reply with status 200."""
    lines = _fixed_headers(200, body, media_type, headers)
    _complete(lines, request_id)
    return lines


def _fixed_headers(
    status: int, body: bytes, media_type: str, headers: Iterable[RawHeader]
) -> list[RawHeader]:
    fixed = [(b"content-length", b"%d" % len(body))] if status not in (204, 304) else []
    if body:
        fixed.append((b"content-type", media_type.encode()))
    return [*fixed, *headers]


def _complete(headers: list[RawHeader], request_id: str) -> None:
    """Add what each reply has."""
    headers += EVERY_REPLY
    headers.append((b"x-request-id", request_id.encode()))


def _is_known(etag: str, if_none_match: str | None) -> bool:
    """Whether the client has this representation already (RFC 9110, section 13.1.2)."""
    if if_none_match is None:
        return False
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return known == ["*"] or etag in known


def _encoded(headers: Mapping[str, str]) -> Sequence[RawHeader]:
    if headers is _USUAL:
        return _USUAL_LINES
    return [(_encode(name), value.encode("latin-1")) for name, value in headers.items()]


@lru_cache(_NAMES)
def _encode(name: str) -> bytes:
    return name.lower().encode()
