"""The data directory of PostgreSQL: created completely or not at all, and the server's settings."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from broker.setup_error import SetupError
from broker.storage.embedded.binaries import Binaries
from broker.storage.embedded.os_user import OsUser
from broker.storage.embedded.process import program_environment

SUPERUSER = "broker"

_INIT_S = 300.0
_IO_METHOD_SINCE = 18

_SETTINGS = {
    "listen_addresses": "",  # the socket in a private directory is the only door
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "96MB",
    "max_wal_size": "512MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # /dev/shm is 64 MB in many containers
    "dynamic_shared_memory_type": "mmap",
    "huge_pages": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    # replication is for a server of the operator's own
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "max_logical_replication_workers": "0",
    "log_checkpoints": "off",
    # A row that is there already is an ordinary reply of ours; values and statements are nobody's to read.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def read_major(data: Path) -> int | None:
    """The major version that made the data directory; None when there is none yet.

    Raises:
        SetupError: there is something else at that place.
    """
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        if data.exists():
            raise SetupError(f"{data}: is not a data directory of PostgreSQL; move it away") from None
        return None
    except ValueError:
        raise SetupError(f"{data / 'PG_VERSION'}: contains no version") from None


def create(root: Path, data: Path, binaries: Binaries, user: OsUser) -> None:
    """Make the data directory beside its place and rename it, so that a kill leaves none that is half made.

    Args:
        root: the directory that holds `data`; what earlier attempts left in it is removed.

    Raises:
        SetupError: `initdb` fails; with its last line.
    """
    # Make a directory that belongs to PostgreSQL's user, which `initdb` sees through a handle.
    for left in root.glob("new-*"):
        shutil.rmtree(left)
    temporary = Path(tempfile.mkdtemp(prefix="new-", dir=root))
    user.own(temporary)
    handle = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = subprocess.run(
            [
                binaries.directory / "initdb",
                f"--pgdata={visible_path(temporary, handle, user)}",
                f"--username={SUPERUSER}",
                "--auth-local=trust",
                "--auth-host=reject",
                "--encoding=UTF8",
                "--locale=C",
                "--data-checksums",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INIT_S,
            check=False,
            cwd="/",
            env=program_environment(),
            pass_fds=(handle,),
            **user.spawn_arguments(),
        )
    finally:
        os.close(handle)
    # Check the outcome, and move the directory to its place.
    if done.returncode != 0:
        shutil.rmtree(temporary)
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise SetupError(f"initdb failed: {lines[-1]}")
    temporary.rename(data)
    _sync(root)


def visible_path(directory: Path, handle: int, user: OsUser) -> str:
    """A name of `directory` that `user` can reach.

    A user that we stepped down to may be shut out by a directory above (a home of root's, a temporary
    directory). It then comes in by `handle`, an open directory that it inherits: the way above is not
    walked again. PostgreSQL names everything relative to its data directory once it runs.
    """
    if user.can_traverse(directory.parent):
        return str(directory)
    return f"/proc/self/fd/{handle}"


def server_arguments(
    binaries: Binaries, data: str, socket: str, changes: Mapping[str, str]
) -> list[str | Path]:
    """The command line of the server. Settings given here win over the files in the data directory.

    Args:
        changes: settings that are to differ from ours.
    """
    settings = {**_SETTINGS, "unix_socket_directories": socket, **changes}
    if binaries.major >= _IO_METHOD_SINCE:
        settings["io_method"] = "sync"  # saves the three worker processes
    arguments: list[str | Path] = [binaries.directory / "postgres", "-D", data]
    for name, value in settings.items():
        arguments += ["-c", f"{name}={value}"]
    return arguments


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
