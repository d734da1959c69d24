"""The HTTP application of the image proxy: `GET /api/v2/imgproxy/{account}/{options}?url=…`.

It is an application of its own, beside the API's, so that the bytes of images pass no process of the API.
No token is needed: what an account allows stands in its rules. Where they demand signed URLs, the query has
`expires` and `signature` too (`broker.image_urls`); nobody is told to keep a reply beyond that expiry.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

from broker.clock import Clock
from broker.concurrency.shares import Asker, Shares
from broker.domain.callers import caller_of
from broker.domain.statistics import ImagesUsed
from broker.domain.values import is_account_name
from broker.errors import BrokerError, MethodNotAllowed, NotFound, shorten
from broker.ids import IdSource
from broker.image_urls import PREFIX
from broker.images.errors import InvalidImageUrl
from broker.images.purge_notices import HEADER, read_notice
from broker.images.service import ServedImage
from broker.images.signatures import Signature, left_s
from broker.images.usage import UsageCounter
from broker.metrics import catalogue
from broker.metrics.counts import HTTP_RESPONSES, Sample
from broker.rest.access_log import LoggedRequest
from broker.rest.asgi import Receive, WholeReply
from broker.rest.callers import CallOrigin
from broker.rest.door import Door, header_text
from broker.rest.headers import RawHeader
from broker.rest.plain_heads import read_plain_head
from broker.rest.reply import Exchange, etag_header, whole_headers
from broker.rest.request import Headers, request_id_of
from broker.rest.routing import split_path
from broker.settings import Settings

_METHODS = "GET, HEAD, OPTIONS"
REQUESTS = 4_096
"""Requests at a time; one that waits for its image holds some 20 KB."""
_MAX_PARAMETERS = 10
_PARAMETERS = {"url", "expires", "signature"}
_QUERIES = 4_096  # that are remembered, of at most so many bytes each
_TARGETS = 1_024  # likewise; each holds some 3 KB at most
_SHORT_BYTES = 1_024
_SHOWN_CHARACTERS = 40  # of a parameter that is repeated
_NOTICE = HEADER.encode()
_PREFIX = PREFIX.encode()
_KEPT_S = 5_184_000  # by browsers, and by caches that are shared:
_SHARED_S = 86_400
_ERROR_S = 300
_FOUND_CACHE = b"public, max-age=%d, s-maxage=%d"
_ERROR_CACHE = b"public, max-age=%d"
_FOUND: RawHeader = (b"cache-control", _FOUND_CACHE % (_KEPT_S, _SHARED_S))
_HIT: tuple[RawHeader, ...] = (_FOUND, (b"x-cache", b"HIT"))
_MISS: tuple[RawHeader, ...] = (_FOUND, (b"x-cache", b"MISS"))
_PREFLIGHT: tuple[RawHeader, ...] = (
    (b"allow", _METHODS.encode()),
    (b"access-control-allow-methods", b"GET, HEAD"),
    (b"access-control-max-age", b"7200"),
)


class Get(Protocol):
    """Where images come from."""

    async def __call__(
        self, asker: Asker, options_text: str, url: str, signature: Signature | None
    ) -> ServedImage:
        """An image; see `ImageService.get`."""
        ...


class Find(Protocol):
    """Where images come from that are in memory."""

    def __call__(
        self, asker: Asker, options_text: str, url: str, signature: Signature | None
    ) -> ServedImage | None:
        """An image; see `ImageService.find`."""
        ...


KnowPurges = Callable[[int], Awaitable[None]]
"""Has the purges up to a number read; see `ImageService.know_purges`."""


class ImageApp(Door):
    """The application over one `ImageService`."""

    error_cache = _ERROR_CACHE % _ERROR_S

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        get: Get,
        find: Find,
        know_purges: KnowPurges,
        usage: UsageCounter,
        timeout_s: float | None = None,
    ) -> None:
        """Serve what `get` gives, and at once what `find` finds."""
        super().__init__(settings, clock, ids, timeout_s)
        self._ingress_key = settings.ingress_key
        self._get = get
        self._find = find
        self._know_purges = know_purges
        self._usage = usage
        self._sent_bytes = 0
        self._shares = Shares(REQUESTS, "too many images are being asked for")

    async def serve(
        self,
        scope: Mapping[str, Any],
        headers: Headers,
        caller: CallOrigin,
        receive: Receive,
        exchange: Exchange,
    ) -> None:
        """Answer with an image."""
        del receive
        account, options = _read_path(scope.get("raw_path") or scope["path"].encode())
        method = scope["method"]
        if method == "OPTIONS":
            await exchange.whole(204, b"", "", _PREFLIGHT)
            return
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"the methods of this path are {_METHODS}", _METHODS.split(", "))
        asker = _asker(account, caller)
        query = scope.get("query_string", b"")
        url, signature = _asked(query) if len(query) <= _SHORT_BYTES else _read_query(query)
        notice = header_text(headers, _NOTICE)
        purges = None if notice is None else read_notice(self._ingress_key, notice)
        with self._shares.held(asker):
            if purges is not None:
                await self._know_purges(purges)
            try:
                served = await self._get(asker, options, url, signature)
            except BrokerError:
                exchange.error_cache = _ERROR_CACHE % self._at_most(_ERROR_S, signature)
                raise
        extra = self._headers_of(served, signature)
        await exchange.representation(served.body, served.type, served.etag, extra)
        self._count_sent(account, exchange.sent_bytes)

    def answer_at_once(self, data: bytes) -> WholeReply | None:
        """The reply to a plain request for an image in memory; None for what `__call__` shall answer.

        Most requests are such ones, and their way through a server takes longer than all of this. What is
        counted and logged is the same.
        """
        began_s = self._clock.monotonic_s()
        head = read_plain_head(data) if self._ingress_key else None
        if head is None or _NOTICE in head.headers or len(head.target) > _SHORT_BYTES:
            return None
        headers = head.headers
        try:
            caller = self._callers.identify({"headers": tuple(headers.items())}, headers)
            asked = _read_target(head.target)  # after it, since targets are remembered
        except BrokerError:
            return None
        served = self._find(_asker(asked.account, caller), asked.options, asked.url, asked.signature)
        if served is None:
            return None
        request_id = request_id_of(headers) or self._ids.uuid7()
        extra = self._headers_of(served, asked.signature)
        lines = whole_headers(served.body, served.type, (etag_header(served.etag), *extra), request_id)
        sent_bytes = len(served.body)
        self._count_sent(asked.account, sent_bytes)
        HTTP_RESPONSES.add("2xx")
        self._access_log.add(
            LoggedRequest(
                self._clock.now_ms(),
                request_id,
                caller.address,
                "GET",
                headers.get(b"host", b"").decode("latin-1"),
                asked.path,
                200,
                self._clock.monotonic_s() - began_s,
                sent_bytes,
            )
        )
        return lines, served.body

    def _count_sent(self, account: str, sent_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._usage.count_images(account, ImagesUsed(sent_bytes=sent_bytes))

    def _headers_of(self, served: ServedImage, signature: Signature | None) -> tuple[RawHeader, ...]:
        headers = _HIT if served.is_hit else _MISS
        if signature is None:
            return headers
        times = self._at_most(_KEPT_S, signature), self._at_most(_SHARED_S, signature)
        return ((b"cache-control", _FOUND_CACHE % times), *headers[1:])

    def _at_most(self, kept_s: int, signature: Signature | None) -> int:
        """How long a reply of now may be kept: `kept_s`, but not beyond the expiry of its URL."""
        left = left_s(signature, self._clock.now_ms() / 1_000)
        return kept_s if left is None else min(kept_s, left)

    def figures(self) -> Iterator[Sample]:
        """What is under way, and what was sent."""
        yield from super().figures()
        yield Sample(catalogue.IMAGE_BYTES.name, (), self._sent_bytes)


def _asker(account: str, caller: CallOrigin) -> Asker:
    return Asker(account, caller.address and caller_of(caller.address))


class _Asked(NamedTuple):
    """What the target of a request names; `path` as it is logged."""

    path: str
    account: str
    options: str
    url: str
    signature: Signature | None


@lru_cache(_TARGETS)
def _read_target(target: bytes) -> _Asked:
    """The parts of a target. Raises BrokerError for what `ImageApp.serve` shall refuse."""
    path, _, query = target.partition(b"?")
    account, options = _read_path(path)
    if b"#" in target or not target.isascii():
        raise NotFound("a target has no fragment, and is percent-encoded")
    return _Asked(unquote(path.decode("ascii")), account, options, *_read_query(query))


def _read_path(path: bytes) -> tuple[str, str]:
    """The account and the options. Raises NotFound, and InvalidRequest for what is not UTF-8."""
    segments = split_path(path[len(PREFIX) :])
    if not path.startswith(_PREFIX) or len(segments) != 2 or not is_account_name(segments[0]):
        raise NotFound("images are at /api/v2/imgproxy/{account}/{options}?url={url}")
    return segments[0], segments[1]


def _read_query(query: bytes) -> tuple[str, Signature | None]:
    """The source's URL, and what it is signed with."""
    if query.count(b"&") >= _MAX_PARAMETERS:
        raise InvalidImageUrl(
            f"url: must be percent-encoded; the query has over {_MAX_PARAMETERS} parameters"
        )
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidImageUrl("url: must be percent-encoded UTF-8") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise InvalidImageUrl(f"{shorten(repeated, _SHOWN_CHARACTERS)}: must not be repeated")
    if set(values) - _PARAMETERS:
        raise InvalidImageUrl("url: must be percent-encoded; the query has unknown parameters")
    if "url" not in values:
        raise InvalidImageUrl("url: is missing")
    if ("expires" in values) != ("signature" in values):
        raise InvalidImageUrl("signature: expires and signature go together")
    if "signature" not in values:
        return values["url"], None
    return values["url"], Signature(values["expires"], values["signature"])


_asked = lru_cache(_QUERIES)(_read_query)
