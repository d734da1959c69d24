"""NATS: core publish and subscribe, over its own protocol.

python -m bench.servers.nats PORT
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bench.peers.install import PEERS
from bench.servers.command import Message, build_message
from bench.servers.outside import read_version, serve_outside

CONFIG = """
host: 127.0.0.1
port: {port}
max_connections: 200000
logfile: /dev/null
# A subscriber may fall behind by as much as a burst has.
max_pending: 1GB
write_deadline: "60s"
"""
GREETING = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


def encode(message: Message) -> bytes:
    """The command that publishes a message."""
    payload = build_message(message)
    return b"PUB bench %d\r\n%b\r\n" % (len(payload), payload)


async def main(port: int) -> None:
    """Serve until the input ends."""
    program = PEERS["NATS"].program
    version = read_version([program, "--version"]).split()[-1].removeprefix("v")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(CONFIG.format(port=port))
        config.flush()
        command: list[str | Path] = [program, "-c", config.name]
        # One core, as the others have: a second one would be the load client's.
        environment = os.environ | {"GOMAXPROCS": "1"}
        await serve_outside(
            command, port, encode, version=version, greeting=GREETING, environment=environment
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
