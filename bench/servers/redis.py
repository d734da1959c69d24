"""Redis: `PUBLISH` to subscribers of a channel, over its own protocol.

python -m bench.servers.redis PORT
"""

import asyncio
import os
import sys

from bench.peers.install import LIBRARIES, PEERS
from bench.servers.command import Message, build_message
from bench.servers.outside import read_version, serve_outside

SETTINGS = (
    # No persistence, and no limit on what a subscriber may leave unread: none of that is measured here.
    ("save", ""),
    ("appendonly", "no"),
    ("client-output-buffer-limit", "pubsub 0 0 0"),
    ("maxclients", "15000"),
    ("tcp-backlog", "4096"),
    ("protected-mode", "no"),  # which lets 127.0.0.1 in and no other address of loopback
    ("logfile", "/dev/null"),
)


def encode(message: Message) -> bytes:
    """The command that publishes a message."""
    payload = build_message(message)
    return b"*3\r\n$7\r\nPUBLISH\r\n$5\r\nbench\r\n$%d\r\n%b\r\n" % (len(payload), payload)


async def main(port: int) -> None:
    """Serve until the input ends."""
    program = PEERS["Redis"].program
    environment = os.environ | {"LD_LIBRARY_PATH": str(LIBRARIES)}
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", "/tmp"]
    for name, value in SETTINGS:
        command += [f"--{name}", *(value.split() or [""])]
    version = read_version([program, "--version"], environment).split()[2].removeprefix("v=")
    await serve_outside(command, port, encode, version=version, environment=environment)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
