"""`broker.deployments.ray_internals.joined_writes`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from broker.deployments.ray_internals.joined_writes import JoinedWrites, JoiningProtocol

pytestmark = pytest.mark.anyio

_UPGRADE = b"""GET / HTTP/1.1\r
Host: x\r
Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
\r
"""


class Wire(asyncio.Transport):
    """Remembers what is done to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.writes.append(b"closed")

    def is_closing(self) -> bool:
        return b"closed" in self.writes


async def test_two_writes_of_a_turn_are_one() -> None:
    wire = Wire()
    joined = JoinedWrites(wire)
    joined.write(b"head")
    assert wire.writes == []
    joined.write(b"body")
    assert wire.writes == [b"headbody"]
    await asyncio.sleep(0)
    assert wire.writes == [b"headbody"]


async def test_a_write_waits_for_no_longer_than_its_turn() -> None:
    wire = Wire()
    joined = JoinedWrites(wire)
    joined.write(b"one")
    await asyncio.sleep(0)
    assert wire.writes == [b"one"]
    joined.write(b"two")
    joined.write(b"three")
    joined.write(b"four")
    await asyncio.sleep(0)
    assert wire.writes == [b"one", b"twothree", b"four"]


async def test_nothing_is_lost_by_closing() -> None:
    wire = Wire()
    joined = JoinedWrites(wire)
    joined.write(b"last")
    assert not joined.is_closing()
    joined.close()
    await asyncio.sleep(0)
    assert wire.writes == [b"last", b"closed"]
    assert joined.is_closing()


async def test_everything_else_is_the_transports_own() -> None:
    assert JoinedWrites(Wire()).get_extra_info("peername") == ("192.0.2.1", 1)


async def _reply(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    """Two parts, with a moment between them at `/slow`. WebSockets are refused."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    if scope["path"] == "/slow":
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"two"})


async def test_a_server_that_joins_writes_answers_as_before() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(_reply, http=JoiningProtocol, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        for path, ending in (("/", b"keep-alive"), ("/slow", b"keep-alive"), ("/", b"close")):
            writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n" % (path.encode(), ending))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(6) == b"onetwo"
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(_UPGRADE)
        assert (await reader.read()).startswith(b"HTTP/1.1 403 Forbidden\r\n")
        writer.close()
        server.should_exit = True
        await task


REPLIES: dict[str, tuple[int, list[tuple[bytes, bytes]], bytes]] = {
    "/plain": (200, [(b"content-length", b"3"), (b"etag", b'"\xe9"')], b"one"),
    "/empty": (200, [(b"content-length", b"0")], b""),
    "/none": (204, [], b""),
    "/known": (304, [(b"etag", b'"x"')], b""),
    "/closed": (413, [(b"content-length", b"3"), (b"connection", b"close")], b"one"),
    "/chunked": (200, [], b"one"),
    "/upper": (200, [(b"Content-Length", b"3")], b"one"),
    "/broken": (200, [(b"content-length", b"3"), (b"location", b"/a\r\nset-cookie: b")], b"one"),
    "/nul": (200, [(b"content-length", b"3"), (b"location", b"/a\x00")], b"one"),
    "/long": (200, [(b"content-length", b"2")], b"one"),
}


async def _whole(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    status, headers, body = REPLIES[scope["path"]]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def _ask_all(protocol: type[asyncio.Protocol], method: str) -> dict[str, bytes]:
    """The bytes of each reply, whose connection ends behind it."""
    told = {}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(_whole, http=protocol, lifespan="off", log_config=None, date_header=False)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        for path in REPLIES:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
            # The first of two is answered on a connection that goes on.
            writer.write(f"{request}\r\n{request}Connection: close\r\n\r\n".encode())
            told[path] = await asyncio.wait_for(reader.read(), 20)
            writer.close()
        server.should_exit = True
        await task
    return told


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_is_written_is_what_uvicorn_writes(method: str) -> None:
    ours, theirs = await _ask_all(JoiningProtocol, method), await _ask_all(HttpToolsProtocol, method)
    assert ours == theirs
    assert ours["/plain"].count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b"set-cookie" not in ours["/broken"]


async def test_a_reply_in_one_part_is_one_write() -> None:
    wire = Wire()
    config = uvicorn.Config(_whole, lifespan="off", log_config=None)
    config.load()
    protocol = JoiningProtocol(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    protocol.connection_made(wire)
    protocol.data_received(b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n")
    while not wire.writes:  # noqa: ASYNC110 - the wire tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.writes == [b'HTTP/1.1 200 OK\r\ncontent-length: 3\r\netag: "\xe9"\r\n\r\none']
    protocol.connection_lost(None)
