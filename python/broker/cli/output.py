"""The output of commands: JSON for scripts, lines for people, progress on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def to_wire(value: Any) -> Any:
    """A value of the SDK as the broker's JSON would have it: camelCase names, times in UTC with `Z`."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, msgspec.Struct):
        return {
            entry.encode_name: to_wire(getattr(value, entry.name)) for entry in msgspec.structs.fields(value)
        }
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    return value


def write_json(value: Any) -> None:
    """One line of JSON on standard output, at once, so that a pipe's reader has it."""
    write_line(json_line(value))


def json_line(value: Any) -> str:
    """A value as one line of JSON."""
    return orjson.dumps(to_wire(value)).decode()


def write_line(text: str) -> None:
    """One line on standard output, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_notice(text: str) -> None:
    """One line for people on standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class ByteMeter:
    """Shows how many bytes have gone."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress = progress
        self._task = task

    def update(self, done_bytes: int) -> None:
        """Show that `done_bytes` of the whole have gone."""
        self._progress.update(self._task, completed=done_bytes)


@contextmanager
def transfer_bar(text: str, total_bytes: int | None) -> Iterator[ByteMeter]:
    """A progress bar on standard error; shows nothing where that is no terminal."""
    # Not above: `broker up` would hold it for as long as it runs.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield ByteMeter(progress, progress.add_task(text, total=total_bytes))
