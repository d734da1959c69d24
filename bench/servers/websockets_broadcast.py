"""The Python peer: `websockets.broadcast` to every open connection, without compression.

python -m bench.servers.websockets_broadcast PORT
"""

import asyncio
import sys
from importlib.metadata import version

from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench.servers.command import Message, build_message, say_serving, serve_commands


async def main(port: int) -> None:
    """Serve until the input ends."""
    viewers: set[ServerConnection] = set()

    async def follow(connection: ServerConnection) -> None:
        viewers.add(connection)
        await connection.wait_closed()
        viewers.discard(connection)

    async def publish(message: Message) -> None:
        broadcast(viewers, build_message(message).decode())

    async with serve(follow, "127.0.0.1", port, compression=None, backlog=4096):
        say_serving(f"{version('websockets')}, Python {sys.version.split()[0]}")
        await serve_commands(publish)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
