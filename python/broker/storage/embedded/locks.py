"""File locks that end with their holder, even after `kill -9`."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.concurrency.deadline import until_deadline
from broker.setup_error import SetupError

_POLL_S = 0.02


@contextmanager
def exclusive(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold `path` alone for the block. Blocks the thread.

    Raises:
        SetupError: another process held it for longer than `timeout_s`.
    """
    handle = _open(path)
    try:
        if not any(_try(handle, fcntl.LOCK_EX) for _ in until_deadline(timeout_s, _POLL_S)):
            raise SetupError(f"{path}: another process has held this lock for over {timeout_s:g} s")
        yield
    finally:
        os.close(handle)


class SharedLock:
    """A lock that any number of users hold together; tells the last one that it is the last."""

    def __init__(self, path: Path) -> None:
        self._handle: int | None = _open(path)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def release(self) -> bool:
        """Let go; true when nobody else held it. Idempotent: false the second time.

        Taking it again must be ordered by another lock, or two users may both be the last.
        """
        if self._handle is None:
            return False
        handle, self._handle = self._handle, None
        try:
            return _try(handle, fcntl.LOCK_EX)
        finally:
            os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
