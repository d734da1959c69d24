"""The interface through which operations count votes: the client of the counters."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from broker.voting.counting.batches import CountKey, Group


class PackedEntry(NamedTuple):
    """One vote, impression or session of one visitor, as the native packers make it.

    Attributes:
        poll: number of the poll, as `broker.storage.polls` gives it.
        shard: of the record's visitor, below the poll's number of shards.
        allow_change: whether a visitor's later answer takes the place of the first.
        record: what is counted; it holds a keyed hash of the visitor and nothing else of him.
    """

    poll: int
    shard: int
    allow_change: bool
    record: bytes


class Counters(Protocol):
    """The port to the counters. It has one implementation; it is there to keep Ray out of the operations."""

    async def submit(self, entries: Sequence[PackedEntry], key: CountKey | None = None) -> list[bool]:
        """Count entries; what it returns is durable: whether each changed a count, in order.

        All entries of one poll's shard are counted together or not at all. Safe to repeat: a vote counts
        once a visitor, and under a key everything does. Cancelling takes nothing back.

        Raises:
            Conflict: the key was used for other entries; nothing was counted.
            VotingClosed: a poll has closed, and its result is final; nothing of its entries was counted.
            NotFound: a poll has been deleted with its program.
            Unavailable: a counter or the database cannot be reached in time; nothing was counted.
            OutcomeUnknown: the same, and each shard's entries may have been counted.
        """

    async def count(self, counter: int, take: Callable[[], Sequence[Group]]) -> list[bytes | None]:
        """Count groups of records that are packed already, all for shards of one counter.

        They are counted in order, together or not at all, and after what this client was given before.

        Args:
            counter: which of the counters.
            take: gives the groups, at the latest moment: when the batch that they go with is made. It is not
                called while more waits before them than goes into one batch, which counts nothing.

        Returns:
            For each group a byte a record, 1 if it changed a count; None when the poll is gone, `SEALED` when
            it has closed and its result is final.

        Raises:
            Unavailable, OutcomeUnknown: as above.
        """
