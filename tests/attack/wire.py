"""Bare sockets to the ports of an instance, from any address of the loopback network."""

import asyncio
import base64
import os
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from tests.attack.target import HOST, Target

WAIT_S = 60.0
UPGRADE = (
    "GET /api/v1/ws{query} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{extra}\r\n"
)


@dataclass(frozen=True)
class Reply:
    """An HTTP response; status 0 when the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The name of the error in the body, empty when it is not one of ours."""
        with suppress(orjson.JSONDecodeError):
            told = orjson.loads(self.body)
            if isinstance(told, dict) and told.get("status") == self.status:
                return str(told.get("error", ""))
        return ""

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    def require(self, *statuses: int) -> "Reply":
        """Itself. Fails unless it has one of the statuses, and as an error is the product's own."""
        assert self.status in statuses, f"{self.status} is none of {statuses}: {self.body[:200]!r}"
        if self.status >= 400:
            assert self.is_own_error, f"{self.status} is not ours: {self.headers} {self.body[:200]!r}"
        return self

    @property
    def is_own_error(self) -> bool:
        """Whether it is an error as the product words it."""
        nosniff = self.headers.get("x-content-type-options") == "nosniff"
        return bool(self.error) and nosniff and "x-request-id" in self.headers


class Connection:
    """A socket to a port. Closed with the block that opened it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes, wait_s: float = WAIT_S) -> bool:
        """Send all of it; false when the other side hangs up or stops reading before."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(wait_s):
                await self.writer.drain()
        except (OSError, TimeoutError):
            return False
        return True

    async def reply(self, wait_s: float = WAIT_S, *, is_head: bool = False) -> Reply:
        """The next response."""
        try:
            async with asyncio.timeout(wait_s):
                head = await self.reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines if line)
                }
                status = int(first.split(" ")[1])
                body = b"" if is_head or status in (204, 304) else await self._body(headers)
                return Reply(status, headers, body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            return Reply(0, {}, b"")

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self.reader.read()
        body = b""
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    async def frames(self, wait_s: float = 5.0) -> AsyncIterator[tuple[int, bytes]]:
        """What a gateway sends, until it closes or is silent."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            while True:
                async with asyncio.timeout(wait_s):
                    first, second = await self.reader.readexactly(2)
                    length = second & 0x7F
                    if length == 126:
                        (length,) = struct.unpack(">H", await self.reader.readexactly(2))
                    elif length == 127:
                        (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
                    payload = await self.reader.readexactly(length)
                yield first & 0x0F, payload

    async def close_code(self, wait_s: float = 20.0) -> int:
        """The code that the gateway closes with; 0 when it hangs up without, or does not."""
        async for opcode, payload in self.frames(wait_s):
            if opcode == 8:
                return int.from_bytes(payload[:2], "big")
        return 0


@dataclass(frozen=True)
class Caller:
    """Somebody at an address."""

    target: Target
    source: str
    host: str = "127.0.0.1"

    @asynccontextmanager
    async def connected(self, port: int = 0, *, buffer_bytes: int = 1 << 16) -> AsyncIterator[Connection]:
        """A connection to the HTTP port or another."""
        reader, writer = await asyncio.open_connection(
            self.host, port or self.target.http_port, local_addr=(self.source, 0), limit=buffer_bytes
        )
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()

    async def send(self, request: bytes, wait_s: float = WAIT_S) -> Reply:
        """The response to bytes that are sent as they are."""
        async with self.connected() as connection:
            await connection.send(request, wait_s)
            return await connection.reply(wait_s)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        host: str = HOST,
        token: str = "",
        headers: Iterable[tuple[str, str]] = (),
        media_type: str = "application/json",
        wait_s: float = WAIT_S,
    ) -> Reply:
        """The response to an ordinary request on a connection of its own."""
        return await self.send(
            request_of(method, path, body, host=host, token=token, headers=headers, media_type=media_type),
            wait_s,
        )

    @asynccontextmanager
    async def joined(self, query: str = "", host: str = HOST, extra: str = "") -> AsyncIterator[Connection]:
        """A WebSocket."""
        async with self.connected(self.target.ws_port, buffer_bytes=1 << 22) as connection:
            key = base64.b64encode(os.urandom(16)).decode()
            await connection.send(UPGRADE.format(query=query, host=host, key=key, extra=extra).encode())
            reply = await connection.reply(is_head=True)
            assert reply.status == 101, reply
            yield connection


def request_of(
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    host: str = HOST,
    token: str = "",
    headers: Iterable[tuple[str, str]] = (),
    media_type: str = "application/json",
) -> bytes:
    """The bytes of a request below `/api/v1`."""
    lines = [f"{method} /api/v1{path} HTTP/1.1", f"Host: {host}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += [f"Content-Type: {media_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def frame(
    opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """A frame of a client."""
    head = bytes([(0x80 if final else 0) | reserved | opcode])
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([bit | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", len(payload))
    return head + (b"\0\0\0\0" if masked else b"") + payload


def call_of(method: str, params: bytes, number: int = 1) -> bytes:
    """The frame of a JSON-RPC call with these params."""
    return frame(
        1, b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}' % (number, method.encode(), params)
    )
