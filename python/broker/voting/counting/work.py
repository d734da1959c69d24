"""A counter's state in memory (polls and senders), and how a group of batches changes it."""

from collections.abc import Collection
from dataclasses import dataclass

from broker._native import Tally
from broker.domain.idempotency import used_for_another
from broker.errors import Unavailable
from broker.storage.answer_log import KEY_SENDER, PollWrite, SenderWrite
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
    """The newest batch of a sender that is stored."""

    number: int
    outcomes: Outcomes
    used_s: float


class Work:
    """A group's changes: made in the tallies already, not stored yet."""

    def __init__(
        self, tallies: dict[PollShard, ShardTally], senders: dict[str, NewestBatch], sealed: Collection[int]
    ) -> None:
        self._tallies = tallies
        self._sealed = sealed
        self._known = senders
        self.news: dict[PollShard, list[bytes]] = {}
        self.senders: dict[str, tuple[int, Outcomes]] = {}

    def count(self, batch: VoteBatch) -> BatchReply:
        """Apply a batch, unless its sender has sent it before. Raises ValueError for malformed records."""
        known = self._known[batch.sender]
        if batch.number == known.number:
            return known.outcomes
        if batch.has_key and known.number:
            return used_for_another()
        if batch.number < known.number:
            return Unavailable(LATE, retry_after_s=1)  # its sender has long given it up
        if batch.has_key and any(group.poll in self._sealed for group in batch.groups):
            return (SEALED,) * len(batch.groups)  # as a whole, and not for ever: the poll may open again
        outcomes = tuple(self._apply(group) for group in batch.groups)
        self.senders[batch.sender] = batch.number, outcomes
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
        return any(sender.startswith(KEY_SENDER) for sender in self.senders)

    def sender_writes(self) -> list[SenderWrite]:
        """The senders whose batches changed something or may have."""
        return [
            SenderWrite(sender, number, pack_outcomes(outcomes))
            for sender, (number, outcomes) in self.senders.items()
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
