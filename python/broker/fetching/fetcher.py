"""The safe fetcher: one request to an upstream server, complete and in time, or an error.

Every hop is checked: its URL (`urls`), and at the connection its port and addresses (`network`). Seconds
are counted over all hops, from the first look-up to the last byte. Replies are read whole, because every user
of ours judges or stores them whole. No cookies are kept, no proxy of the environment is used, and a
redirect to another server carries none of the caller's headers that could be secrets.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import httpcore
import httpx

from broker.concurrency.shares import NOBODY, Asker
from broker.fetching.addresses import IpAddress, is_public
from broker.fetching.bodies import ACCEPTED_ENCODINGS, read_reply_body, too_large
from broker.fetching.errors import ForbiddenUrl, InvalidUrl, UpstreamFailed, UpstreamTimeout
from broker.fetching.lookups import Lookups
from broker.fetching.network import ADDRESS, CheckedNetwork, Hop, Resolve
from broker.fetching.urls import DEFAULT_PORTS, AllowList, ParsedUrl, parse_url

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DOCUMENT_S = 5.0
_DOCUMENT_BYTES = 256 << 10  # key sets have a few KiB
_NO_BODY = frozenset({204, 304})
_LAST_STATUS = 599  # RFC 9110, section 15
_KEEPALIVE_S = 5.0  # shorter than servers keep their ends, so that few requests meet a closed connection
# What tells nothing of who asks; the rest stays with the server it was meant for.
_CARRIED_ABROAD = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """What one fetcher may do.

    Attributes:
        allow: hosts that are exempt from the checks of address and port.
        ports: that other hosts may be asked at.
        connect_s: how long one address may take to connect; the whole time bounds all of it.
        connections: at the same time; more requests wait, within their time.
    """

    allow: AllowList = field(default_factory=AllowList)
    ports: frozenset[int] = frozenset(DEFAULT_PORTS.values())
    connect_s: float = 5.0
    connections: int = 100


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One request.

    Attributes:
        headers: names in any case; those that belong to the connection are the fetcher's own and left out.
        total_s: from the first look-up to the last byte, over all redirects.
        max_bytes: of the reply's body, as sent and unpacked.
        check: called with each target before it is asked, those of redirects too; raises to refuse it.
        count: called with the bytes of a body that are kept, as they arrive; raises to refuse them.
        asker: for whom it is; a share of the threads that look names up is theirs.
    """

    url: str
    total_s: float
    max_bytes: int
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    check: Callable[[ParsedUrl], None] | None = None
    count: Callable[[int], None] | None = None
    asker: Asker = NOBODY


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole reply, whatever its status.

    Attributes:
        headers: of the last hop, names in lower case, repeated ones joined by a comma.
        body: unpacked.
        url: of the last hop.
        hops: all servers that were asked, in this order.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    hops: tuple[Hop, ...] = ()


class Fetcher:
    """Fetches URLs safely. For concurrent use within one event loop; `close` ends its connections.

    Args:
        tls: for https; None verifies against `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the shipped authorities.
        resolve: of host names, None asks the system; and `judge` of addresses. For tests, which have no
            public addresses.
    """

    def __init__(
        self,
        config: FetchConfig | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
        judge: Callable[[IpAddress], bool] = is_public,
    ) -> None:
        config = config or FetchConfig()
        self._connect_s = config.connect_s
        self._lookups = Lookups()
        self._network = CheckedNetwork(config.allow, config.ports, resolve or self._lookups.resolve, judge)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or httpx.create_ssl_context(),
            max_connections=config.connections,
            max_keepalive_connections=config.connections // 5,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=self._network,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
        self._lookups.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def allows(self, hops: Iterable[Hop]) -> bool:
        """Whether a reply that came over these servers might be fetched now, so that a kept one may be used.

        Looks nothing up: each host is judged by the address that was connected to.
        """
        return all(map(self._network.allows, hops))

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Ask and read the whole reply, following redirects. Safe to cancel.

        Raises:
            InvalidUrl: the request's URL is malformed, carries credentials, or is neither http nor https.
            ForbiddenUrl: it, or a redirect, leads to what is not for us to ask.
            TooLarge: the reply is over `max_bytes`.
            UpstreamFailed: no connection, a broken reply, or too many redirects.
            UpstreamTimeout: not complete within `total_s`.
        """
        target = parse_url(request.url)
        timeout = asyncio.timeout(request.total_s)
        try:
            async with timeout:
                with self._lookups.counted(request.asker):
                    return await self._follow(request, target)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise UpstreamTimeout(f"the upstream took over {request.total_s:g} seconds") from None

    async def document(self, url: str) -> bytes:
        """A small document, such as a set of keys. Raises as `fetch`; UpstreamFailed if it does not exist."""
        fetched = await self.fetch(
            FetchRequest(url, _DOCUMENT_S, _DOCUMENT_BYTES, headers={"accept": "application/json"})
        )
        if fetched.status != 200:
            raise UpstreamFailed("the document cannot be fetched", log_text=f"{url} answers {fetched.status}")
        return fetched.body

    async def _follow(self, request: FetchRequest, target: ParsedUrl) -> Fetched:
        request = replace(request, headers=_without(request.headers, _OWN_HEADERS))
        hops: tuple[Hop, ...] = ()
        for _ in range(MAX_REDIRECTS + 1):
            if request.check is not None:
                request.check(target)
            fetched = await self._ask(request, target)
            hops += fetched.hops
            location = fetched.headers.get("location")
            if fetched.status not in _REDIRECTS or not location:
                return replace(fetched, hops=hops)
            try:
                following = target.join(location)
            except InvalidUrl:
                raise ForbiddenUrl("the upstream redirects to a URL that is not allowed") from None
            request = _redirected(request, fetched.status, is_abroad=following.origin != target.origin)
            target = following
        raise UpstreamFailed(f"the upstream redirects more than {MAX_REDIRECTS} times")

    async def _ask(self, request: FetchRequest, target: ParsedUrl) -> Fetched:
        url = httpcore.URL(
            scheme=target.scheme.encode(),
            host=target.host.encode(),
            port=None if target.port == DEFAULT_PORTS[target.scheme] else target.port,
            target=target.path,
        )
        headers = {**request.headers, "accept-encoding": ACCEPTED_ENCODINGS}
        try:
            async with self._pool.stream(
                request.method,
                url,
                headers=[(name.encode("ascii"), _encoded(value)) for name, value in headers.items()],
                content=request.body,
                extensions={"timeout": {"connect": self._connect_s}},
            ) as reply:
                return await _read(reply, request, target)
        except httpcore.TimeoutException as error:
            raise UpstreamTimeout("the upstream does not accept connections", log_text=repr(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise UpstreamFailed("the upstream cannot be reached", log_text=repr(error)) from error


async def _read(reply: httpcore.Response, request: FetchRequest, target: ParsedUrl) -> Fetched:
    headers = _headers(reply.headers)
    if reply.status < 200:
        raise UpstreamFailed("the upstream changes the protocol")
    if reply.status > _LAST_STATUS:
        raise UpstreamFailed("the upstream's status is not a status of HTTP")
    hop = Hop(target.host, target.port, reply.extensions["network_stream"].get_extra_info(ADDRESS))
    if reply.status in _REDIRECTS and "location" in headers:
        # The connection is closed with the rest unread.
        return Fetched(reply.status, headers, b"", target.text, (hop,))
    length = headers.get("content-length", "")
    has_body = request.method != "HEAD" and reply.status not in _NO_BODY
    if has_body and length.isdecimal() and len(length) < 20 and int(length) > request.max_bytes:
        raise too_large(request.max_bytes)
    encoding = headers.get("content-encoding", "") if has_body else ""
    body = await read_reply_body(reply.aiter_stream(), encoding, request.max_bytes, request.count)
    return Fetched(reply.status, headers, body, target.text, (hop,))


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _encoded(value: str) -> bytes:
    """A header's value: bytes that came as Latin-1 go as they came, other text as UTF-8."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


def _redirected(request: FetchRequest, status: int, *, is_abroad: bool) -> FetchRequest:
    """The request of the next hop (RFC 9110, section 15.4)."""
    if is_abroad:
        kept = {name: value for name, value in request.headers.items() if name.lower() in _CARRIED_ABROAD}
        request = replace(request, headers=kept)
    becomes_get = status == 303 and request.method != "HEAD"
    if becomes_get or (status in (301, 302) and request.method == "POST"):
        headers = _without(request.headers, frozenset({"content-type"}))
        request = replace(request, method="GET", body=None, headers=headers)
    return request


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
