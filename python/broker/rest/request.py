"""Reads a request: headers, query, body, token. All of it is untrusted and bounded."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from broker.domain.strict_json import parse_json
from broker.domain.values import MAX_INTEGER
from broker.errors import (
    InvalidRequest,
    NotAcceptable,
    PayloadTooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)
from broker.operations.registry import Route
from broker.rest.asgi import Receive
from broker.rest.deadlines import Deadlines
from broker.rest.held_bodies import HeldBody
from broker.rest.routing import Endpoint

Headers = Mapping[bytes, bytes]

JSON_TYPE = "application/json"
_JSON_TYPE = JSON_TYPE.encode()
_ENCODING = b"content-encoding"
FORM_TYPE = "application/x-www-form-urlencoded"
MALFORMED = InvalidRequest("the request is malformed")
"""The answer to what is no HTTP."""

MAX_REQUEST_ID_CHARACTERS = 128
PART_S = 30.0  # between two parts of a body; a sender that trickles slower is cut off
_DRAINED_BYTES = 2 << 20  # every body of the usual limit, and one that is twice as long
_DRAINED_S = 1.0
_MAX_PARAMETERS = 100
_QUERIES = 200  # remembered; 1 MB where each is nothing but separators
_QUERY_BYTES = 64
_FORM_BYTES = 64 << 10  # the longest log-in with each byte escaped has 55 KiB; escapes take long to read
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_REQUEST_ID_CHARACTERS)
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_LEADING_TOKEN = re.compile(rb'\s*\{\s*"access_token"\s*:\s*("[^"\\]*")')
TOKEN = "access_token"  # noqa: S105 - the name of a field
_BOOLEANS = {"true": True, "false": False}


# What counts once: two readers that pick different ones see two requests.
_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"origin",
        b"x-request-id",
    }
)


class ClientGone(InvalidRequest):
    """The client hung up before its request was complete; there is nobody to answer."""


def read_headers(received: Sequence[tuple[bytes, bytes]], target_host: bytes | None) -> dict[bytes, bytes]:
    """The headers by name in lower case; the values of one that may be repeated are a list (RFC 9110, 5.3).

    Args:
        target_host: the host and port that a target in absolute form names.

    Raises:
        InvalidRequest: a header is repeated that counts once, or `Host` is not that of the target.
    """
    headers = dict(received)
    if len(headers) < len(received):
        lists: dict[bytes, list[bytes]] = {}
        for name, value in received:
            lists.setdefault(name, []).append(value)
        for name, values in lists.items():
            if len(values) > 1 and name in _ONCE:
                raise InvalidRequest.of_field(name.decode("latin-1").title(), "must not be repeated")
            headers[name] = b", ".join(values)
    if target_host is not None and target_host.lower() != headers.get(b"host", b"").strip().lower():
        raise InvalidRequest.of_field("Host", "must be the host of the request target")
    return headers


def request_id_of(headers: Headers) -> str | None:
    """The caller's own id for the request, when it is 1 to 128 printable characters."""
    value = headers.get(b"x-request-id", b"")
    return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None


def bearer_token(headers: Headers) -> str | None:
    """The token of the `Authorization` header; None without one.

    Raises:
        Unauthenticated: the header is there and is not a bearer token (RFC 6750, section 2.1).
    """
    value = headers.get(b"authorization")
    if value is None:
        return None
    scheme, _, token = value.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the Authorization header must be: Bearer <access token>")
    return token.strip()


def negotiate(headers: Headers, produces: tuple[str, ...]) -> str:
    """The media type of `produces` that the `Accept` header prefers (RFC 9110, section 12.5.1).

    Raises:
        NotAcceptable: it takes none of them.
    """
    accept = headers.get(b"accept")
    # An empty one lists nothing, and so it prefers nothing.
    if accept is None or accept.strip() in (b"", b"*/*", produces[0].encode()):
        return produces[0]
    ranges = _qualities(accept.decode("latin-1"))
    best = max(produces, key=lambda media_type: _quality(ranges, media_type))  # the first of equal ones
    if _quality(ranges, best) <= 0:
        raise NotAcceptable(f"the available media types are {' or '.join(produces)}")
    return best


def takes_coding(headers: Headers, coding: str) -> bool:
    """Whether the client asks for a content coding by name (RFC 9110, section 12.5.3)."""
    accept = headers.get(b"accept-encoding", b"").decode("latin-1")
    return _qualities(accept).get(coding, 0.0) > 0


def _qualities(accept: str) -> dict[str, float]:
    ranges = {}
    for part in accept.split(","):
        media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        ranges[media_range] = quality
    return ranges


def _quality(ranges: dict[str, float], media_type: str) -> float:
    group = f"{media_type.partition('/')[0]}/*"
    return next((ranges[key] for key in (media_type, group, "*/*") if key in ranges), 0.0)


def parse_query(query: bytes, endpoint: Endpoint) -> dict[str, Any]:
    """The query's parameters, as the JSON values that the params model expects.

    Raises:
        InvalidRequest: malformed, repeated, or not a parameter of this operation.
        PayloadTooLarge: there are over `_MAX_PARAMETERS`.
    """
    if not query:
        return {}
    _require_few(query, "query")
    try:
        pairs = _known_pairs(query) if len(query) <= _QUERY_BYTES else _pairs(query)
    except ValueError:
        raise _malformed_query() from None
    if endpoint.route.is_proxy:
        return {"query": _repeatable(pairs)}
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise InvalidRequest.of_field(name, "must not be repeated")
        kind = endpoint.query.get(name)
        if kind is None:
            raise InvalidRequest.of_field(name, "is not a parameter of this request")
        values[name] = _typed(text, kind, name)
    return values


def _require_few(query: bytes, field: str) -> None:
    # Before any of them is read: each separator counts, whatever stands between two.
    if query.count(b"&") >= _MAX_PARAMETERS:
        raise PayloadTooLarge.of_field(field, f"must not have over {_MAX_PARAMETERS} parameters")


def query_token(query: bytes) -> str | None:
    """The token in the query of a stream, of which gateways take the first; None without one.

    Raises:
        InvalidRequest: the query is malformed.
        PayloadTooLarge: it has over `_MAX_PARAMETERS`.
    """
    _require_few(query, "query")
    try:
        return next((text for name, text in _pairs(query) if name == TOKEN), None)
    except ValueError:
        raise _malformed_query() from None


def _malformed_query() -> InvalidRequest:
    return InvalidRequest.of_field("query", "must be percent-encoded UTF-8")


def _pairs(query: bytes) -> list[tuple[str, str]]:
    """Raises ValueError when it is malformed."""
    return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")


@lru_cache(_QUERIES)
def _known_pairs(query: bytes) -> list[tuple[str, str]]:
    """As `_pairs`, for queries that come again and again; nobody changes the list."""
    return _pairs(query)


def _repeatable(pairs: list[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Parameters by name; the values of a repeated one are a list."""
    lists: dict[str, list[str]] = {}
    for name, text in pairs:
        lists.setdefault(name, []).append(text)
    return {name: texts[0] if len(texts) == 1 else texts for name, texts in lists.items()}


def _typed(text: str, kind: str, name: str) -> Any:
    """The value that a text stands for; other text stays as it is, and validation says what is allowed."""
    if kind == "integer" and _INTEGER.fullmatch(text):
        value = int(text)
        if abs(value) > MAX_INTEGER:
            raise InvalidRequest.of_field(name, f"must be from {-MAX_INTEGER} to {MAX_INTEGER}")
        return value
    return _BOOLEANS.get(text, text) if kind == "boolean" else text


def has_content(headers: Headers) -> bool:
    """Whether a body comes with the request (RFC 9112, section 6.3)."""
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


class RequestBody:
    """The body of a request that has one, as it is received; `is_unread` until its last part was."""

    __slots__ = ("_receive", "is_unread")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_unread = True

    async def receive(self) -> Mapping[str, Any]:
        """The next message of the request."""
        message = await self._receive()
        self.is_unread = message.get("more_body", False)
        return message


async def body_chunks(
    receive: Receive, headers: Headers, limit_bytes: int, waits: Deadlines
) -> AsyncIterator[bytes]:
    """The body as it comes, at most `limit_bytes` in all, whatever `Content-Length` says.

    Args:
        waits: bounds the wait for each part.

    Raises:
        PayloadTooLarge: it is longer.
        InvalidRequest: it does not come in time.
        ClientGone: the client hung up.
    """
    _require_length(headers, limit_bytes)
    size, more = 0, True
    while more:
        chunk, more = await _next_chunk(receive, waits)
        size += len(chunk)
        _require_size(size, limit_bytes)
        if chunk:
            yield chunk


SMALL_BYTES = 16 << 10
"""A whole body up to this is not counted: those of a replica's thousand requests are 16 MiB."""


async def read_body(
    receive: Receive, headers: Headers, limit_bytes: int, waits: Deadlines, held: HeldBody
) -> bytes:
    """The whole body; see `body_chunks`, which takes longer.

    Args:
        held: counts what is in memory of a body that is not small, or comes in parts.

    Raises:
        Unavailable: there is no room for it; else as `body_chunks`.
    """
    _require_length(headers, limit_bytes)
    chunk, more = await _next_chunk(receive, waits)
    if not more and len(chunk) <= min(SMALL_BYTES, limit_bytes):
        return chunk
    _require_size(len(chunk), limit_bytes)
    held.take(len(chunk))
    if not more:
        return chunk
    whole = bytearray(chunk)  # a list of parts would take many times their bytes where each is short
    while more:
        chunk, more = await _next_chunk(receive, waits)
        _require_size(len(whole) + len(chunk), limit_bytes)
        held.take(len(chunk))
        whole += chunk
    return bytes(whole)


def _require_length(headers: Headers, limit_bytes: int) -> None:
    length = headers.get(b"content-length", b"")
    if length.isdigit():
        _require_size(int(length), limit_bytes)


def _require_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise PayloadTooLarge(f"the body must not be over {limit_bytes} bytes")


async def _next_chunk(receive: Receive, waits: Deadlines) -> tuple[bytes, bool]:
    """The next part of a body, and whether there is another one."""
    wait = waits.begin()
    try:
        message = await receive()
    except asyncio.CancelledError:
        if not waits.is_late(wait):
            raise
        raise InvalidRequest.of_field("body", "did not arrive in time") from None
    finally:
        waits.end(wait)
    if message["type"] == "http.disconnect":
        raise ClientGone("the connection ended before the body was complete")
    return message.get("body", b""), message.get("more_body", False)


async def drain(receive: Receive, headers: Headers) -> bool:
    """Discard the rest of an unused body, if it is short; true when all of it was read.

    A connection that is closed over bytes that were not read is reset, and its client may lose the reply (RFC
    9112, section 9.6). Who waits to be told to go on has sent nothing, and to read would tell it (RFC 9110,
    section 10.1.1).
    """
    left, length = _DRAINED_BYTES, headers.get(b"content-length", b"")
    if b"expect" in headers or (length.isdigit() and int(length) > left):
        return False
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED_S):
            while left >= 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return message["type"] != "http.disconnect" and left >= 0
    return False


def check_body_type(headers: Headers, route: Route) -> str:
    """The media type of the body. Raises UnsupportedMediaType for one that the operation does not read."""
    sent = headers.get(b"content-type", b"")
    if sent == _JSON_TYPE and JSON_TYPE in route.consumes and _ENCODING not in headers:
        return JSON_TYPE  # nearly always
    media_type, _, parameters = sent.decode("latin-1").partition(";")
    media_type = media_type.strip().lower()
    allowed = (*route.consumes, FORM_TYPE) if route.form else route.consumes
    charset = parameters.strip().lower().replace('"', "")
    if media_type not in allowed or (charset.startswith("charset=") and charset != "charset=utf-8"):
        raise UnsupportedMediaType(f"the Content-Type of the body must be {' or '.join(allowed)}, in UTF-8")
    if headers.get(_ENCODING, b"identity").lower() != b"identity":
        raise UnsupportedMediaType("the body must not have a Content-Encoding")
    return media_type


def parse_body(content: bytes, media_type: str, whole_body: str | None = None) -> dict[str, Any]:
    """The fields of a JSON or form body; an empty body has none.

    Args:
        whole_body: makes the body one field of this name, whatever JSON it is; its token is taken out first.

    Raises:
        InvalidRequest: malformed, not an object, or a form field is repeated.
        PayloadTooLarge: a form has over `_FORM_BYTES` or `_MAX_PARAMETERS`.
    """
    if not content:
        return {}
    if media_type == FORM_TYPE:
        return _parse_form(content)
    value = parse_json(content, whole_body or "")
    if whole_body is not None:
        token = {name: value.pop(name) for name in (TOKEN,) if isinstance(value, dict) and name in value}
        return {whole_body: value} | token
    if not isinstance(value, dict):
        raise InvalidRequest.of_field("body", "must be an object")
    return value


def _parse_form(content: bytes) -> dict[str, Any]:
    _require_size(len(content), _FORM_BYTES)
    _require_few(content, "body")
    try:
        pairs = _pairs(content)
    except ValueError:
        raise InvalidRequest.of_field("body", "is not a form in percent-encoded UTF-8") from None
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise InvalidRequest.of_field(name, "must not be repeated")
        values[name] = text
    return values


def take_token(fields: dict[str, Any]) -> str | None:
    """Take the access token out of a body's fields; it is never part of the resource.

    Raises:
        Unauthenticated: it is there and is no text.
    """
    if TOKEN not in fields:
        return None
    token = fields.pop(TOKEN)
    if not isinstance(token, str) or not token:
        raise Unauthenticated("access_token must be a string")
    return token


def leading_token(start: bytes) -> str | None:
    """The access token of a body that is streamed: only its first member can be it."""
    found = _LEADING_TOKEN.match(start)
    token = parse_json(found[1], TOKEN) if found else None
    return token if token is None else str(token)


def merge_path(fields: dict[str, Any], endpoint: Endpoint, values: Sequence[str]) -> dict[str, Any]:
    """The path's values joined to the other params; a field of the same name must say the same.

    Raises:
        InvalidRequest: it says something else.
    """
    for name in endpoint.route.repeated:
        fields.setdefault(name, None)
    for name, value in zip(endpoint.names, values, strict=True):
        told = fields.setdefault(name, value)
        if told is None:
            fields[name] = value
        elif told != value:
            raise InvalidRequest.of_field(name, "must equal the one in the path")
    return fields
