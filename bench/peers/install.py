"""Gets each peer from its package registry, by pinned version and checksum.

Nothing is installed into the system: npm's, PyPI's and Debian's packages are unpacked, and Go's are built,
under `.build/peers`. What is there already is left as it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
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
    install_npm("uws", "--omit=optional")


def install_sharp() -> None:
    """Sharp with its libvips, and that library's headers, from npm."""
    install_npm("sharp")


def install_npm(name: str, *options: str) -> None:
    """Packages of a lock file, into a directory of their own. No script of theirs is run."""
    directory = CACHE / name
    directory.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(PINS / name / file, directory)
    run(["npm", "ci", "--ignore-scripts", *options, "--no-audit", "--no-fund"], directory)


def install_centrifugo() -> None:
    """Centrifugo, built from Go modules whose checksums are in `go.sum`."""
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(CACHE / "centrifugo")]
    run([*command, "github.com/centrifugal/centrifugo/v5"], PINS / "centrifugo")


def install_imagor() -> None:
    """Imagor, built from Go modules whose checksums are in `go.sum`, on the libvips that sharp brings.

    That is the version that ours has too, with all that it needs in one library; its package has no file for
    pkg-config, so one is written. It lacks functions of rare formats that imagor names and the bench never
    uses, so the linker only warns of them. The linker is told the library's folder again: of pkg-config's
    words Go's build cache keeps those of the checkout that built it first.
    """
    ensure_peer("sharp")
    packages = CACHE / "sharp/node_modules/@img"
    (library,) = (packages / "sharp-libvips-linux-x64/lib").glob("libvips-cpp.so.*")
    include = packages / "sharp-libvips-dev/include"
    folders = (include, include / "glib-2.0", library.parent / "glib-2.0/include")
    (CACHE / "vips.pc").write_text(
        f"Name: vips\nDescription: libvips of sharp\nVersion: {library.name.partition('.so.')[2]}\n"
        f"Cflags: {' '.join(f'-I{folder}' for folder in folders)}\n"
        f"Libs: -L{library.parent} -l:{library.name}\n"
    )
    environment = {"PKG_CONFIG_PATH": str(CACHE), "CGO_LDFLAGS_ALLOW": ".*", "CGO_ENABLED": "1"}
    linking = f"-L{library.parent} -Wl,-rpath,{library.parent} -Wl,--warn-unresolved-symbols"
    flags = f"-ldflags=-s -w -extldflags '{linking}'"
    command = ["go", "build", "-mod=readonly", "-trimpath", flags, "-o", str(CACHE / "imagor")]
    run([*command, "."], PINS / "imagor", environment)


def install_nats() -> None:
    """NATS' server, from PyPI."""
    install_python(PINS / "requirements.txt", CACHE / "python")


def install_thumbor() -> None:
    """Thumbor and what it runs on, from PyPI."""
    install_python(PINS / "thumbor" / "requirements.txt", CACHE / "thumbor")


def install_python(requirements: Path, target: Path) -> None:
    """Packages whose hashes are pinned, into a directory of their own."""
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
    run([*command, "--target", str(target), "-r", str(requirements)], PINS)


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
        Peer("sharp", CACHE / "sharp/node_modules/sharp/package.json", install_sharp),
        Peer("imagor", CACHE / "imagor", install_imagor),
        Peer("thumbor", CACHE / "thumbor/bin/thumbor", install_thumbor),
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


def run(command: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a registry's client, with `environment` added to ours.

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
            env=os.environ | dict(environment or {}),
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{command[0]} took longer than {INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise InstallError(f"{command[0]}: {said[-1] if said else error.returncode}") from None
