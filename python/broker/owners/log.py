"""The recent entries of a topic in memory. No I/O.

Every entry has an offset that counts from 0 over the life of the log; a follower is an offset. The log keeps
the newest entries, bounded by number, bytes and age; who stands before its first one reads the database
instead, so forgetting is always safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.owners.protocol import Entry, EntryKind

ENTRY_OVERHEAD_BYTES = 200  # of an entry besides its JSON, about


class Step(NamedTuple):
    """An entry, the cursor of who has taken it, and when it was added (monotonic seconds)."""

    entry: Entry
    epoch: str
    seq: int
    added_s: float


@dataclass(frozen=True, slots=True)
class LogLimits:
    """What a log keeps at most; the newest entry is always kept."""

    entries: int = 1_000
    bytes: int = 256 * 1024
    age_s: float = 60.0


class Log:
    """Entries `first` to `end` (exclusive) of a topic."""

    __slots__ = ("_limits", "_steps", "bytes", "first")

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        self._steps: list[Step] = []
        self.first = 0
        self.bytes = 0

    @property
    def end(self) -> int:
        """The offset of the next entry."""
        return self.first + len(self._steps)

    def append(self, step: Step) -> None:
        """Add an entry; the oldest go when there are twice too many, so that it costs little on average."""
        self._steps.append(step)
        self.bytes += _size(step)
        if len(self._steps) > 2 * self._limits.entries or self.bytes > 2 * self._limits.bytes:
            self.trim(step.added_s)

    def since(self, offset: int, limit: int) -> Sequence[Step]:
        """At most `limit` entries from `offset` on, which must not lie before `first`."""
        assert offset >= self.first  # the caller reads the database instead
        start = offset - self.first
        return self._steps[start : start + limit]

    def find_push(self, epoch: str, seq: int) -> Entry | None:
        """The push with this seq; None when it is not here."""
        for step in reversed(self._steps):
            entry = step.entry
            if entry.kind == EntryKind.PUSH and (entry.epoch, entry.seq) == (epoch, seq):
                return entry
        return None

    def kept(self) -> Sequence[Step]:
        """All entries that are kept, oldest first."""
        return self._steps

    def trim(self, now_s: float) -> None:
        """Forget what is over the limits."""
        limits = self._limits
        drop, left, held = 0, len(self._steps), self.bytes
        for step in self._steps[:-1]:
            if left <= limits.entries and held <= limits.bytes and now_s - step.added_s <= limits.age_s:
                break
            drop, left, held = drop + 1, left - 1, held - _size(step)
        del self._steps[:drop]
        self.first += drop
        self.bytes = held


def _size(step: Step) -> int:
    return len(step.entry.params) + ENTRY_OVERHEAD_BYTES
