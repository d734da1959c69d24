"""Centrifugo: viewers by its bidirectional JSON protocol, publishing by its HTTP interface.

python -m bench.servers.centrifugo PORT
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from bench.peers.install import PEERS, PINS
from bench.servers.command import Message, build_params
from bench.servers.outside import encode_post, serve_outside

ENVELOPE = b'{"push":{"channel":"bench","pub":{"data":%b}}}'
"""What a viewer gets."""
CONFIG = {
    "allow_anonymous_connect_without_token": True,
    "allow_subscribe_for_client": True,
    "allow_subscribe_for_anonymous": True,
    "api_insecure": True,
    "address": "127.0.0.1",
    # A viewer may fall behind by as much as a burst has.
    "client_queue_max_size": 256 << 20,
    "websocket_use_write_buffer_pool": True,
    "log_level": "error",
}


def encode(message: Message) -> bytes:
    """The request that publishes a message."""
    return encode_post("/api/publish", b'{"channel":"bench","data":%b}' % build_params(message, ENVELOPE))


async def main(port: int) -> None:
    """Serve until the input ends."""
    modules = (PINS / "centrifugo" / "go.mod").read_text()
    found = re.search(r"centrifugo/v5 v(\S+)", modules)
    assert found, "go.mod names the version that is built"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(CONFIG | {"port": port}, config)
        config.flush()
        command: list[str | Path] = [PEERS["Centrifugo"].program, "-c", config.name]
        # One core, as the others have: a second one would be the load client's.
        environment = os.environ | {"GOMAXPROCS": "1"}
        await serve_outside(command, port, encode, version=found[1], environment=environment)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
