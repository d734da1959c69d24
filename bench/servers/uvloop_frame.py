"""The best that Python has: uvloop, one prebuilt frame, `transport.write` to each viewer.

    python -m bench.servers.uvloop_frame PORT

What is published in one turn of the loop is joined once and written to each viewer at the turn's end.
"""

import asyncio
import re
import struct
import sys
from importlib.metadata import version
from typing import cast

import uvloop
from websockets.utils import accept_key

from bench.servers.command import Message, build_message, say_serving, serve_commands

ANSWER = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: {}\r\n\r\n"
)
MESSAGES_A_TURN = 32


class Viewer(asyncio.Protocol):
    """Answers the handshake, and from then on only listens to the closing."""

    def __init__(self, open_ones: set[asyncio.WriteTransport]) -> None:
        self._open_ones = open_ones
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the answer."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Gather the request; what comes after it is dropped."""
        if self._transport in self._open_ones:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            key = re.search(rb"(?i)sec-websocket-key: *(\S+)", self._head)
            if key is None:
                self._transport.close()
                return
            self._transport.write(ANSWER.format(accept_key(key[1].decode())).encode())
            self._open_ones.add(self._transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the viewer."""
        self._open_ones.discard(self._transport)


def build_frame(payload: bytes) -> bytes:
    """A text frame of 126 to 65,535 bytes (RFC 6455, section 5.2)."""
    return struct.pack("!BBH", 0x81, 126, len(payload)) + payload


async def main(port: int) -> None:
    """Serve until the input ends."""
    viewers: set[asyncio.WriteTransport] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Viewer(viewers), "127.0.0.1", port, backlog=4096)

    waiting: list[bytes] = []

    def flush() -> None:
        frames = b"".join(waiting)
        waiting.clear()
        for viewer in viewers:
            viewer.write(frames)

    async def publish(message: Message) -> None:
        if not waiting:
            loop.call_soon(flush)
        waiting.append(build_frame(build_message(message)))

    say_serving(f"{version('uvloop')}, Python {sys.version.split()[0]}")
    await serve_commands(publish, MESSAGES_A_TURN)
    server.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
