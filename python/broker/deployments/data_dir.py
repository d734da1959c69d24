"""The data directory of an instance on this machine, and the lock on it.

::

    .broker/        for us alone
        lock        held by the `broker up` that uses the directory
        instance    the mark of its processes, made at the first start
        scratch     a link to the scratch directory, while there is one
        postgres/   the embedded server
        images/     images that were fetched or made; may be removed at any time
        metrics/    sockets of the processes, which answer a scrape
        reload      what became of the last reload of the settings
        log/        what the processes write; it stays after a stop

Sockets need short paths, so they lie in a scratch directory below `/tmp`, along with files that a start makes
again. What is executed or read as configuration is among them, so it is for us alone too. Ray opens its own
directory to everybody: that one is below, where nobody else comes. The scratch directory has a name that
nobody can know before, or a neighbour could take it first and so prevent every start.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from broker.deployments.private_paths import require_private
from broker.setup_error import SetupError

_LOG_BYTES = 16 << 20
_SHARED = Path("/tmp")  # noqa: S108 - a private directory of a random name is made in it
_LINK = "scratch"
RECORD = "reload"
"""The name of the file in which the last reload is recorded."""

_LOCK = "lock"
# A start may be killed before it has made all; `broker restore` makes the database alone.
_OURS = {"images", _LOCK, "log", "metrics", "postgres", RECORD, _LINK, "instance"}


class DirectoryInUse(SetupError):
    """Another `broker up` has the data directory."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A data directory that is ours until this process ends, however it ends.

    Attributes:
        path: resolved, so that no link on the way can be turned elsewhere.
        mark: of the processes that belong to the directory (`broker.deployments.processes`).
        scratch: for us alone and with a short path, for sockets, which have room for about a hundred bytes.
            `make_scratch` makes it.
    """

    path: Path
    mark: str
    scratch: Path
    lock: int

    @property
    def postgres(self) -> Path:
        """Directory of the embedded PostgreSQL."""
        return self.path / "postgres"

    @property
    def log(self) -> Path:
        """Directory of what the processes write."""
        return self.path / "log"

    def open_log(self, name: str) -> int:
        """A descriptor that appends to `log/<name>.log`; a file that has grown too large is put aside."""
        path = self.log / f"{name}.log"
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def make_scratch(self) -> None:
        """Make the scratch directory, empty; nothing of the instance runs.

        Raises:
            SetupError: it would not be for us alone.
        """
        if find_scratch(self.path) == self.scratch:
            self.clear_scratch()
            return
        self.remove_scratch()
        try:
            (self.path / _LINK).symlink_to(self.scratch)  # first: it is found again whenever we are killed
            self.scratch.mkdir(mode=0o700)
        except OSError as error:
            raise SetupError(f"{self.scratch}: cannot be made: {error.strerror}") from error
        require_private(self.scratch.resolve(), "the scratch directory")

    def clear_scratch(self, keep: Path | None = None) -> None:
        """Empty the scratch directory, except `keep` in it.

        It stays itself, since another user could take its name while it is away.
        """
        for left in self.scratch.iterdir():
            if left == keep:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()

    def remove_scratch(self) -> None:
        """Remove the scratch directory, and that of an earlier run."""
        for left in {self.scratch, find_scratch(self.path), _former_scratch(self.path)}:
            if left is not None and _is_ours(left):
                shutil.rmtree(left, ignore_errors=True)
        (self.path / _LINK).unlink(missing_ok=True)

    def release(self) -> None:
        """Give the directory up."""
        os.close(self.lock)


def open_data_dir(path: Path) -> Path:
    """Make the data directory where it is missing, close it to others; returns it without links on the way.

    Raises:
        SetupError: it cannot be made or written, others could change what is in it, or they use it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        require_private(path, "the data directory")
        _require_ours(path)
        # One that an earlier version made may be open to readers.
        for directory in (path, path / "log"):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
    except OSError as error:
        raise SetupError(f"the data directory {path} cannot be used: {error.strerror}") from error
    return path


def has_database(path: Path) -> bool:
    """Whether the embedded PostgreSQL of the data directory `path` was made. Raises OSError."""
    return (path / "postgres" / "data").exists()  # it gets this name when it is complete


def claim(path: Path) -> Claim:
    """Open the data directory and take it for this process.

    Raises:
        SetupError: see `open_data_dir`.
        DirectoryInUse: another `broker up` has it.
    """
    path = open_data_dir(path)
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"the data directory {path} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DirectoryInUse(
            f"the data directory {path} is in use by another `broker up`; stop it or give another --data-dir"
        ) from None
    return Claim(path, _read_mark(path), _SHARED / f"broker-{os.geteuid()}-{secrets.token_hex(5)}", lock)


def require_claimed(path: Path) -> None:
    """Raise `SetupError` unless a `broker up` runs on the data directory."""
    try:
        with (path / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError as error:
        raise SetupError(f"no `broker up` runs on {path}: {error.strerror}") from error
    raise SetupError(f"no `broker up` runs on {path}")


def _require_ours(path: Path) -> None:
    """Raise `SetupError` when others use `path` for something else: it is about to be closed to them."""
    left = set(os.listdir(path))  # noqa: PTH208 - names are all that is wanted
    if left - _OURS and "instance" not in left and path.stat().st_mode & 0o077:
        raise SetupError(
            f"the data directory {path} contains other files and other users can open it;"
            " choose a directory that only the broker uses"
        )


def find_scratch(path: Path) -> Path | None:
    """The scratch directory of the data directory `path`; None when it has none at the moment."""
    try:
        target = (path / _LINK).readlink()
    except OSError:
        return None
    return target if target.parent == _SHARED else None


def _former_scratch(path: Path) -> Path:
    """The name that earlier versions gave it; they let everybody write there, so it is not used again."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:10]
    return _SHARED / f"broker-{os.geteuid()}-{digest}"


def _is_ours(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _read_mark(path: Path) -> str:
    file = path / "instance"
    if not file.exists():
        # Whole or not at all: a mark that is half written would lose its processes.
        temporary = file.with_suffix(".new")
        temporary.write_text(secrets.token_hex(16))
        temporary.replace(file)
    return file.read_text()
