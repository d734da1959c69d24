"""The postmaster as a process: finding, starting and stopping it.

A process is the postmaster of a data directory when it works there: PostgreSQL changes into its data
directory and stays. That also recognises a process number that the system has given to another process, and
the orphans of a postmaster that was killed, which may still write for a moment.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker import timers
from broker.concurrency.deadline import until_deadline
from broker.setup_error import SetupError
from broker.storage.embedded.os_user import OsUser

_POLL_S = 0.01
_START_S = 120.0  # recovery after a crash reads the log since the last checkpoint
_FAST_STOP_S = 8.0
_HARD_STOP_S = 3.0
LOG_BYTES = 8 << 20
"""Of the log that is written; as much is kept of the one before."""
_PROC = Path("/proc")

_CHILDREN: dict[int, "subprocess.Popen[bytes]"] = {}
"""Postmasters that this process started: a dead child stays in the process table until it is waited for."""


@dataclass(frozen=True, slots=True)
class PidFile:
    """What `postmaster.pid` says (PostgreSQL source, `miscadmin.h`): lines 1 and 8."""

    pid: int
    is_ready: bool


def read_pid_file(data: Path) -> PidFile | None:
    """The pid file of the server in `data`; None without one, or while it is being written."""
    try:
        lines = (data / "postmaster.pid").read_text().split("\n")
        # A standalone backend writes its number negative.
        return PidFile(abs(int(lines[0])), len(lines) > 7 and lines[7].strip() == "ready")
    except (FileNotFoundError, ValueError):
        return None


def find_postmaster(data: Path) -> int | None:
    """The process id of the living postmaster of `data`."""
    file = read_pid_file(data)
    return file.pid if file and works_in(file.pid, data) else None


async def wait_for_end(pid: int, limit_s: float, poll_s: float) -> None:
    """Return when the process has ended, after `limit_s` at the latest.

    Where the system cannot tell (pidfd_open(2) is Linux's), it returns after `poll_s`.
    """
    ended = asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        await asyncio.sleep(poll_s)
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), limit_s)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def works_in(pid: int, data: Path) -> bool:
    """Whether `pid` is a living process whose working directory is `data`."""
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        del _CHILDREN[pid]
        return False
    if not _PROC.is_dir():
        return _is_postgres(pid)
    try:
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and (_PROC / str(pid) / "cwd").readlink() == data.resolve()
    except OSError:
        return False


def start(
    arguments: Sequence[str | Path], data: Path, log: Path, user: OsUser, pass_handles: Sequence[int]
) -> int:
    """Start `postgres` in a session of its own, wait until it is ready, return its process id.

    The caller holds the lock of the users, knows that no postmaster is alive, and has cleared its traces.

    Raises:
        SetupError: it ended or was not ready in time; with the last line of its log.
    """
    bound_log(log)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with (
        open(log, "ab", opener=lambda path, _: os.open(path, flags, 0o600)) as output,
        timers.late(timers.EXACT_S),  # whatever those of this process are
    ):
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in our terminal is not for it
            cwd="/",
            env=program_environment(),
            pass_fds=pass_handles,
            **user.spawn_arguments(),
        )
    _CHILDREN[child.pid] = child
    await_ready(data, log, child.pid)
    return child.pid


def bound_log(log: Path) -> None:
    """Put what the log has aside once it is too large; `.1` is replaced. Blocks. On a full disk it is lost.

    The server keeps the file open and appends, so it is copied and emptied in its place. What the server
    writes in between, some microseconds, is lost.
    """
    with suppress(OSError):
        if log.stat().st_size <= LOG_BYTES:
            return
        try:
            shutil.copy(log, log.with_suffix(".log.1"))
        finally:
            os.truncate(log, 0)


def await_ready(data: Path, log: Path, pid: int) -> None:
    """Wait until the postmaster `pid` takes connections.

    Raises:
        SetupError: it ended, or was not ready in time.
    """
    for _ in until_deadline(_START_S, _POLL_S):
        child = _CHILDREN.get(pid)
        if (child is not None and child.poll() is not None) or not _exists(pid):
            _CHILDREN.pop(pid, None)
            raise SetupError(f"PostgreSQL did not start: {_last_line(log)} (see {log})")
        file = read_pid_file(data)
        if file and file.pid == pid and file.is_ready:
            return
    raise SetupError(f"PostgreSQL is not ready after {_START_S:g} s: {_last_line(log)} (see {log})")


def stop(data: Path) -> None:
    """Stop the server of `data`: sessions are ended, what is committed is on disk. Idempotent."""
    pid = find_postmaster(data)
    if pid is None:
        return
    # Fast, then immediate shutdown (PostgreSQL manual, "Shutting Down the Server"); the last needs recovery.
    for number, wait_s in (
        (signal.SIGINT, _FAST_STOP_S),
        (signal.SIGQUIT, _HARD_STOP_S),
        (signal.SIGKILL, _HARD_STOP_S),
    ):
        _signal(pid, number)
        if _wait(lambda: not works_in(pid, data), wait_s):
            break
    _end_orphans(data)


def remove_traces(data: Path, socket: Path) -> None:
    """Clear what a killed postmaster left. The caller knows that none is alive, and holds the users' lock.

    PostgreSQL does most of this itself, but takes any living process with the number in its lock files for
    a postmaster: a stranger that got the number, or the dead one that its parent has not yet waited for.
    """
    _end_orphans(data)
    file = read_pid_file(data)
    if file and _exists(file.pid):
        (data / "postmaster.pid").unlink()
    socket.unlink(missing_ok=True)
    socket.with_name(f"{socket.name}.lock").unlink(missing_ok=True)


def program_environment() -> dict[str, str]:
    """The environment of PostgreSQL's programs: nothing of ours can change what they do."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _end_orphans(data: Path) -> None:
    """End processes that outlived their postmaster: a new one refuses to start beside them.

    Killing them is safe without a postmaster: the next start recovers from the write-ahead log.
    """
    for number in (signal.SIGQUIT, signal.SIGKILL):
        orphans = _list_orphans(data)
        for pid in orphans:
            _signal(pid, number)
        if not orphans or _wait(lambda: not _list_orphans(data), _HARD_STOP_S):
            return


def _list_orphans(data: Path) -> list[int]:
    if not _PROC.is_dir():
        return []
    return [int(p.name) for p in _PROC.iterdir() if p.name.isdigit() and works_in(int(p.name), data)]


def _is_postgres(pid: int) -> bool:
    """Where there is no /proc: whether `pid` runs a program named postgres."""
    done = subprocess.run(
        ["/bin/ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return "postgres" in done.stdout and not done.stdout.startswith("Z")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    return any(condition() for _ in until_deadline(timeout_s, _POLL_S))


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except FileNotFoundError:
        lines = []
    for line in reversed(lines):
        if "FATAL" in line or "PANIC" in line:
            return line.strip()
    return lines[-1].strip() if lines else "it printed nothing"
