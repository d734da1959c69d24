"""Who is measured: the programs and how the load client follows them."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import PEERS, InstallError, ensure_peer

ROOT = Path(__file__).parents[1]
EXAMPLES = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "examples"
PROGRAM = '{"programId":"bench"}'
STREAM = "/api/v1/programs/bench/events/stream"
SOURCE_PORTS = 5000
"""Connections from one source address, which has some 28,000 ports. Linux gives out every second one first:
beyond 14,000 each `connect` searches through all of those, which was seen to take most of a millisecond."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that takes `publish` commands."""

    name: str
    command: Callable[[int], list[str | Path]]
    """port → command line."""
    protocol: str = "websocket"
    """How the load client speaks to it."""
    subscribe: str | None = None
    """JSON of `subscribe`'s params; None where a viewer follows in another way."""
    path: str = "/api/v1/ws"
    peer: str | None = None
    """What must be installed for it."""


def run_floor(way: str) -> Callable[[int], list[str | Path]]:
    """The bare loop with this way of sending."""
    return lambda port: [EXAMPLES / "floor", f"127.0.0.1:{port}", way]


def run_python(module: str, *arguments: str) -> Callable[[int], list[str | Path]]:
    """A module of `bench.servers`."""
    return lambda port: [sys.executable, "-m", f"bench.servers.{module}", str(port), *arguments]


def run_uws(port: int) -> list[str | Path]:
    """A script of Node.js."""
    return ["node", ROOT / "bench/servers/uws.cjs", str(port), PEERS["uWebSockets"].program]


CONTENDERS = (
    Contender("send() loop", run_floor("send")),
    Contender("io_uring loop", run_floor("io_uring")),
    Contender("broker, send", run_python("native", "send"), subscribe=PROGRAM),
    Contender("broker, io_uring", run_python("native", "io_uring"), subscribe=PROGRAM),
    Contender("broker, SSE, send", run_python("native", "send"), "events", path=STREAM),
    Contender("broker, SSE, io_uring", run_python("native", "io_uring"), "events", path=STREAM),
    Contender("uWebSockets", run_uws, peer="uWebSockets"),
    Contender("uvloop, one frame", run_python("uvloop_frame")),
    Contender("Redis", run_python("redis"), "redis", peer="Redis"),
    Contender("NATS", run_python("nats"), "nats", peer="NATS"),
    Contender(
        "Centrifugo",
        run_python("centrifugo"),
        "centrifugo",
        path="/connection/websocket",
        peer="Centrifugo",
    ),
    Contender("nchan", run_python("nchan"), path="/subscribe", peer="nchan"),
    Contender("websockets.broadcast", run_python("websockets_broadcast")),
)


def keep_installed(contenders: list[Contender], tell: Callable[[str], None]) -> list[Contender]:
    """Install what the contenders need; one that cannot be had here is left out, and said so."""
    kept = []
    for contender in contenders:
        try:
            if contender.peer:
                ensure_peer(contender.peer)
        except InstallError as error:
            tell(f"{contender.name} is missing: {error}")
        else:
            kept.append(contender)
    return kept


def build_examples() -> None:
    """Build the load client and the floors.

    Raises:
        subprocess.CalledProcessError: they do not build.
    """
    names = ["--example", "load", "--example", "floor"]
    subprocess.run(["cargo", "build", "--release", "--quiet", *names], cwd=ROOT, check=True)


def build_load(port: int, connections: int, contender: Contender, *options: str) -> list[str | Path]:
    """The load client's command line."""
    command: list[str | Path] = [EXAMPLES / "load", f"127.0.0.1:{port}", "--connections", str(connections)]
    command += ["--sources", str(1 + connections // SOURCE_PORTS)]
    command += ["--protocol", contender.protocol, "--path", contender.path]
    if contender.subscribe:
        command += ["--subscribe", contender.subscribe]
    return [*command, *options]
