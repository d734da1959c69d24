"""The safe fetcher: one request to an upstream server, complete and in time, or an error.

Every hop is checked: its URL (`urls`), and at the connection its port and addresses (`network`). Seconds
are counted over all hops, from the first look-up to the last byte. Replies are read whole, because every user
of ours judges or stores them whole. No cookies are kept, no proxy of the environment is used, and a
redirect to another server carries none of the caller's headers that could be secrets.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Self

import httpx

from broker.concurrency.shares import NOBODY, Asker
from broker.fetching.addresses import IpAddress, is_public
from broker.fetching.bodies import ACCEPTED_ENCODINGS, BodyReader, too_large
from broker.fetching.connections import READ_BYTES, ConnectionPool, UpstreamConnection
from broker.fetching.errors import ForbiddenUrl, InvalidUrl, UpstreamFailed, UpstreamTimeout
from broker.fetching.lookups import Lookups
from broker.fetching.network import CheckedNetwork, Hop, Resolve
from broker.fetching.reply_parser import ReplyHead, ReplyParser
from broker.fetching.urls import DEFAULT_PORTS, AllowList, ParsedUrl, parse_url

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DOCUMENT_S = 5.0
_DOCUMENT_BYTES = 256 << 10  # key sets have a few KiB
_NO_BODY = frozenset({204, 304})
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*")  # RFC 9110, section 5
_TARGET = re.compile(rb"[\x21-\x7e]+")
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
        parts: of the body, unpacked. For a large one, to make one piece of them takes half as long as to
            receive them: the system has to find memory for it.
        url: of the last hop.
        hops: all servers that were asked, in this order.
    """

    status: int
    headers: Mapping[str, str]
    parts: tuple[bytes, ...]
    url: str
    hops: tuple[Hop, ...] = ()

    @property
    def body(self) -> bytes:
        """The body in one piece."""
        return b"".join(self.parts)

    @property
    def body_bytes(self) -> int:
        """How long the body is."""
        return sum(map(len, self.parts))


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
        buffer = memoryview(bytearray(READ_BYTES))
        tls = tls or _trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        tls.set_alpn_protocols(["http/1.1"])
        self._lookups = Lookups()
        self._network = CheckedNetwork(
            config.allow,
            config.ports,
            resolve or self._lookups.resolve,
            tls,
            config.connect_s,
            partial(UpstreamConnection, buffer),
            judge,
        )
        self._pool = ConnectionPool(
            self._network.connect,
            most=config.connections,
            most_idle=config.connections // 5,
            idle_s=_KEEPALIVE_S,
        )

    async def close(self) -> None:
        """Close all connections."""
        self._pool.close()
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
        finally:
            del timeout  # it has the task, whose error has this frame, and with it what has come of the body
        # Not above: the error would have the one before as its context, and that one the time-out.
        raise UpstreamTimeout(f"the upstream took over {request.total_s:g} seconds")

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
        head = _request_head(request, target)
        parser = ReplyParser(partial(_begin, request), is_head=request.method == "HEAD")
        try:
            async with self._pool.taken(target.origin) as connection:
                await connection.exchange(head + (request.body or b""), parser)
                hop = Hop(target.host, target.port, connection.address)
        except TimeoutError as error:
            raise UpstreamTimeout("the upstream does not accept connections", log_text=repr(error)) from error
        except OSError as error:
            raise UpstreamFailed("the upstream cannot be reached", log_text=repr(error)) from error
        return Fetched(parser.head.status, parser.head.headers, parser.body(), target.text, (hop,))


def _request_head(request: FetchRequest, target: ParsedUrl) -> bytes:
    """The request up to its body (RFC 9112, section 3)."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    port = "" if target.port == DEFAULT_PORTS[target.scheme] else f":{target.port}"
    headers = {"host": f"{host}{port}", **request.headers, "accept-encoding": ACCEPTED_ENCODINGS}
    if request.body is not None:
        headers["content-length"] = str(len(request.body))
    lines = [b"%b: %b" % (name.encode("utf-8"), _encoded(value).strip()) for name, value in headers.items()]
    if not _TARGET.fullmatch(target.path) or not all(map(_HEADER.fullmatch, lines)):
        raise UpstreamFailed("the request cannot be sent", log_text="its path or a header is malformed")
    start = b"%b %b HTTP/1.1" % (request.method.encode("ascii"), target.path)
    return b"\r\n".join((start, *lines, b"", b""))


def _begin(request: FetchRequest, head: ReplyHead) -> BodyReader | None:
    """What reads the body of a reply; None for a redirect, whose body is left unread."""
    if head.status > _LAST_STATUS:
        raise UpstreamFailed("the upstream's status is not a status of HTTP")
    if head.status in _REDIRECTS and "location" in head.headers:
        return None
    length = head.headers.get("content-length", "")
    has_body = request.method != "HEAD" and head.status not in _NO_BODY
    if has_body and length.isdecimal() and len(length) < 20 and int(length) > request.max_bytes:
        raise too_large(request.max_bytes)
    encoding = head.headers.get("content-encoding", "") if has_body else ""
    return BodyReader(encoding, request.max_bytes, request.count)


@cache
def _trust(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    """The certificate authorities to trust: those that the environment names, or else those of httpx.

    They are kept, because reading them takes 20 ms.
    """
    return httpx.create_ssl_context()


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
