"""A scripted counterparty: an HTTP server whose answers a test writes, one for each request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Answer:
    """What to answer; `cut` breaks the connection off instead, after the request was read."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


Script = Callable[[Asked], Answer | Awaitable[Answer]]


class Peer:
    """Keeps what it was asked; `script` makes the answers."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://demo.localhost:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked = await _read(head, reader)
                self.asked.append(asked)
                answer = self.script(asked)
                if not isinstance(answer, Answer):
                    answer = await answer
                if answer.cut:
                    break
                writer.write(_render(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _read(head: bytes, reader: asyncio.StreamReader) -> Asked:
    first, *lines = head.decode().strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, target, headers, body)


def _render(answer: Answer) -> bytes:
    body = answer.body if isinstance(answer.body, bytes) else orjson.dumps(answer.body)
    if answer.status == 204:
        body = b""
    lines = [f"HTTP/1.1 {answer.status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Peer]:
    """A peer on a free port of the loopback interface."""
    peer = Peer(script)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()


def error(status: int, name: str, **headers: str) -> Answer:
    """An answer in the broker's error shape."""
    body = {"error": name, "error_description": "why", "status": status}
    return Answer(status, body, {key.replace("_", "-"): value for key, value in headers.items()})


def event(seq: int, program: str = "final", epoch: str = "e1", **changes: Any) -> dict[str, Any]:
    """An event as the broker sends it."""
    return {
        "seq": seq,
        "epoch": epoch,
        "id": f"0190c000-0000-7000-8000-{seq:012d}",
        "programId": program,
        "createdTime": "2026-07-19T19:00:00.123Z",
        "timestamp": 1_784_487_600_123,
        "timecode": 1_784_487_600_123,
        "event": "Score#update",
        "metadata": {"home": seq},
        **changes,
    }
