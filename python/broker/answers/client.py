"""What doors hand answers to: the caller's side of the counters."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """One record for one shard of a poll.

    `record` is of `broker._native.pack_answer`, `pack_impression` or `pack_session`, and names no visitor;
    `shard` is what its hash leads to. With `allow_change` a later answer takes the place of an earlier one.
    """

    poll: int
    shard: int
    allow_change: bool
    record: bytes


class Counters(Protocol):
    """The port to the counters. Any number of calls may be under way on one event loop."""

    async def submit(self, entries: Sequence[Entry]) -> list[bool]:
        """Count entries; durable when it returns.

        Entries of one call that are for one shard are counted in their order. A call that failed may be made
        again: what it had counted counts once.

        Returns:
            Whether each entry changed a count, in order.

        Raises:
            Unavailable: a counter or the database cannot be reached in time.
            NotFound: a poll is gone.
        """
