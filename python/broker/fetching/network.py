"""Connections to checked addresses: the name is resolved once, and exactly that address is connected to.

A name that is checked first and resolved again for the connection can be another address by then (DNS
rebinding). Here both happen in one place, below the HTTP client, for the first request as for redirects.
TLS is done above with the URL's own host name, so certificates and SNI are those of the name.
"""

import select
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import httpcore

from broker.fetching.addresses import IpAddress, is_public, parse_address
from broker.fetching.errors import ForbiddenUrl
from broker.fetching.urls import AllowList

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name, as texts; raises OSError when there are none."""

_READ_BYTES = 256 << 10
"""At a time, as much as asyncio reads. httpcore asks for a quarter of it, for which each piece is copied once
more: a body of 2.9 MB takes 3 ms of CPU this way, and 6 ms that way."""
ADDRESS = "address"
"""Of `get_extra_info`: what a connection leads to, as text."""
_MAX_TRIED = 4  # addresses of one name; each may take the whole time to connect


class Hop(NamedTuple):
    """A server that was asked on the way to a reply, by its name in the URL and its address at that time."""

    host: str
    port: int
    address: str


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Opens TCP connections for httpcore; see the module's docstring."""

    def __init__(
        self,
        allow: AllowList,
        ports: frozenset[int],
        resolve: Resolve,
        judge: Callable[[IpAddress], bool] = is_public,
    ) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._allow = allow
        self._ports = ports
        self._resolve = resolve
        self._judge = judge

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the host's addresses that answers.

        Raises:
            ForbiddenUrl: the port is not allowed, or any of the addresses is not public.
            httpcore.ConnectError, httpcore.ConnectTimeout: no address answers, or there is none.
        """
        addresses = await self._checked(host, port)
        for tried, address in enumerate(addresses, start=1):
            try:
                stream = await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
                return _WideStream(stream, address)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if tried == len(addresses):
                    raise
        raise httpcore.ConnectError("the name has no address")

    def allows(self, hop: Hop) -> bool:
        """Whether this port of this host may be asked at the address that it had. Looks nothing up."""
        if self._allow.covers(hop.host, hop.port):
            return True
        address = parse_address(hop.address)
        return hop.port in self._ports and address is not None and self._judge(address)

    async def sleep(self, seconds: float) -> None:
        """Sleep, as `httpcore.AsyncNetworkBackend` demands."""
        await self._inner.sleep(seconds)

    async def _checked(self, host: str, port: int) -> list[str]:
        is_exempt = self._allow.covers(host, port)
        if not is_exempt and port not in self._ports:
            ports = ", ".join(map(str, sorted(self._ports)))
            raise ForbiddenUrl(f"the URL's port must be one of {ports}")
        literal = parse_address(host)
        if literal is not None:
            texts: Sequence[str] = [str(literal)]
        else:
            try:
                texts = await self._resolve(host, port)
            except OSError as error:  # UnicodeError cannot be: names are ASCII labels of 63 characters
                raise httpcore.ConnectError(f"cannot resolve {host}: {error}") from error
        if not is_exempt:
            self._refuse_inner(host, texts)
        return list(texts)[:_MAX_TRIED]

    def _refuse_inner(self, host: str, texts: Sequence[str]) -> None:
        for text in texts:
            address = parse_address(text)
            if address is None or not self._judge(address):
                raise ForbiddenUrl(
                    "the URL leads to an address that is not allowed", log_text=f"{host} is at {text}"
                )


class _WideStream(httpcore.AsyncNetworkStream):
    """A connection that is read in larger pieces than httpcore asks for."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, address: str) -> None:
        self._inner = inner
        self._address = address
        self._socket = inner.get_extra_info("socket")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What has come, at most `_READ_BYTES`."""
        return await self._inner.read(max(max_bytes, _READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _WideStream(inner, self._address)

    def get_extra_info(self, info: str) -> Any:
        """What `httpcore.AsyncNetworkStream` names, and `ADDRESS`.

        For each request the pool asks each idle connection whether it is readable, which its server makes it
        by closing it. The inner stream collects all that is known of the socket first.
        """
        if info == "is_readable":
            return _is_readable(self._socket)
        if info == ADDRESS:
            return self._address
        return self._inner.get_extra_info(info)


def _is_readable(connection: Any) -> bool:
    """Whether a read would return at once: with bytes, or with the end; a closed socket counts as such."""
    descriptor = connection.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
