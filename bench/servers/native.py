"""Ours: the native server in a process of its own, without the rest of the product.

    python -m bench.servers.native PORT SEND

Logs are opened and appended to as the gateway does it; viewers subscribe natively. One event loop, so that
the figures are for one core. SEND is the way of sending, `auto`, `send` or `io_uring`.
"""

import asyncio
import sys

from bench.servers.command import build_params, serve_commands
from broker._native import Server
from broker.owners.protocol import EntryKind, program_topic

ACCOUNT = "demo"
TOPIC = program_topic(ACCOUNT, "bench")


async def main(port: int, send: str) -> None:
    """Serve until the input ends."""
    server = Server(host="127.0.0.1", port=port, loops=1, send=send)
    server.set_accounts("127.0.0.1", ACCOUNT, {ACCOUNT: None})
    server.open_log(TOPIC, "bench", 0, True)
    server.start()

    async def publish(seq: int, size_bytes: int) -> None:
        server.append(TOPIC, [(EntryKind.PUSH, "bench", seq, "event", build_params(seq, size_bytes))])

    try:
        await serve_commands(publish)
    finally:
        server.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
