"""A relay between a client and a server that can be cut."""

import asyncio


class Relay:
    """Carries bytes to a port; `cut` breaks every connection off, and `is_open` decides over new ones."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_open = True
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        upstream, out = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, out}
        await asyncio.gather(self._carry(reader, out), self._carry(upstream, writer))
        self._writers -= {writer, out}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
