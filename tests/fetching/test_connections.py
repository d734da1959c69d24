"""Connections of the fetcher that stay open between two requests."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from broker.fetching.fetcher import Fetcher, FetchRequest
from tests.fetching.upstream import make_certificate, open_fetcher

pytestmark = pytest.mark.anyio

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class KeepingServer:
    """Answers any number of requests on a connection.

    Attributes:
        connections: that were opened; `open` are those that still are.
    """

    port: int = 0
    connections: int = 0
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(REPLY)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def close_idle(self) -> None:
        while self.open:
            writer = self.open.pop()
            writer.transport.abort()  # over TLS a close would wait for the client's
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def keeping_server(tls: ssl.SSLContext | None) -> AsyncIterator[KeepingServer]:
    kept = KeepingServer()
    server = await asyncio.start_server(kept.serve, "127.0.0.1", 0, ssl=tls)
    kept.port = server.sockets[0].getsockname()[1]
    try:
        yield kept
    finally:
        server.close()
        await kept.close_idle()


@asynccontextmanager
async def stage(folder: Path, scheme: str) -> AsyncIterator[tuple[Fetcher, KeepingServer, FetchRequest]]:
    """A fetcher, a server that it trusts, and a request to that."""
    ours = theirs = None
    if scheme == "https":
        file = make_certificate(folder, "upstream.test")
        ours = ssl.create_default_context(cafile=file)
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        theirs.load_cert_chain(file)
    async with keeping_server(theirs) as server, open_fetcher(server.port, tls=ours) as fetcher:
        yield fetcher, server, FetchRequest(f"{scheme}://upstream.test:{server.port}/", 5.0, 1_000)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_open_connection_is_used_again(tmp_path: Path, scheme: str) -> None:
    async with stage(tmp_path, scheme) as (fetcher, server, request):
        for _ in range(3):
            assert (await fetcher.fetch(request)).body == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_connection_that_its_server_has_closed_is_not(tmp_path: Path, scheme: str) -> None:
    async with stage(tmp_path, scheme) as (fetcher, server, request):
        for expected in (1, 2, 3):
            assert (await fetcher.fetch(request)).body == b"ok"
            assert server.connections == expected
            await server.close_idle()


async def test_a_request_looks_for_no_module(tmp_path: Path) -> None:
    """A module that an HTTP client imports in vain is looked for in every folder of the path each time."""
    looked_for: list[str] = []

    class Spy:
        @staticmethod
        def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
            looked_for.append(name)
            return None

    async with stage(tmp_path, "http") as (fetcher, _, request):
        await fetcher.fetch(request)
        sys.meta_path.insert(0, Spy)  # type: ignore[arg-type]  # all of a finder that is used
        try:
            await fetcher.fetch(request)
        finally:
            sys.meta_path.remove(Spy)  # type: ignore[arg-type]
    assert looked_for == []
