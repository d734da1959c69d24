"""The directory of everything that an instance keeps on this machine, and the claim to it.

::

    .broker/
        lock        held by the `broker up` that uses the directory
        instance    the mark of its processes, made at the first start
        postgres/   the embedded server
        log/        what the parts write: one file a part
"""

import fcntl
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from broker.storage.errors import SetupError

_LOG_BYTES = 16 << 20


class DirectoryInUse(SetupError):
    """Another `broker up` has the data directory."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A data directory that is ours until this process ends, however it ends.

    Attributes:
        mark: of the processes that belong to the directory (`broker.deployments.processes`).
        scratch: a directory with a short path for sockets, which have room for about a hundred bytes.
    """

    path: Path
    mark: str
    scratch: Path
    lock: int

    @property
    def postgres(self) -> Path:
        """Directory of the embedded PostgreSQL."""
        return self.path / "postgres"

    def open_log(self, name: str) -> int:
        """A descriptor that appends to `log/<name>.log`; a file that has grown too large is put aside."""
        path = self.path / "log" / f"{name}.log"
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def release(self) -> None:
        """Give the directory up."""
        os.close(self.lock)


def claim(path: Path) -> Claim:
    """Make the data directory where it is missing and take it for this process.

    Raises:
        SetupError: it cannot be made or written.
        DirectoryInUse: another `broker up` has it.
    """
    path = path.absolute()
    try:
        (path / "log").mkdir(parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"the data directory {path} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DirectoryInUse(
            f"the data directory {path} is in use by another `broker up`; stop it or give another --data-dir"
        ) from None
    return Claim(path, _read_mark(path), scratch_directory(path), lock)


def scratch_directory(path: Path) -> Path:
    """The place for sockets of the data directory `path`; nothing is made."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:10]
    return Path("/tmp") / f"broker-{os.geteuid()}-{digest}"  # noqa: S108 - `make_scratch` looks who owns it


def make_scratch(scratch: Path) -> None:
    """Make the directory for sockets, for us alone.

    Raises:
        SetupError: somebody else has a directory of that name.
    """
    try:
        scratch.mkdir(mode=0o700)
    except FileExistsError:
        status = scratch.lstat()
        if scratch.is_symlink() or status.st_uid != os.geteuid():
            raise SetupError(f"{scratch}: belongs to somebody else; remove it") from None
        scratch.chmod(0o700)


def _read_mark(path: Path) -> str:
    file = path / "instance"
    if not file.exists():
        # Whole or not at all: a mark that is half written would lose its processes.
        temporary = file.with_suffix(".new")
        temporary.write_text(secrets.token_hex(16))
        temporary.replace(file)
    return file.read_text()
