"""The format of a backup: what `broker backup` writes and `broker restore` reads.

A gzip stream of:

1. a line of JSON, the header: `format`, `version` of this format, `schema` (number of the newest
   migration), `product`, `created` and `accounts`;
2. for each account and table a section: a line of JSON with `account`, `table` and `columns`, then blocks
   (the length in bytes in decimal, a line feed, that many bytes of PostgreSQL's text format of COPY) and a
   block of length 0, then a line of JSON with the number of `rows`;
3. a line of JSON, the end: `sections`, and `sha256` of everything before this line.

A file that ends early, or of which a byte was changed, is refused with `BackupError`. The digest is no
signature: who can write a file can also write its digest. So whatever a file declares, and however much it
unpacks to, reading takes some megabytes of memory: lines have a bound, and blocks are read in pieces.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

FORMAT = "broker backup"
VERSION = 1
_LEVEL = 3  # JSON becomes hardly smaller above it, and takes twice the time
_LINE_BYTES = 1 << 20
_LENGTH_DIGITS = 20  # of a block; `int` refuses very long ones in words of its own
_BLOCK_BYTES = 64 << 20  # no block that we write comes near it
_PIECE_BYTES = 1 << 20  # of a block, in memory at a time


class BackupError(ValueError):
    """A file is no backup, not a whole one, or not one that this version reads; its text names the file."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """What a backup is of. `created` is a time in RFC 3339, by the clock of the database."""

    schema: int
    product: str
    created: str
    accounts: list[str]


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one account in one table."""

    account: str
    table: str
    columns: list[str]


class BackupWriter:
    """Writes a backup to an open file, which stays the caller's; it is whole after `close`."""

    def __init__(self, raw: BinaryIO) -> None:
        """Nothing is written yet."""
        self._raw = _Counted(raw)
        self._gzip = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=_LEVEL, filename="", mtime=0)
        self._digest = hashlib.sha256()
        self._sections = 0
        self.written_bytes = 0
        """Before compression."""

    def begin(self, header: BackupHeader) -> None:
        """Write the header."""
        self._line({"format": FORMAT, "version": VERSION, **asdict(header)})

    def open_section(self, section: Section) -> None:
        """Begin a section; `write` its rows, then `close_section`."""
        self._sections += 1
        self._line(asdict(section))

    async def write(self, data: bytes) -> None:
        """Add rows. A coroutine because the driver wants one."""
        if data:
            self._add(b"%d\n" % len(data))
            self._add(data)

    def close_section(self, rows: int) -> None:
        """End the section."""
        self._add(b"0\n")
        self._line({"rows": rows})

    def close(self) -> int:
        """Write the end. Returns the size of the backup in bytes. Raises OSError."""
        self._line({"sections": self._sections, "sha256": self._digest.hexdigest()})
        self._gzip.close()
        return self._raw.written_bytes

    def abandon(self) -> None:
        """Write nothing more; the compression would, when it is collected. Without effect after `close`."""
        self._raw.is_abandoned = True

    def _line(self, fields: dict[str, Any]) -> None:
        self._add(orjson.dumps(fields) + b"\n")

    def _add(self, data: bytes) -> None:
        self._gzip.write(data)
        self._digest.update(data)
        self.written_bytes += len(data)


class _Counted(io.RawIOBase):
    """Counts what is written; a pipe cannot say where it is."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.written_bytes = 0
        self.is_abandoned = False

    def write(self, data: Any) -> int:
        if self.is_abandoned:
            return len(data)
        size = self._raw.write(data)
        self.written_bytes += size
        return size


class BackupReader:
    """Reads a backup from its beginning to its end. Every method raises BackupError."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        """Args: raw: the open file, from which it reads on."""
        self._path = path
        self._gzip = gzip.GzipFile(fileobj=raw, mode="rb")
        self._digest = hashlib.sha256()
        header = self._fields()
        if header.get("format") != FORMAT:
            raise self._error("is no backup of the broker")
        if header.get("version") != VERSION:
            raise self._error(f"has version {header.get('version')} of the format; this is {VERSION}")
        self.header = BackupHeader(
            self._get(header, "schema", int),
            self._get(header, "product", str),
            self._get(header, "created", str),
            self._get(header, "accounts", list),
        )

    def sections(self) -> Iterator[Section]:
        """The sections in their order; each is read by `blocks` and `rows` before the next."""
        number = 0
        while True:
            digest = self._digest.hexdigest()
            fields = self._fields()
            if "sha256" in fields:
                if fields["sha256"] != digest or fields.get("sections") != number:
                    raise self._error("was changed: its digest is another")
                if self._read(1):
                    raise self._error("was changed: it goes on after its end")
                return
            number += 1
            columns = self._get(fields, "columns", list)
            yield Section(self._get(fields, "account", str), self._get(fields, "table", str), columns)

    def blocks(self) -> Iterator[bytes]:
        """The rows of the section, in pieces."""
        while True:
            left = self._length()
            if left == 0:
                return
            while left:
                data = self._read(min(left, _PIECE_BYTES))
                if not data:
                    raise self._truncated()
                self._digest.update(data)
                left -= len(data)
                yield data

    def rows(self) -> int:
        """How many rows the section had."""
        return int(self._get(self._fields(), "rows", int))

    def _length(self) -> int:
        """The length that the next block declares."""
        digits = self._read_line().rstrip(b"\n")
        if not digits.isdigit() or len(digits) > _LENGTH_DIGITS:
            raise self._error("was changed: a block has no length")
        if int(digits) > _BLOCK_BYTES:
            raise self._error(f"was changed: a block is longer than {_BLOCK_BYTES} bytes")
        return int(digits)

    def _fields(self) -> dict[str, Any]:
        text = self._read_line()
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            raise self._error("is no backup of the broker, or was changed")
        return fields

    def _get(self, fields: dict[str, Any], name: str, kind: type) -> Any:
        value: Any = fields.get(name)
        is_good = isinstance(value, kind) and not isinstance(value, bool)
        if not is_good or (kind is list and not all(isinstance(item, str) for item in value)):
            raise self._error(f"was changed: {name} is missing or wrong")
        return value

    def _read_line(self) -> bytes:
        try:
            line = self._gzip.readline(_LINE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from error
        if not line.endswith(b"\n"):
            raise self._truncated()
        self._digest.update(line)
        return line

    def _read(self, size: int) -> bytes:
        try:
            return self._gzip.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> BackupError:
        if isinstance(error, EOFError):
            return self._truncated()
        return self._error("is no backup of the broker, or was changed")

    def _truncated(self) -> BackupError:
        return self._error("is not complete: it ends early")

    def _error(self, text: str) -> BackupError:
        return BackupError(f"{self._path} {text}")


def verify(path: Path, raw: BinaryIO) -> BackupHeader:
    """Read the whole file once. Returns its header. Raises BackupError."""
    reader = BackupReader(path, raw)
    for _ in reader.sections():
        for _ in reader.blocks():
            pass
        reader.rows()
    return reader.header
