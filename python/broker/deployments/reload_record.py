"""How `broker reload` asks a running `broker up`, and hears what has become of it.

`broker up` answers a signal by the record, a file that it writes and `broker reload` reads: whoever sends a
signal learns nothing from it.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import orjson

from broker.concurrency.deadline import until_deadline
from broker.deployments.data_dir import RECORD, require_claimed
from broker.setup_error import SetupError

_LOOK_S = 0.1


class ReloadState(StrEnum):
    """How far a reload has come."""

    NONE = "none"
    EXCHANGING = "exchanging"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReloadRecord:
    """What `broker up` says of its last reload.

    Attributes:
        pid: of `broker up`.
        number: of the reload, 0 before the first.
        lines: for people.
    """

    pid: int
    number: int
    state: ReloadState
    lines: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the reload has ended, in whichever way."""
        return self.state is not ReloadState.EXCHANGING

    def write(self, data_dir: Path) -> None:
        """Put it into the data directory, whole or not at all. Raises OSError."""
        temporary = data_dir / f"{RECORD}.new"
        temporary.write_bytes(orjson.dumps(asdict(self)))
        temporary.replace(data_dir / RECORD)


def read_record(data_dir: Path) -> ReloadRecord:
    """The record of the `broker up` that runs on a data directory.

    Raises:
        SetupError: none does, or it is not ready yet.
    """
    require_claimed(data_dir)
    try:
        told = orjson.loads((data_dir / RECORD).read_bytes())
    except OSError as error:
        raise SetupError(f"the `broker up` on {data_dir} is not ready: {error.strerror}") from error
    return ReloadRecord(told["pid"], told["number"], ReloadState(told["state"]), tuple(told["lines"]))


def request_reload(data_dir: Path, wait_s: float, tell: Callable[[str], None]) -> ReloadRecord:
    """Have the `broker up` on a data directory reload, and wait until it has. Blocks.

    Args:
        tell: is told the lines that come before the reload is over.

    Returns:
        The record of it, with the lines that were not told.

    Raises:
        SetupError: no `broker up` runs, it belongs to somebody else, or is not over in time.
    """
    before = read_record(data_dir)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except OSError as error:
        raise SetupError(f"the `broker up` on {data_dir} cannot be asked: {error.strerror}") from error
    told = 0
    for _ in until_deadline(wait_s, _LOOK_S):
        record = read_record(data_dir)
        if record.number > before.number:
            if record.is_over:
                return replace(record, lines=record.lines[told:])
            for line in record.lines[told:]:
                tell(line)
            told = len(record.lines)
    raise SetupError(f"the reload is not over after {wait_s:g} s; it goes on, see the log")
