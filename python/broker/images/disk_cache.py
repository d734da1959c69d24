"""A cache directory that several processes share and that survives them.

An entry is one file, named by the digest of its key: the lengths of its head and its body, the head in
MessagePack, the body. It is written under another name and renamed, so a reader sees a whole entry or none.
It is not synced: after a crash of the machine a file may be cut off, which its lengths tell. What cannot be
read is a miss. When the directory has grown past its bound it is swept: the least recently used
files go first, by their time of modification, which a use renews at most once in a minute.
"""

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from broker.images.body_files import BodyFile, write_all

_LENGTHS = struct.Struct(">IQ")
_MAX_HEAD_BYTES = 1 << 20
_PARTIAL = ".partial"
_ABANDONED_S = 3_600.0  # a partial file of a process that died
_RENEW_S = 60.0
_SWEEP_SHARE = 16  # a sweep comes after so small a part of the bound was written, and frees it

HeadT = TypeVar("HeadT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found and left."""

    entries: int
    size_bytes: int
    removed: int


class DiskCache(Generic[HeadT]):
    """A bounded directory of entries. Its functions block; any number of threads and processes may call them.

    Args:
        directory: made where it is missing, for its owner alone.
        max_bytes: of all entries together; exceeded by a sixteenth at most in each process. With 0 nothing is
            kept, and nothing that was kept is found.
        kind: what heads are; a file that holds another one is a miss.
    """

    def __init__(self, directory: Path, max_bytes: int, kind: type[HeadT]) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._written_bytes = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, key: str, admit: Callable[[int], None] | None = None) -> tuple[HeadT, bytes] | None:
        """The entry under a key, or None.

        Args:
            admit: called with the size of a body before it is read; raises to refuse it.
        """
        found = self.open(key, admit)
        if found is None:
            return None
        try:
            return found[0], found[1].read()
        except OSError:
            return None

    def open(self, key: str, admit: Callable[[int], None] | None = None) -> tuple[HeadT, BodyFile] | None:
        """The entry under a key with its body still on disk, or None.

        Args:
            admit: called with the size of the body; raises to refuse it.
        """
        if not self._max_bytes:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                head_bytes, body_bytes = _LENGTHS.unpack(file.read(_LENGTHS.size))
                offset = _LENGTHS.size + head_bytes
                if os.fstat(file.fileno()).st_size != offset + body_bytes:
                    return None
                kept = self._decoder.decode(file.read(head_bytes))
                if admit is not None:
                    admit(body_bytes)
                body = BodyFile(os.dup(file.fileno()), offset, body_bytes)
        except (OSError, struct.error, msgspec.MsgspecError):
            return None
        self._renew(path)
        return kept, body

    def has(self, key: str) -> bool:
        """Whether there is an entry under a key, whatever it holds.

        A look-up in a directory, 2 us where the system has that in memory. So an event loop may ask it
        before a thread, which costs 50.
        """
        try:
            return self._max_bytes > 0 and self._path(key).exists()
        except OSError:
            return False

    def write(self, key: str, head: HeadT, body: bytes) -> None:
        """Put an entry in the place of the one before. On a full or broken disk it is lost."""
        if self._max_bytes:
            with suppress(OSError), self._written(key, head, (body,)):
                pass

    def write_and_open(self, key: str, head: HeadT, parts: Sequence[bytes]) -> BodyFile | None:
        """The same with a body in parts, and how it is on disk; None where the entry is lost."""
        if not self._max_bytes:
            return None
        with suppress(OSError), self._written(key, head, parts) as (partial, offset):
            # By itself, since who writes could change what it has written.
            return BodyFile(os.open(partial, os.O_RDONLY | os.O_CLOEXEC), offset, sum(map(len, parts)))
        return None

    @contextmanager
    def _written(self, key: str, head: HeadT, parts: Sequence[bytes]) -> Iterator[tuple[Path, int]]:
        """The file of an entry, under another name until the end of the block, and where its body begins.

        Raises OSError where it is lost.
        """
        encoded = msgspec.msgpack.encode(head)
        assert len(encoded) <= _MAX_HEAD_BYTES, "heads are made by us"
        body_bytes = sum(map(len, parts))
        start = _LENGTHS.pack(len(encoded), body_bytes) + encoded
        path = self._path(key)
        partial = path.with_name(f"{os.urandom(8).hex()}{_PARTIAL}")
        try:
            descriptor = _create(partial)
            try:
                write_all(descriptor, (start, *parts))
            finally:
                os.close(descriptor)
            yield partial, len(start)
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        finally:
            self._written_bytes += len(start) + body_bytes
            if self._written_bytes > self._max_bytes // _SWEEP_SHARE:
                self.sweep()

    def remove(self, key: str) -> bool:
        """Forget an entry; whether there was one."""
        try:
            self._path(key).unlink()
        except OSError:
            return False
        return True

    def sweep(self) -> Swept:
        """Remove what was not used for longest until the bound is kept, and what dead processes left."""
        self._written_bytes = 0
        now, found = time.time(), []  # files have the wall clock's time, and only their order matters
        for path in self._directory.glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                if path.suffix != _PARTIAL:
                    found.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < now - _ABANDONED_S:
                    path.unlink()
        size_bytes, removed = sum(size for _, size, _ in found), 0
        wanted = self._max_bytes - self._max_bytes // _SWEEP_SHARE
        if size_bytes > self._max_bytes:
            for _, size, path in sorted(found):
                if size_bytes <= wanted:
                    break
                with suppress(OSError):
                    path.unlink()
                    size_bytes -= size
                    removed += 1
        return Swept(len(found) - removed, size_bytes, removed)

    def clear(self) -> int:
        """Remove all entries; returns how many there were."""
        removed = 0
        for path in self._directory.glob("*/*"):
            with suppress(OSError):
                path.unlink()
                removed += 1
        return removed

    def remove_where(self, is_gone: Callable[[HeadT], bool]) -> int:
        """Remove the entries whose heads say so; returns how many. Reads the head of every entry."""
        removed = 0
        for path in self._directory.glob("*/*"):
            if path.suffix == _PARTIAL:
                continue
            with suppress(OSError, struct.error, msgspec.MsgspecError):
                with path.open("rb") as file:
                    head_bytes, _ = _LENGTHS.unpack(file.read(_LENGTHS.size))
                    head = self._decoder.decode(file.read(head_bytes))
                if is_gone(head):
                    path.unlink()
                    removed += 1
        return removed

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._directory / digest[:2] / digest[2:]

    def _renew(self, path: Path) -> None:
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _RENEW_S:
                os.utime(path)


def _create(path: Path) -> int:
    """A new file that can be written, in a directory that may be missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
