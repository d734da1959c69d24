"""Ours: the native server in a process of its own, without the rest of the product.

    python -m bench.servers.native PORT SEND [PROGRAMS [CERTIFICATE]]

Logs are opened and appended to as the gateway does it; viewers subscribe natively. One event loop, so that
the figures are for one core. SEND is the way of sending, `auto`, `send` or `io_uring`. A message is published
to each of the programs, `bench` or, with PROGRAMS, `bench-0` and so on; the program `quiet` gets none.

With CERTIFICATE, a file that has it and its key, viewers speak TLS.

Nobody takes upcalls: what native code could not decide by itself, which is where the product would ask an
actor, would never be answered, and its viewer never ready.
"""

import asyncio
import sys
from pathlib import Path

from bench.servers.command import Message, build_params, say_serving, serve_commands, wait_until_exactly
from broker import __version__
from broker._native import Server
from broker.owners.protocol import EntryKind, program_topic

ACCOUNT = "demo"


async def main(port: int, send: str, programs: int, certificate: bytes | None = None) -> None:
    """Serve until the input ends."""
    pair = None if certificate is None else (certificate, certificate)
    server = Server(host="127.0.0.1", port=port, loops=1, send=send, certificate=pair)
    server.set_accounts("127.0.0.1", ACCOUNT, {ACCOUNT: None})
    names = [f"bench-{number}" for number in range(programs)] or ["bench"]
    topics = [program_topic(ACCOUNT, name) for name in names]
    for topic in (*topics, program_topic(ACCOUNT, "quiet")):
        server.open_log(topic, "bench", 0, True)
    server.start()
    say_serving(f"{__version__}, {server.stats()['send']}")

    async def publish(message: Message) -> None:
        for topic in topics:
            server.append(topic, [(EntryKind.PUSH, "bench", message.seq, "event", build_params(message))])

    try:
        await serve_commands(publish, wait_until=wait_until_exactly)
    finally:
        server.stop()


if __name__ == "__main__":
    given = Path(sys.argv[4]).read_bytes() if len(sys.argv) > 4 else None
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0, given))
