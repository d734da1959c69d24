"""A wire that can be cut: a TCP proxy that breaks connections after so many bytes, in the middle of anything.

Each direction of each connection has a budget of bytes, drawn when it opens. When one is spent, what fits is
still delivered, then both sides are closed, orderly or by a reset. `cut` spends all budgets soon; while
`stalled`, nothing gets through and nothing is closed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK_BYTES = 1 << 16
_LOSES = 0.1
_SOON_BYTES = 300  # within the next message or two


@dataclass(eq=False)
class _Wire:
    """One connection; `budgets` are the bytes left towards the server and towards the client."""

    budgets: list[float]
    writers: list[asyncio.StreamWriter]
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Listens on `port` of 127.0.0.1 while it is open; see the module."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Opened]],
        chance: random.Random,
        *,
        cut_after: tuple[int, int] | None = None,
        lose: Sequence[bytes] = (),
    ) -> None:
        """Nothing listens yet.

        Args:
            connect: opens a connection to the server.
            cut_after: between which numbers of bytes a budget is drawn; None cuts only when told to.
            lose: what the server says with one of these in it is cut before it, one time in ten.
        """
        self.port = 0
        self.cuts = 0
        self._connect = connect
        self._chance = chance
        self._cut_after = cut_after
        self._lose = lose
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._wires: set[_Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every connection within its next few hundred bytes; one that is silent, at once."""
        for wire in self._wires:
            wire.budgets[:] = [self._chance.randrange(_SOON_BYTES) for _ in wire.budgets]
            if self._chance.random() < 0.5:  # some in the middle of a message, some between two
                wire.changed.set()

    def spare(self) -> None:
        """Cut nothing more."""
        self._cut_after = None
        for wire in self._wires:
            wire.budgets[:] = [self._draw() for _ in wire.budgets]

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[None]:
        """Let nothing through inside the block."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._run(reader, writer)
        except asyncio.CancelledError:
            pass  # the stream server would log it
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            return
        wire = _Wire([self._draw(), self._draw()], [writer, far_writer])
        self._wires.add(wire)
        ends = [
            asyncio.create_task(self._pump(wire, 0, reader, far_writer)),
            asyncio.create_task(self._pump(wire, 1, far_reader, writer)),
            asyncio.create_task(self._told(wire)),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._wires.discard(wire)
            for end in ends:
                end.cancel()
            try:
                await asyncio.gather(*ends, return_exceptions=True)
            finally:  # also when the proxy closes just now
                for side in wire.writers:
                    # with data unread a close is a reset; an abort forgets what was not sent yet
                    if self._chance.random() < 0.5:
                        side.transport.abort()
                    side.close()

    async def _told(self, wire: _Wire) -> None:
        await wire.changed.wait()
        self.cuts += 1

    async def _pump(
        self, wire: _Wire, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                lost = [piece.index(each) for each in self._lose if each in piece] if way else []
                if lost and self._chance.random() < _LOSES:
                    wire.budgets[way] = lost[0]
                if len(piece) >= wire.budgets[way]:
                    writer.write(piece[: int(wire.budgets[way])])
                    await writer.drain()
                    self.cuts += 1
                    return
                wire.budgets[way] -= len(piece)
                writer.write(piece)
                await writer.drain()

    def _draw(self) -> float:
        return float("inf") if self._cut_after is None else self._chance.randrange(*self._cut_after)


@asynccontextmanager
async def open_proxy(
    connect: Callable[[], Awaitable[Opened]],
    chance: random.Random,
    *,
    cut_after: tuple[int, int] | None = None,
    lose: Sequence[bytes] = (),
) -> AsyncIterator[Proxy]:
    """A proxy that listens inside the block."""
    proxy = Proxy(connect, chance, cut_after=cut_after, lose=lose)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()


def tcp(port: int) -> Callable[[], Awaitable[Opened]]:
    """Connections to a port of this machine."""
    return lambda: asyncio.open_connection("127.0.0.1", port)


def unix(path: str) -> Callable[[], Awaitable[Opened]]:
    """Connections to a socket file."""
    return lambda: asyncio.open_unix_connection(path)
