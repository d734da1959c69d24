"""Ports that processes of one user have been given, so that two that start at once are not given the same."""

import fcntl
import os
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

_HELD = 64


class PortLocks:
    """The ports that this process has been given lately.

    Somebody listens on a port many seconds after it was chosen. Until then a record lock (fcntl(2)) of one
    byte of a file says that it is taken; the system removes it when the process ends, however it ends. A
    process holds the last 64 that it took: it listens on older ones by now, or has no use for them any more.
    """

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._file: int | None = None

    def take(self, port: int) -> bool:
        """Whether no other process of this user holds `port`; this one does from now on."""
        try:
            if self._file is None:
                self._file = _open()
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (BlockingIOError, PermissionError):  # as fcntl(2) has it: either error says that it is locked
            return False
        except OSError:
            return True  # without the file, two that start at once may meet, and the later one says so
        with suppress(ValueError):
            self._held.remove(port)
        self._held.append(port)
        if len(self._held) > _HELD:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._held.popleft())
        return True


def _open() -> int:
    """The file of locks of this user. It is never closed: that would end all its locks."""
    path = Path(tempfile.gettempdir()) / f"broker-ports-{os.geteuid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.fstat(file).st_uid != os.geteuid():
        os.close(file)
        raise OSError(f"{path} is another user's")
    return file
