"""A relay between a client and a server that can be cut, or lose replies."""

import asyncio
from collections.abc import Awaitable, Callable


class Relay:
    """Carries bytes to a port; `cut` breaks every connection off, and `is_open` decides over new ones.

    While `lost` is set, the first bytes of a reply are dropped with their connection, after a call of it.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
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
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
