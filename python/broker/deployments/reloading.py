"""What a reload of the settings changes, and the record of it in the data directory.

A reload is the exchange of gateways, replicas, owners and counters that new code comes in by, with the
settings as they are now: a process has one set of settings from its start to its end. What `broker up`
itself, Ray and the ingress have since their start, or all processes must agree on, keeps its value
(`at_start` in `Settings`).

`broker up` answers a signal by the record, a file that it writes and `broker reload` reads: whoever sends a
signal learns nothing from it.
"""

import fcntl
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path

import orjson

from broker.settings import SettingError, Settings, environment_name
from broker.setup_error import SetupError

RECORD = "reload"
"""The name of the record in the data directory."""

_LOOK_S = 0.1


class ReloadState(StrEnum):
    """How far a reload has come."""

    NONE = "none"
    EXCHANGING = "exchanging"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload comes to.

    Attributes:
        settings: that processes are started with from now on.
        applied: variables whose new values are among them.
        waiting: variables whose new values count from the next start on.
    """

    settings: Settings
    applied: tuple[str, ...]
    waiting: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people: no values, which may be secret."""
        told = [f"applied: {', '.join(self.applied)}"] if self.applied else []
        told += [f"{name}: takes effect at the next start of `broker up`" for name in self.waiting]
        return told or ["no setting has changed"]


def keep_from_start(loaded: Settings, present: Settings) -> Settings:
    """`loaded`, with the values of `present` where another one counts from the next start on.

    Some of these were made up at the start, such as the secret of the ingress.
    """
    kept = [entry.name for entry in fields(Settings) if entry.metadata["at_start"]]
    return replace(loaded, **{name: getattr(present, name) for name in kept})


def plan_reload(present: Settings, loaded: Settings) -> Reload:
    """What becomes of `present` settings when these have been `loaded`.

    Raises:
        SettingError: what may change now does not go with what stays until the next start.
    """
    changed = [
        entry for entry in fields(Settings) if getattr(loaded, entry.name) != getattr(present, entry.name)
    ]
    kept = [entry.name for entry in changed if entry.metadata["at_start"]]
    settings = keep_from_start(loaded, present)
    try:
        Settings.load(settings.to_environment())
    except SettingError as error:
        waiting = ", ".join(map(environment_name, kept))
        raise SettingError(f"{error} (with the values until the next start of {waiting})") from error
    applied = tuple(environment_name(entry.name) for entry in changed if entry.name not in kept)
    return Reload(settings, applied, tuple(map(environment_name, kept)))


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
    try:
        with (data_dir / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        raise SetupError(f"no `broker up` runs on {data_dir}: {error.strerror}") from error
    else:
        raise SetupError(f"no `broker up` runs on {data_dir}")
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
    deadline_s = time.monotonic() + wait_s
    told = 0
    while True:
        record = read_record(data_dir)
        if record.number > before.number:
            if record.is_over:
                return replace(record, lines=record.lines[told:])
            for line in record.lines[told:]:
                tell(line)
            told = len(record.lines)
        if time.monotonic() > deadline_s:
            raise SetupError(f"the reload is not over after {wait_s:g} s; it goes on, see the log")
        time.sleep(_LOOK_S)
