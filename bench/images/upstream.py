"""A server on loopback that has images, as cheap as Python's can be.

`python -m bench.images.upstream DIRECTORY`

It answers `GET /NAME?…` with the file of that name. With `salt=` in its query the body ends in that query, so
that equal images are other bytes; decoders ignore what follows the end of a JPEG. Each line on standard
input is answered with how many requests there were since the last one.
"""

import asyncio
import json
import sys
from pathlib import Path

from bench.servers.command import read_lines


class ImageConnection(asyncio.Protocol):
    """One connection."""

    requests = 0

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self._bodies = bodies
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            ImageConnection.requests += 1
            path, _, query = head.split(b" ", 2)[1].decode().lstrip("/").partition("?")
            body = self._bodies.get(path)
            if body is None:
                self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            salt = query.encode() if "salt=" in query else b""
            kind = b"image/gif" if path.endswith(".gif") else b"image/jpeg"
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
                % (kind, len(body) + len(salt))
            )
            self._transport.write(body)
            self._transport.write(salt)


async def main(bodies: dict[str, bytes]) -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ImageConnection(bodies), "127.0.0.1", 0, backlog=2_048)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async for _ in read_lines():
        print(json.dumps({"requests": ImageConnection.requests}), flush=True)
        ImageConnection.requests = 0


if __name__ == "__main__":
    asyncio.run(main({path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}))
