"""The processes of one instance: marked when they start, found again by the mark, ended without a rest.

Ray starts processes that start processes, some in sessions of their own, and any of them may be killed
before it has said what it started. What all of them keep is the environment that they were born with. So
the first of them is given a mark there, and whoever carries it belongs to the instance: no process number
is written down, so none can be mistaken for another's.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MARK = "BROKER_INSTANCE"

_PROC = Path("/proc")
_POLL_S = 0.02


def list_marked(mark: str) -> list[int]:
    """The living processes that carry `mark`, this one excepted. Empty where there is no /proc."""
    if not _PROC.is_dir():
        return []
    wanted = f"{MARK}={mark}".encode()
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if pid != os.getpid() and _carries(pid, wanted)]


def end_marked(mark: str, *, patience_s: float) -> list[int]:
    """End every process that carries `mark`: asked first, killed after `patience_s`. Blocks.

    Returns:
        The process numbers that it found.
    """
    found = list_marked(mark)
    if not found:
        return []
    if patience_s > 0:
        _send(found, signal.SIGTERM)
        _await_none(mark, patience_s)
    deadline_s = time.monotonic() + 5
    while (left := list_marked(mark)) and time.monotonic() < deadline_s:
        # Again and again: one may have started another between being listed and being killed.
        _send(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    return found


def _await_none(mark: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while list_marked(mark) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _carries(pid: int, wanted: bytes) -> bool:
    """Whether the process was started with `wanted` in its environment; a dead one has none any more."""
    try:
        return wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
