"""A gateway's client of the owners: follows topics by long polls with cursors."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from broker.owners.protocol import Cursor, Entry, Head

Sink = Callable[[str, Sequence[Entry]], None]
"""Takes the next entries of a topic, in order, without gap or double.

It is called on the event loop and must not block.
"""

HeadSeen = Callable[[str, Head], None]
"""Hears where a topic stands at its owner, on the event loop; must not block."""


class HandOvers(Protocol):
    """Is told when the sink gets entries, so that traced ones can be followed."""

    def handed_over(self, topic: str, entries: Sequence[Entry]) -> AbstractContextManager[None]:
        """The block gives the entries to the sink; they are as they came, with those that name traces."""


class Feed(Protocol):
    """Follows any number of topics at their owners.

    Every entry after the head that `follow` answered reaches the sink exactly once and in order, whatever
    owner dies in between. Liveness and back-pressure come from the polls: there is one in flight an owner.
    """

    async def follow(self, topic: str, cursor: Cursor | None = None) -> Head:
        """Begin to follow `topic` after `cursor`, from its head on without one; idempotent.

        Raises:
            NotFound: no such topic.
            HistoryLost: the owner cannot go on from `cursor`.
            Unavailable: the owner cannot be reached in time.
        """

    async def unfollow(self, topic: str) -> None:
        """Stop following; the sink hears no more of `topic` once this returns."""

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry]:
        """Pushes of `epoch` after `after_seq`, oldest first, at most `limit`.

        Raises:
            HistoryLost: the epoch is gone, or the entries are over the history limit.
        """

    async def ask_heads(self, topics: Collection[str], seen: HeadSeen) -> None:
        """Ask owners where topics that are followed stand, and return soon.

        What `seen` hears holds everything that was acknowledged when this was called. It hears nothing of a
        topic whose owner does not answer, does not know whether it is the owner still, or is not sure what
        the database has.
        """

    def follow_traces(self, hand_overs: HandOvers) -> None:
        """Tell `hand_overs` of what the sink gets; called at most once, before anything is followed."""

    async def close(self) -> None:
        """Leave all owners and end the polls."""
