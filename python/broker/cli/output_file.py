"""Where a command writes a file: the whole of it or nothing, or to standard output, a FIFO or a device."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

STANDARD_OUTPUT = Path("-")
_BUFFER_BYTES = 1 << 20
_STDOUT = 1


@contextmanager
def open_output(path: Path, *, mode: int = 0o666, is_text: bool = False) -> Iterator[BinaryIO]:
    """What a command writes to `path`.

    A regular file has its content once the block has ended without an error, and keeps what it had otherwise:
    it is written beside its place and renamed. Symbolic links are followed. What cannot be replaced by a file
    is written to as it is: `-`, which is standard output, FIFOs and devices.

    Args:
        mode: of a file, less the umask.
        is_text: whether a terminal may show it.

    Raises:
        ValueError: a terminal would get what is no text.
        OSError: it cannot be written.
    """
    if is_standard_output(path):
        _refuse_terminal(sys.stdout.isatty(), is_text)
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_special(path):
        with _open_special(path) as special:
            _refuse_terminal(special.isatty(), is_text)
            yield special
    else:
        with _open_part(path.resolve(), mode) as part:
            yield part


def is_standard_output(path: Path) -> bool:
    """Whether it is `-`, or a name of what standard output is, such as `/dev/stdout`."""
    if path == STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(path.stat(), os.fstat(_STDOUT))
    except OSError:
        return False


def _is_special(path: Path) -> bool:
    """Whether there is something, after symbolic links, that is no regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _refuse_terminal(is_terminal: bool, is_text: bool) -> None:
    if is_terminal and not is_text:
        raise ValueError("this is no text for a terminal; give a file, or send standard output to one")


def _open_special(path: Path) -> BinaryIO:
    """Open it for writing as it is; that of a FIFO waits until somebody reads."""
    # Without O_CREAT, which the system refuses for FIFOs of others in directories that all may write to.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    return io.BufferedWriter(_NamedFile(descriptor, path), _BUFFER_BYTES)


class _NamedFile(io.FileIO):
    """A file whose errors say its name."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


@contextmanager
def _open_part(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A new file beside `path`, renamed to it after the block, or removed if that fails."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # its mode could be another
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        # What is left in the buffer is written by `close`, which closes the file also when that fails.
        with io.BufferedWriter(_NamedFile(descriptor, path), _BUFFER_BYTES) as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
