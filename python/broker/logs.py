"""Logs as lines of JSON: one event each, with its fields; the same for every process.

On a Ray of our own all processes append to one file, `log/broker.log` of the data directory, so a request id
is looked for in one place. A line is written by one call with O_APPEND, so lines of several processes never
mix. Who finds the file too large puts it aside for all; the others notice by its number (inode) before they
write next. On a joined cluster lines go to standard error, which Ray keeps on each node.
"""

import datetime
import fcntl
import json
import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import orjson

from broker.settings import Settings

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

FILES = 8
"""How many files the log has: the one that is written and those put aside, `broker.log.1` the newest."""
RAY_SHARE = 4
"""The part of `log_limit_bytes`, one of so many, that is for what Ray itself writes."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_REQUESTS = "broker.access"
_OURS = "broker"
_LIBRARY = "library_log"
_process: dict[str, object] = {}


def process_fields() -> dict[str, object]:
    """What says in each line which process wrote it; empty before `configure_logs`."""
    return _process


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, event, process, and the fields given as `extra`.

    Other libraries log sentences, which are the field `text` of one event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": _format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_process,
        }
        if record.name.partition(".")[0] != _OURS:
            line["event"], line["text"] = _LIBRARY, record.getMessage()
        # Ray puts a number of its own into every record, with a name that begins like this.
        line |= {
            name: value
            for name, value in record.__dict__.items()
            if name not in _STANDARD and not name.startswith("_")
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # text that is no Unicode, a whole number over 64 bits
            return json.dumps(line, default=str)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - the name of `logging`
        """The trace. That of `logging` uses `print`, which Ray Serve replaces by one that writes tuples."""
        return "".join(traceback.format_exception(*ei)).removesuffix("\n")


class SharedFile(logging.Handler):
    """Appends to a file that other processes append to as well.

    A line that cannot be written, as on a full disk, is left out.

    Args:
        limit_bytes: of one file; one that is larger is put aside before the next line.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._limit_bytes = limit_bytes
        self._descriptor = -1
        with suppress(OSError):
            self._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; `logging` lets one thread in at a time."""
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        with suppress(OSError):
            self._find()
            written = os.write(self._descriptor, line)
            if written < len(line):
                self._take_back(line[:written])

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

    def _find(self) -> None:
        """Have the file open that lies at the path; put one aside that is too large."""
        if self._descriptor < 0 or not self._is_current():
            self._open()
        if os.fstat(self._descriptor).st_size > self._limit_bytes:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process is at it; this line still goes into the old file
            if self._is_current():
                self._put_aside()
            self._open()

    def _take_back(self, cut: bytes) -> None:
        """Remove the beginning of a line that the disk had no room for: any process may write the next."""
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if os.fstat(self._descriptor).st_size == end:  # still the last; on a full disk it is
            os.ftruncate(self._descriptor, end - (len(cut) - 1 - cut.rfind(b"\n")))

    def _is_current(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._descriptor)
        return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)

    def _put_aside(self) -> None:
        for number in reversed(range(FILES - 1)):
            older = self._path.with_name(f"{self._path.name}.{number + 1}")
            newer = self._path.with_name(f"{self._path.name}.{number}") if number else self._path
            with suppress(FileNotFoundError):
                newer.replace(older)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor


def configure_logs(settings: Settings, part: str) -> None:
    """Send the log of this process where it belongs, everything from `broker` and warnings of libraries.

    Args:
        part: what the process is: `up`, `conductor`, `api`, `images`, `faces`, `gateway`, or the name of a
            slot.
    """
    _process.update(part=part, pid=os.getpid())
    own, lines = _open_handler(settings), _open_handler(settings)
    own.setFormatter(JsonFormatter())
    level = settings.log_level.upper()
    # Requests come as finished lines, many at a time.
    for name, handler, least in (("broker", own, level), (_REQUESTS, lines, level), ("", own, "WARNING")):
        logger = logging.getLogger(name)
        for former in logger.handlers:
            if isinstance(former, SharedFile):
                former.close()
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False


def _open_handler(settings: Settings) -> logging.Handler:
    directory = settings.data_dir / "log"
    # `broker up` makes the path absolute. On a cluster the nodes need not have the directory.
    if settings.ray_address or not directory.is_absolute() or not directory.is_dir():
        # Ray Serve puts a stream of its own in place of `sys.stderr`, which takes 100 µs for each line.
        return logging.StreamHandler(sys.__stderr__ or sys.stderr)
    size = settings.log_limit_bytes * (RAY_SHARE - 1) // RAY_SHARE // FILES
    return SharedFile(directory / "broker.log", size)


def _format_time(time_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
