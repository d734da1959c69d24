"""The HTTP application of the image proxy: `GET /api/v2/imgproxy/{account}/{options}?url=…`.

It is an application of its own, beside the API's, so that the bytes of images pass no process of the API.
No token is needed: what an account allows stands in its rules. Where they demand signed URLs, the query has
`expires` and `signature` too (`broker.image_urls`); nobody is told to keep a reply beyond that expiry.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl

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
from broker.metrics.counts import Sample
from broker.rest.asgi import Receive
from broker.rest.callers import CallOrigin
from broker.rest.door import Door, header_text
from broker.rest.headers import RawHeader
from broker.rest.reply import Exchange
from broker.rest.request import Headers
from broker.rest.routing import split_path
from broker.settings import Settings

_METHODS = "GET, HEAD, OPTIONS"
REQUESTS = 4_096
"""Requests at a time; one that waits for its image holds some 20 KB."""
_MAX_PARAMETERS = 10
_PARAMETERS = {"url", "expires", "signature"}
_QUERIES = 4_096  # that are remembered, of at most so many bytes each
_SHORT_BYTES = 1_024
_SHOWN_CHARACTERS = 40  # of a parameter that is repeated
_NOTICE = HEADER.encode()
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
        know_purges: KnowPurges,
        usage: UsageCounter,
        timeout_s: float | None = None,
    ) -> None:
        """Serve what `get` gives."""
        super().__init__(settings, clock, ids, timeout_s)
        self._ingress_key = settings.ingress_key
        self._get = get
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
        segments = split_path((scope.get("raw_path") or scope["path"].encode())[len(PREFIX) :])
        if len(segments) != 2 or not is_account_name(segments[0]):
            raise NotFound("images are at /api/v2/imgproxy/{account}/{options}?url={url}")
        method = scope["method"]
        if method == "OPTIONS":
            await exchange.whole(204, b"", "", _PREFLIGHT)
            return
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"the methods of this path are {_METHODS}", _METHODS.split(", "))
        account, options = segments
        asker = Asker(account, caller.address and caller_of(caller.address))
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
        self._sent_bytes += exchange.sent_bytes
        self._usage.count_images(account, ImagesUsed(sent_bytes=exchange.sent_bytes))

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
