"""Mutual exclusion per key, over all processes of a node.

A key is one byte of an empty file, locked by itself with an open file description lock (fcntl(2)). Its place
is 62 bits of a hash, so two keys do not meet: somebody who waits for places while holding a lock would hold
up whoever asks for another key. Who holds one must not ask for another of the same directory. A process that
dies gives up its locks. Where the disk is full or broken nobody waits for anybody.
"""

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_LOOK_S = 0.02  # between looks at a lock that another process holds


class KeyLocks:
    """Locks in a directory that the processes share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock. Safe to cancel while it waits."""
        descriptor = self._open()
        try:
            while descriptor is not None and not _try_lock(descriptor, key):  # noqa: ASYNC110  # a file
                await asyncio.sleep(_LOOK_S)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self) -> int | None:
        with suppress(OSError):
            return os.open(self._directory / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return None


def _try_lock(descriptor: int, key: str) -> bool:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") >> 2
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    return True
