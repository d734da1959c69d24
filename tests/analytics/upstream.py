"""A Matomo of which a test says every byte: a socket that answers each request as it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BLOCK = (b'{"label":"' + b"x" * 1000 + b'"},') * 64  # about 64 KiB of rows


Answer = Callable[["Upstream", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A Matomo that answers every request as `answer` does."""

    url: str = ""
    asked: int = 0
    ended: int = 0
    sent_bytes: int = 0
    answer: Answer | None = None
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and note whether its client went first."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.asked += 1
        assert self.answer is not None
        answering = asyncio.ensure_future(self.answer(self, writer))
        watching = asyncio.ensure_future(reader.read())
        await asyncio.wait([answering, watching], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            self.ended += 1
            self.has_ended.set()
        for task in (answering, watching):
            task.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)
        writer.close()

    async def chunk(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        """Send a part, when there is room for it."""
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        self.sent_bytes += len(body)


def chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> Answer:
    """An answer of these parts, chunked."""

    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            await upstream.chunk(writer, part)
        writer.write(end)
        await writer.drain()

    return answer


async def stall(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
    """Answer half of a long report, and no more."""
    await chunks(*table(8)[:-1], end=b"")(upstream, writer)
    await asyncio.Event().wait()


async def hang(_upstream: Upstream, _writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


@asynccontextmanager
async def open_upstream(port: int = 0) -> AsyncIterator[Upstream]:
    """Serve one on loopback; its `answer` is to be set."""
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", port)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()


def table(blocks: int) -> tuple[bytes, ...]:
    """A list of so many times 64 KiB of rows."""
    return (b"[", *[BLOCK] * (blocks - 1), BLOCK[:-1], b"]")
