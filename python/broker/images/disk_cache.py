"""A cache directory that several processes share and that survives them.

An entry is one file, named by the digest of its key: the format, the lengths of its head and its body, their
checksums, the head in MessagePack, the body. It is written under another name and renamed, so a reader sees a
whole entry or none. It is not synced: after a crash of the machine a file may be cut off or have zeros where
nothing was written yet. The checksums tell that, and what a failing disk has changed: a damaged entry is a
miss, is removed, and is a line of the log. When the directory has grown past its bound it is swept: the least
recently used files go first, by their time of modification, which a use renews at most once in a minute.

The checksum is CRC-32, which takes 6 us for 20 kB and 0.13 ms for 500 kB. A cache whose heads have the
digests of their bodies uses these, so that writing costs nothing. Opening one costs 0.1 ms for 500 kB, unless
this process has written the file or found it to be good, and nobody has changed it since.
"""

import hashlib
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from broker.concurrency.caches import LruCache
from broker.images.body_files import BodyFile, digest_of_parts, write_all

_log = logging.getLogger(__name__)

_START = struct.Struct(">4sIIQI")  # format, checksum of what follows up to the body, and `_SIZES`
_SIZES = struct.Struct(">IQI")  # lengths of head and body, checksum of the body
_FORMAT = b"img3"  # an entry of another format is a miss
_NOTHING = bytes(4)  # in its place, where the system has not written the file before a crash
_BY_HEAD = 0  # instead of a body's checksum
_PART_BYTES = 1 << 18  # read at a time, to be checked
_MAX_GOOD = 10_000  # files known to be good, some 300 bytes each
_MAX_HEAD_BYTES = 1 << 20
_PARTIAL = ".partial"
_ABANDONED_S = 3_600.0  # a partial file of a process that died
_RENEW_S = 60.0
_SWEEP_SHARE = 16  # a sweep comes after so small a part of the bound was written, and frees it

HeadT = TypeVar("HeadT", bound=msgspec.Struct)
BodyT = TypeVar("BodyT")


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
        digest_of: the digest of a body (`digest_of_parts`), of heads that have it.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        kind: type[HeadT],
        digest_of: Callable[[HeadT], str] | None = None,
    ) -> None:
        self._directory = directory
        self._digest_of = digest_of
        self._good: LruCache[Path, tuple[int, int]] = LruCache(_MAX_GOOD)
        self._good_lock = threading.Lock()
        self._max_bytes = max_bytes
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._written_bytes = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, key: str, admit: Callable[[int], None] | None = None) -> tuple[HeadT, bytes] | None:
        """The entry under a key, or None.

        Args:
            admit: called with the size of a body before it is read; raises to refuse it.
        """
        return self._find(key, admit, self._read_body)

    def open(self, key: str, admit: Callable[[int], None] | None = None) -> tuple[HeadT, BodyFile] | None:
        """The entry under a key with its body still on disk, or None.

        Args:
            admit: called with the size of the body; raises to refuse it.
        """
        return self._find(key, admit, self._open_body)

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
            descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
            body = BodyFile(descriptor, offset, sum(map(len, parts)))
            self._note_good(self._path(key), descriptor)
            return body
        return None

    @contextmanager
    def _written(self, key: str, head: HeadT, parts: Sequence[bytes]) -> Iterator[tuple[Path, int]]:
        """The file of an entry, under another name until the end of the block, and where its body begins.

        Raises OSError where it is lost.
        """
        encoded = msgspec.msgpack.encode(head)
        assert len(encoded) <= _MAX_HEAD_BYTES, "heads are made by us"
        body_bytes = sum(map(len, parts))
        sizes = len(encoded), body_bytes, _BY_HEAD if self._digest_of else _crc(parts)
        start = _START.pack(_FORMAT, _crc((_SIZES.pack(*sizes), encoded)), *sizes) + encoded
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
        for file in self._files():
            with suppress(OSError):
                status = file.stat(follow_symlinks=False)
                if not file.name.endswith(_PARTIAL):
                    found.append((status.st_mtime, status.st_size, file.path))
                elif status.st_mtime < now - _ABANDONED_S:
                    Path(file).unlink()
        size_bytes, removed = sum(size for _, size, _ in found), 0
        wanted = self._max_bytes - self._max_bytes // _SWEEP_SHARE
        if size_bytes > self._max_bytes:
            for _, size, path in sorted(found):
                if size_bytes <= wanted:
                    break
                with suppress(OSError):
                    Path(path).unlink()
                    size_bytes -= size
                    removed += 1
        return Swept(len(found) - removed, size_bytes, removed)

    def clear(self) -> int:
        """Remove all entries; returns how many there were."""
        removed = 0
        for file in self._files():
            with suppress(OSError):
                Path(file).unlink()
                removed += 1
        return removed

    def remove_where(self, is_gone: Callable[[HeadT], bool]) -> int:
        """Remove the entries whose heads say so; returns how many. Reads the head of every entry."""
        removed = 0
        for path in map(Path, self._files()):
            if path.suffix == _PARTIAL:
                continue
            with suppress(OSError, _OtherFormat):
                try:
                    with path.open("rb") as file:
                        head = self._read_entry(file).head
                except _Damaged as damage:
                    self._discard(path, damage)
                    continue
                if is_gone(head):
                    path.unlink()
                    removed += 1
        return removed

    def _files(self) -> "Iterator[os.DirEntry[str]]":
        """All files. A sweep looks at thousands, which takes half as long without a `Path` for each."""
        with os.scandir(self._directory) as directories:
            for directory in directories:
                with suppress(OSError), os.scandir(directory) as files:
                    yield from files

    def _find(
        self,
        key: str,
        admit: Callable[[int], None] | None,
        take: "Callable[[Path, BinaryIO, _Entry[HeadT]], BodyT]",
    ) -> tuple[HeadT, BodyT] | None:
        """An entry whose body `take` has found to be good, or None."""
        if not self._max_bytes:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                entry = self._read_entry(file)
                if admit is not None:
                    admit(entry.body_bytes)
                body = take(path, file, entry)
        except (OSError, _OtherFormat):
            return None
        except _Damaged as damage:
            self._discard(path, damage)
            return None
        self._renew(path)
        return entry.head, body

    def _read_entry(self, file: BinaryIO) -> "_Entry[HeadT]":
        """What comes before the body. Raises _Damaged, _OtherFormat."""
        start = file.read(_START.size)
        if start[: len(_FORMAT)] not in (_FORMAT, _NOTHING) and len(start) == _START.size:
            raise _OtherFormat
        try:
            _, head_checksum, head_bytes, body_bytes, checksum = _START.unpack(start)
            offset = _START.size + head_bytes
            if os.fstat(file.fileno()).st_size != offset + body_bytes:
                raise _Damaged("length")
            encoded = file.read(head_bytes)
            if _crc((start[-_SIZES.size :], encoded)) != head_checksum:
                raise _Damaged("head")
            return _Entry(self._decoder.decode(encoded), offset, body_bytes, checksum)
        except struct.error:
            raise _Damaged("length") from None
        except msgspec.MsgspecError:
            raise _OtherFormat from None  # as it was written, by another version

    def _read_body(self, _path: Path, file: BinaryIO, entry: "_Entry[HeadT]") -> bytes:
        # Not by the file object, which would copy what it has read ahead.
        body = os.pread(file.fileno(), entry.body_bytes, entry.offset)
        self._check(entry, (body,))
        return body

    def _open_body(self, path: Path, file: BinaryIO, entry: "_Entry[HeadT]") -> BodyFile:
        body = BodyFile(os.dup(file.fileno()), entry.offset, entry.body_bytes)
        with self._good_lock:
            is_good = self._good.get(path) == _version(file.fileno())
        if not is_good:
            self._check(entry, _read_parts(file.fileno(), entry.offset))
            self._note_good(path, file.fileno())
        return body

    def _note_good(self, path: Path, descriptor: int) -> None:
        version = _version(descriptor)
        with self._good_lock:
            self._good.put(path, version)

    def _check(self, entry: "_Entry[HeadT]", parts: Iterable[bytes]) -> None:
        """Raise _Damaged where a body is not the one that was written."""
        if self._digest_of is None:
            is_same = _crc(parts) == entry.checksum
        else:
            is_same = digest_of_parts(parts) == self._digest_of(entry.head)
        if not is_same:
            raise _Damaged("body")

    def _discard(self, path: Path, damage: "_Damaged") -> None:
        # A whole one may have come in its place meanwhile, which is a miss then, and no harm.
        with suppress(OSError):
            path.unlink()
        _log.warning("image_cache_damaged", extra={"file": str(path), "part": str(damage)})

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._directory / digest[:2] / digest[2:]

    def _renew(self, path: Path) -> None:
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _RENEW_S:
                os.utime(path)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[HeadT]):
    """What comes before a body in its file, and where in the file that begins."""

    head: HeadT
    offset: int
    body_bytes: int
    checksum: int


class _Damaged(Exception):
    """A file is not as it was written; the text says where."""


class _OtherFormat(Exception):
    """A file is of another version of the broker."""


def _version(descriptor: int) -> tuple[int, int]:
    """Whoever changes a file in its place changes its time; a new file has another number (inode)."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_mtime_ns


def _read_parts(descriptor: int, offset: int) -> Iterator[bytes]:
    while part := os.pread(descriptor, _PART_BYTES, offset):
        offset += len(part)
        yield part


def _crc(parts: Iterable[bytes]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _create(path: Path) -> int:
    """A new file that can be written, in a directory that may be missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
