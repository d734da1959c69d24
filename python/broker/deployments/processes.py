"""The processes of one instance: marked when they start, found by the mark, and ended completely.

Ray starts processes that start processes, some in sessions of their own, and any of them may be killed
before it has said what it started. What all of them keep is the environment that they were born with. So
the first of them is given a mark there, and whoever carries it belongs to the instance: no process number
is written down, so none can be mistaken for another's.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from broker.concurrency.deadline import until_deadline

MARK = "BROKER_INSTANCE"
CONDUCTOR_MARK = "BROKER_CONDUCTOR"
"""The same for the processes of one conductor, of which an instance may have two for a while."""

_PROC = Path("/proc")
_SESSION, _FLAGS = 2, 5  # of the fields behind the state
_KERNEL = 0x0020_0000  # the flag PF_KTHREAD
_LOOKS = 20  # at a process without an environment, 20 ms: becoming another program takes less than one
_LOOK_S = 0.001
_POLL_S = 0.02
_PATIENCE_S = 5.0  # for the kernel to take down what was killed


def list_marked(mark: str, session: int | None = None, name: str = MARK) -> list[int]:
    """The living processes of an instance, this one excepted. Empty where there is no /proc.

    Some of Ray's processes overwrite their environment with their title. They are in the session of the
    process that was given the mark, so every member of a session with a marked process counts.

    Args:
        session: the number of a session that is known to be the instance's.
        name: of the variable that holds the mark.
    """
    if not _PROC.is_dir():
        return []
    wanted = f"{name}={mark}".encode()
    pids = _list_all()
    marked = {pid for pid in pids if _carries(pid, wanted)}
    sessions = {_session_of(pid) for pid in marked} | {session}
    sessions -= {None, os.getsid(0)}
    return [pid for pid in pids if pid != os.getpid() and (pid in marked or _session_of(pid) in sessions)]


def end_marked(mark: str, session: int | None = None, name: str = MARK) -> int:
    """Kill every process of an instance (see `list_marked`); returns how many there were. Blocks."""
    known = session

    def list_left() -> list[int]:
        nonlocal known
        left = list_marked(mark, known, name)
        known = known or (_session_of(left[0]) if left else None)
        return left

    return _end(list_left)


def end_own_session() -> None:
    """Kill everything else in the session of this process, if it leads one; for its last moment. Blocks."""
    own = os.getpid()
    if os.getsid(0) == own and _PROC.is_dir():
        _end(lambda: [pid for pid in _list_all() if pid != own and _session_of(pid) == own])


def _end(list_left: Callable[[], Sequence[int]]) -> int:
    """Kill until nobody is left: one may have started another between being listed and being killed."""
    found: set[int] = set()
    for _ in until_deadline(_PATIENCE_S, _POLL_S):
        left = list_left()
        if not left:
            break
        found.update(left)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return len(found)


def _list_all() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _carries(pid: int, wanted: bytes) -> bool:
    """Whether the process was started with `wanted` in its environment; a dead one has none any more.

    Nor has one for a moment that is becoming another program, such as what starts HAProxy: it is looked at
    again. Overlooked, it would outlive its instance and hold its ports.
    """
    for _ in range(_LOOKS):
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        if environment or _fields_of(pid) is None:
            return wanted in environment.split(b"\0")
        time.sleep(_LOOK_S)
    return False


def _session_of(pid: int) -> int | None:
    fields = _fields_of(pid)
    return None if fields is None else int(fields[_SESSION])


def _fields_of(pid: int) -> list[str] | None:
    """The fields of proc_pid_stat(5) after the state of a process.

    None for one that has ended, also if nobody has waited for it, and for the kernel's own.
    """
    try:
        state, *fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" or int(fields[_FLAGS]) & _KERNEL else fields
