"""A relay between a client and a server that can be cut, fall silent, or lose replies."""

import asyncio
from collections.abc import Awaitable, Callable


class Relay:
    """Carries bytes to a port; `cut` breaks every connection off, and `is_open` decides over new ones.

    While `lost` is set, the first bytes of a reply are dropped with their connection, after a call of it.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self._thawed = asyncio.Event()
        self._carried = bytearray()
        self._news = asyncio.Event()
        self.is_open = True
        self.lost: Callable[[], Awaitable[None]] | None = None
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        upstream, out = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, out}
        await asyncio.gather(self._carry(reader, out), self._carry(upstream, writer, is_reply=True))
        self._writers -= {writer, out}

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        try:
            while chunk := await reader.read(65536):
                if is_reply and self.lost is not None:
                    await self.lost()
                    break
                if writer in self._frozen:
                    await self._thawed.wait()
                writer.write(chunk)
                await writer.drain()
                self._carried += chunk
                self._news.set()
        except OSError:
            pass
        finally:
            writer.close()

    async def carried(self, text: bytes) -> None:
        """Return once `text` has been carried, in either direction, since the last call."""
        while text not in self._carried:
            self._news.clear()
            await self._news.wait()
        self._carried.clear()

    def freeze(self) -> None:
        """Carry nothing more over the present connections, which stay open, as when a link is cut."""
        self._thawed.clear()
        self._frozen |= self._writers

    def thaw(self) -> None:
        """Carry what has waited, and what comes."""
        self._frozen.clear()
        self._thawed.set()

    def cut(self) -> None:
        self.thaw()
        for writer in self._writers:
            writer.transport.abort()
