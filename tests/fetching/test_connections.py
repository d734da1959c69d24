"""Connections of the fetcher that stay open between two requests."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from broker.fetching.errors import UpstreamFailed, UpstreamTimeout
from broker.fetching.fetcher import FetchConfig, Fetcher, FetchRequest
from tests.fetching.upstream import Resolver, loopback, make_certificate, open_fetcher

pytestmark = pytest.mark.anyio

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class KeepingServer:
    """Answers any number of requests on a connection.

    Attributes:
        connections: that were opened; `open` are those that still are, as far as is known here, and `used`
            has one for each request.
        answer: instead, to the next connections.
    """

    port: int = 0
    connections: int = 0
    open: list[asyncio.StreamWriter] = field(default_factory=list)
    used: list[asyncio.StreamWriter] = field(default_factory=list)
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
    most_at_a_time: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.append(writer)
        self.most_at_a_time = max(self.most_at_a_time, *still_open([self]))
        if self.answer is not None:
            await self.answer(reader, writer)
            return
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.used.append(writer)
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


@pytest.mark.parametrize(
    ("head", "late", "connections"),
    [
        (b"204 No Content\r\nContent-Length: 5\r\n\r\n", b"hello", 2),
        (b"204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n", 2),
        (b"204 No Content\r\nContent-Length: 0\r\n\r\n", b"", 1),
        (b"304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", 1),
    ],
)
async def test_a_body_that_comes_late_is_not_the_next_reply(
    tmp_path: Path, head: bytes, late: bytes, connections: int
) -> None:
    """A 204 that declares a body, which its server sends with the next reply."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        owed = b""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(owed + b"HTTP/1.1 " + head)
                owed = late

    async with stage(tmp_path, "http") as (fetcher, server, request):
        server.answer = answer
        for _ in range(2):
            fetched = await fetcher.fetch(request)
            assert (fetched.status, fetched.body) == (int(head[:3]), b"")
        assert server.connections == connections


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


# -- the pool


@asynccontextmanager
async def stage_of(
    connections: int, servers: int
) -> AsyncIterator[tuple[Fetcher, list[KeepingServer], list[FetchRequest]]]:
    """A fetcher with so many connections and several servers, each with a request to it."""
    async with AsyncExitStack() as stack:
        kept = [await stack.enter_async_context(keeping_server(None)) for _ in range(servers)]
        ports = frozenset(server.port for server in kept)
        config = FetchConfig(ports=ports, connections=connections)
        fetcher = Fetcher(config, resolve=Resolver(), judge=loopback)
        await stack.enter_async_context(fetcher)
        yield fetcher, kept, [FetchRequest(f"http://x.test:{server.port}/", 5.0, 1_000) for server in kept]


async def until(is_so: Callable[[], bool]) -> None:
    """Let the servers see what has happened to their connections."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110  # the servers' side says nothing
            await asyncio.sleep(0.01)


def still_open(servers: Sequence[KeepingServer]) -> list[int]:
    return [sum(not writer.is_closing() for writer in server.open) for server in servers]


async def test_requests_at_the_same_time_have_a_connection_each() -> None:
    async with stage_of(100, 1) as (fetcher, (server,), (request,)):
        for _ in range(2):
            await asyncio.gather(*(fetcher.fetch(request) for _ in range(20)))
        assert server.connections == 20


async def test_the_connection_that_was_used_last_is_used_next() -> None:
    """The others become old, and are closed."""
    async with stage_of(100, 1) as (fetcher, (server,), (request,)):
        await asyncio.gather(*(fetcher.fetch(request) for _ in range(3)))
        for _ in range(2):
            await fetcher.fetch(request)
        assert server.used[-1] is server.used[-2]


async def test_more_requests_than_connections_wait_for_one() -> None:
    async with stage_of(5, 1) as (fetcher, (server,), (request,)):
        replies = await asyncio.gather(*(fetcher.fetch(request) for _ in range(20)))
        assert [reply.body for reply in replies] == [b"ok"] * 20
        # Of five, one may stay open when it is idle; the others are opened for each request.
        assert server.most_at_a_time <= 5


async def test_a_fifth_of_the_connections_stay_open_and_the_longest_idle_go_first() -> None:
    async with stage_of(10, 3) as (fetcher, servers, requests):
        for request in requests:
            await fetcher.fetch(request)
        await until(lambda: still_open(servers) == [0, 1, 1])
        await fetcher.fetch(requests[1])
        await fetcher.fetch(requests[0])
        await until(lambda: still_open(servers) == [1, 1, 0])
        assert [server.connections for server in servers] == [2, 1, 1]


async def test_closing_ends_idle_connections_and_those_in_use() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()

    asked = asyncio.Event()
    async with stage_of(10, 2) as (fetcher, servers, requests):
        servers[1].answer = never
        await fetcher.fetch(requests[0])
        fetching = asyncio.create_task(fetcher.fetch(requests[1]))
        await asked.wait()
        await fetcher.close()
        with pytest.raises(UpstreamFailed):
            await fetching
        await until(lambda: still_open(servers) == [0, 0])


async def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REPLY[:-1])
        asked.set()

    asked = asyncio.Event()
    async with stage_of(10, 1) as (fetcher, servers, requests):
        servers[0].answer = half
        fetching = asyncio.create_task(fetcher.fetch(requests[0]))
        await asked.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        servers[0].answer = None
        assert (await fetcher.fetch(requests[0])).body == b"ok"
        assert servers[0].connections == 2


@pytest.mark.parametrize("raw", [REPLY + b"more", REPLY[:-1] + b"kk", b"HTTP/1.1 408 Late\r\n\r\n"])
async def test_what_nobody_asked_for_ends_a_connection(raw: bytes) -> None:
    """Else a server could answer the next request before it is sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await reader.read()

    async with stage_of(10, 1) as (fetcher, servers, requests):
        servers[0].answer = answer
        with suppress(UpstreamTimeout):
            await fetcher.fetch(replace(requests[0], total_s=0.2))
        servers[0].answer = None
        assert (await fetcher.fetch(requests[0])).body == b"ok"
        assert servers[0].connections == 2


async def test_what_comes_between_two_requests_ends_a_connection() -> None:
    async with stage_of(10, 2) as (fetcher, servers, requests):
        await fetcher.fetch(requests[0])
        servers[0].open[0].write(b"HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n")
        await fetcher.fetch(requests[1])  # meanwhile that is read
        assert (await fetcher.fetch(requests[0])).body == b"ok"
        assert servers[0].connections == 2


async def test_idle_connections_make_no_request_dearer() -> None:
    """It calls as many functions with forty idle connections to other servers as with five."""
    counts = []
    for idle in (5, 10, 20, 40):
        async with stage_of(500, 1 + idle) as (fetcher, _, requests):
            for request in requests:
                await fetcher.fetch(request)
            await fetcher.fetch(requests[0])
            counts.append(await _calls(fetcher.fetch(requests[0])))
    assert counts == [counts[0]] * 4


async def _calls(work: Coroutine[Any, Any, object]) -> int:
    """How many functions run, without those of the event loop and of the servers here."""
    count = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        count += event == "call" and module not in ("asyncio", "selectors", "tests")

    sys.setprofile(watch)
    try:
        await work
    finally:
        sys.setprofile(None)
    return count
