"""Mutual exclusion per key, over all processes of a node.

A key has one of a fixed number of files, which is locked as a whole (flock(2)). Two keys may share one, which
costs time and is never wrong; who holds one must not ask for another of the same directory. A process that
dies gives up its locks. Where the disk is full or broken nobody waits for anybody.
"""

import asyncio
import fcntl
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_LOCKS = 1_024
_LOOK_S = 0.02  # between looks at a lock that another process holds


class KeyLocks:
    """Locks in a directory that the processes share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock. Safe to cancel while it waits."""
        descriptor = self._open(key)
        try:
            while descriptor is not None and not _try_lock(descriptor):  # noqa: ASYNC110  # a file
                await asyncio.sleep(_LOOK_S)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, key: str) -> int | None:
        path = self._directory / str(zlib.crc32(key.encode()) % _LOCKS)
        with suppress(OSError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
