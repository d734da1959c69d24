"""The HTTP application for pictures: `GET /api/v2/imgproxy/{account}/{options}?url=…`.

It is an application of its own, beside the API's, so that the bytes of pictures pass no process of the API.
No token is needed: what an account allows stands in its rules.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from broker.clock import Clock
from broker.domain.values import is_account_name
from broker.errors import MethodNotAllowed, NotFound
from broker.ids import IdSource
from broker.images.errors import InvalidImageUrl
from broker.images.service import Picture
from broker.rest.callers import Caller
from broker.rest.door import Door
from broker.rest.headers import Header
from broker.rest.reply import Exchange
from broker.rest.request import Headers, Receive
from broker.rest.routing import split_path
from broker.settings import Settings

PREFIX = "/api/v2/imgproxy"

_METHODS = "GET, HEAD, OPTIONS"
_MAX_PARAMETERS = 10
_FOUND: Header = (b"cache-control", b"public, max-age=5184000, s-maxage=86400")
_HIT: tuple[Header, ...] = (_FOUND, (b"x-cache", b"HIT"))
_MISS: tuple[Header, ...] = (_FOUND, (b"x-cache", b"MISS"))
_PREFLIGHT: tuple[Header, ...] = (
    (b"allow", _METHODS.encode()),
    (b"access-control-allow-methods", b"GET, HEAD"),
    (b"access-control-max-age", b"7200"),
)


class ImageApp(Door):
    """The application over one `ImageService`."""

    error_cache = b"public, max-age=300"

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        get: Callable[[str, str, str], Awaitable[Picture]],
    ) -> None:
        """Args: get: the picture of an account, options and URL; see `ImageService.get`."""
        super().__init__(settings, clock, ids)
        self._get = get

    async def serve(
        self,
        scope: Mapping[str, Any],
        headers: Headers,
        caller: Caller,
        receive: Receive,
        exchange: Exchange,
    ) -> None:
        """Answer with a picture."""
        del headers, caller, receive
        segments = split_path((scope.get("raw_path") or scope["path"].encode())[len(PREFIX) :])
        if len(segments) != 2 or not is_account_name(segments[0]):
            raise NotFound("pictures are at /api/v2/imgproxy/{account}/{options}?url={url}")
        method = scope["method"]
        if method == "OPTIONS":
            await exchange.whole(204, b"", "", _PREFLIGHT)
            return
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"the methods of this path are {_METHODS}", _METHODS.split(", "))
        account, options = segments
        picture = await self._get(account, options, _url(scope.get("query_string", b"")))
        extra = _HIT if picture.is_hit else _MISS
        await exchange.representation(picture.body, picture.type, picture.etag, extra)


def _url(query: bytes) -> str:
    """The one parameter of the query."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        raise InvalidImageUrl("url: must be percent-encoded UTF-8") from None
    urls = [value for name, value in pairs if name == "url"]
    others = [name for name, _ in pairs if name != "url"]
    if others:
        raise InvalidImageUrl("url: percent-encode it; the query has other parameters than url")
    if len(urls) != 1:
        raise InvalidImageUrl("url: is given twice" if urls else "url: is missing")
    return urls[0]
