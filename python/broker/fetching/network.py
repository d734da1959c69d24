"""Connections to checked addresses: the name is resolved once, and exactly that address is connected to.

A name that is checked first and resolved again for the connection can be another address by then (DNS
rebinding). Here both happen in one place, for the first request as for redirects. TLS is done with the URL's
own host name, so certificates and SNI are those of the name.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from broker.fetching.addresses import IpAddress, is_public, parse_address
from broker.fetching.connections import UpstreamConnection, UpstreamOrigin
from broker.fetching.errors import ForbiddenUrl
from broker.fetching.urls import AllowList

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name, as texts; raises OSError when there are none."""

_MAX_TRIED = 4  # addresses of one name; each may take the whole time to connect


class Hop(NamedTuple):
    """A server that was asked on the way to a reply, by its name in the URL and its address at that time."""

    host: str
    port: int
    address: str


class CheckedNetwork:
    """Opens connections; see the module's docstring.

    Args:
        tls: for https.
        connect_s: how long one address may take to accept a connection, and then for the handshake of TLS.
        build: a connection to an address, which is opened then.
    """

    def __init__(
        self,
        allow: AllowList,
        ports: frozenset[int],
        resolve: Resolve,
        tls: ssl.SSLContext,
        connect_s: float,
        build: Callable[[str], UpstreamConnection],
        judge: Callable[[IpAddress], bool] = is_public,
    ) -> None:
        self._allow = allow
        self._ports = ports
        self._resolve = resolve
        self._tls = tls
        self._connect_s = connect_s
        self._build = build
        self._judge = judge

    async def connect(self, origin: UpstreamOrigin) -> UpstreamConnection:
        """Connect to the first of the host's addresses that answers. Safe to cancel.

        Raises:
            ForbiddenUrl: the port is not allowed, or any of the addresses is not public.
            TimeoutError: the last address, or its TLS, takes too long.
            OSError: no address answers, there is none, or the certificate is not the host's.
        """
        scheme, host, port = origin
        connection, transport = await self._connect_tcp(host, port)
        if scheme == "https":
            try:
                async with asyncio.timeout(self._connect_s):
                    secured = await asyncio.get_running_loop().start_tls(
                        transport, connection, self._tls, server_hostname=host
                    )
            except BaseException:
                transport.abort()
                raise
            if secured is None:
                raise ConnectionResetError("the connection ends during the handshake of TLS")
            connection.use(secured)
        return connection

    def allows(self, hop: Hop) -> bool:
        """Whether this port of this host may be asked at the address that it had. Looks nothing up."""
        if self._allow.covers(hop.host, hop.port):
            return True
        address = parse_address(hop.address)
        return hop.port in self._ports and address is not None and self._judge(address)

    async def _connect_tcp(self, host: str, port: int) -> tuple[UpstreamConnection, asyncio.Transport]:
        loop = asyncio.get_running_loop()
        addresses = await self._checked(host, port)
        for tried, address in enumerate(addresses, start=1):
            try:
                async with asyncio.timeout(self._connect_s):
                    transport, connection = await loop.create_connection(
                        partial(self._build, address), address, port
                    )
            except OSError:  # TimeoutError is one
                if tried == len(addresses):
                    raise
            else:
                return connection, transport
        raise OSError("the name has no address")

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
                raise OSError(f"cannot resolve {host}: {error}") from error
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
