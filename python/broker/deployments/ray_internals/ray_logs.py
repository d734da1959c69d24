"""The files that Ray's processes write: `log/ray` of the data directory, one directory per start.

Ray writes it below its session directory, which is gone after a stop, and never removes a file of a process
that has ended. Here it stays after a stop, for us alone, and is bounded.

Names used: that `Node` has its logs in `logs` of the session's directory, and goes on where that is there
already; that the name of a file ends in the number of its process.
Probe: none at the start; tests look for logs where they should be. A name without a number is never removed
while its session runs.
Fall-back: Ray's logs are below its session's directory, and gone after a stop.
Gain: they stay after a stop, are ours alone to read, and take no more than the setting says.
"""

import re
from contextlib import suppress
from pathlib import Path

FILE_BYTES = 16 << 20
"""Where Ray puts a file aside; it keeps one of those."""
LOOK_S = 60.0
"""Between two looks whether there is too much."""

_FILES = 2_000  # a start has fifty, and each part that is restarted five
_PROCESS = re.compile(r"[-_](\d+)\.(?:log|out|err)(?:\.\d+)?$")


def attach(session: Path, log: Path) -> None:
    """Make the directory for the logs of a session of Ray that is about to begin, and put it into its place.

    Ray opens it to everybody, again and again; the one above is closed.

    Args:
        session: Ray's directory of the session; made when missing.
        log: the directory of logs.
    """
    (log / "ray").mkdir(mode=0o700, exist_ok=True)
    directory = log / "ray" / session.name
    directory.mkdir()
    session.mkdir(parents=True)
    (session / "logs").symlink_to(directory)


def prune(log: Path, limit_bytes: int) -> None:
    """Remove the oldest files until the rest has `limit_bytes` at most, but what may still be written."""
    directory = log / "ray"
    sessions = sorted(directory.glob("session_*"))
    files = sorted(_list_files(directory))
    used, count = sum(size for _, size, _ in files), len(files)
    for _, size, path in files:
        if used <= limit_bytes and count <= _FILES:
            break
        if sessions[-1] in path.parents and _may_be_written(path):
            continue
        with suppress(OSError):
            path.unlink()
            used -= size
            count -= 1
    for session in sessions[:-1]:
        for left in (*sorted((each for each in session.rglob("*") if each.is_dir()), reverse=True), session):
            with suppress(OSError):  # it is not empty
                left.rmdir()


def _list_files(directory: Path) -> list[tuple[float, int, Path]]:
    """Time of the last change, bytes and path of each file."""
    files = []
    for path in directory.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
    return files


def _may_be_written(path: Path) -> bool:
    """Whether a living process has the file; most have the number of theirs in their name."""
    found = _PROCESS.search(path.name)
    return found is None or Path(f"/proc/{found[1]}").exists()
