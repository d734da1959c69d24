"""Who is measured: the programs and how the load client follows them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "target" / "release" / "examples"


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that takes `publish` commands."""

    name: str
    is_ours: bool
    command: Callable[[int], list[str | Path]]
    """port → command line."""
    subscribe: str | None
    """JSON of `subscribe`'s params; None where a viewer follows by being connected."""


CONTENDERS = (
    Contender("send() loop", False, lambda port: [EXAMPLES / "floor", f"127.0.0.1:{port}"], None),
    Contender(
        "websockets.broadcast",
        False,
        lambda port: [sys.executable, "-m", "bench.servers.websockets_broadcast", str(port)],
        None,
    ),
    Contender(
        "broker, send",
        True,
        lambda port: [sys.executable, "-m", "bench.servers.native", str(port), "send"],
        '{"programId":"bench"}',
    ),
    Contender(
        "broker, io_uring",
        True,
        lambda port: [sys.executable, "-m", "bench.servers.native", str(port), "io_uring"],
        '{"programId":"bench"}',
    ),
)


def build_examples() -> None:
    """Build the load client and the floor.

    Raises:
        subprocess.CalledProcessError: they do not build.
    """
    names = ["--example", "load", "--example", "floor"]
    subprocess.run(["cargo", "build", "--release", "--quiet", *names], cwd=ROOT, check=True)


def build_load(port: int, connections: int, contender: Contender) -> list[str | Path]:
    """The load client's command line."""
    # One source address has some 28,000 ports, of which other programs use a few.
    sources = 1 + connections // 20_000
    command: list[str | Path] = [EXAMPLES / "load", f"127.0.0.1:{port}", "--connections", str(connections)]
    command += ["--sources", str(sources)]
    if contender.subscribe:
        command += ["--subscribe", contender.subscribe]
    return command
