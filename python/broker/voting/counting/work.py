"""A counter's state in memory (polls and doors), and how a group of batches changes it."""

from collections.abc import Collection
from dataclasses import dataclass

from broker._native import Tally
from broker.domain.idempotency import used_for_another
from broker.errors import Unavailable
from broker.storage.answer_log import KEY_DOOR, DoorWrite, PollWrite
from broker.voting.counting.batches import SEALED, BatchReply, Group, Outcomes, VoteBatch, pack_outcomes

LATE = "the votes could not be counted in time; try again"
"""The message for a batch that was not counted, or whose outcome is unknown."""

PollShard = tuple[int, int]
"""A poll's number, and one of its shards."""


@dataclass(slots=True, eq=False)
class ShardTally:
    """A tally, with what is known of its rows."""

    tally: Tally
    newest: int
    loose: int
    used_s: float


@dataclass(slots=True, eq=False)
class NewestBatch:
    """The newest batch of a door that is stored."""

    number: int
    outcomes: Outcomes
    used_s: float


class Work:
    """A group's changes: made in the tallies already, not stored yet."""

    def __init__(
        self, tallies: dict[PollShard, ShardTally], doors: dict[str, NewestBatch], sealed: Collection[int]
    ) -> None:
        self._tallies = tallies
        self._sealed = sealed
        self._known = doors
        self.news: dict[PollShard, list[bytes]] = {}
        self.doors: dict[str, tuple[int, Outcomes]] = {}

    def count(self, batch: VoteBatch) -> BatchReply:
        """Apply a batch, unless its door has sent it before. Raises ValueError for malformed records."""
        known = self._known[batch.door]
        if batch.number == known.number:
            return known.outcomes
        if batch.has_key and known.number:
            return used_for_another()
        if batch.number < known.number:
            return Unavailable(LATE, retry_after_s=1)  # its door has long given it up
        if batch.has_key and any(group.poll in self._sealed for group in batch.groups):
            return (SEALED,) * len(batch.groups)  # as a whole, and not for ever: the poll may open again
        outcomes = tuple(self._apply(group) for group in batch.groups)
        self.doors[batch.door] = batch.number, outcomes
        return outcomes

    def _apply(self, group: Group) -> bytes | None:
        key = group.poll, group.shard
        if group.poll in self._sealed:
            return SEALED
        counted = self._tallies.get(key)
        if counted is None:
            return None
        outcomes, news = counted.tally.apply(group.records, allow_change=group.allow_change)
        if news or any(outcomes):
            self.news.setdefault(key, []).append(news)
        return outcomes

    def writes(self) -> list[PollWrite]:
        """What to store of each tally that changed; call it once."""
        return [self._write(key, b"".join(news)) for key, news in self.news.items()]

    @property
    def has_keys(self) -> bool:
        """Whether there is a batch to remember even if it changed nothing: later it might."""
        return any(door.startswith(KEY_DOOR) for door in self.doors)

    def door_writes(self) -> list[DoorWrite]:
        """The doors whose batches changed something or may have."""
        return [
            DoorWrite(door, number, pack_outcomes(outcomes))
            for door, (number, outcomes) in self.doors.items()
        ]

    def _write(self, key: PollShard, records: bytes) -> PollWrite:
        counted = self._tallies[key]
        if records:
            counted.newest += 1
            counted.loose += 1
        tally = counted.tally
        return PollWrite(
            *key, counted.newest, records, tally.totals(), tally.impressions, tally.visitors, tally.sessions
        )
