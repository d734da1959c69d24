"""An owner as a Ray actor. Thin: `broker.owners.owner` does the work."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from broker.actors.actor import SlotActor
from broker.errors import BrokerError
from broker.owners.placement import OWNER
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.owners.commands import CarriedCommand, CommandReply
    from broker.owners.owner import Owner
    from broker.owners.protocol import Entry, Head
    from broker.owners.sessions import Follow, PollReply


class OwnerActor(SlotActor["Owner"]):
    """The class that a pool makes the owners' actors of. See `Owner` for each method."""

    kind: ClassVar[str] = OWNER

    def __init__(self, settings: Settings, dsn: str, index: int, term: int | None = None) -> None:
        # Not above: the conductor, which names this class and no more, would hold it all.
        from broker.owners.calls import OWNER_CALLS
        from broker.owners.owner import Owner

        super().__init__(settings, dsn, index, term, OWNER_CALLS)
        self._open = Owner.start

    async def submit(
        self, commands: "Sequence[CarriedCommand]", wait_s: float
    ) -> "list[CommandReply] | BrokerError":
        """Apply commands in order; each has its own reply."""
        owner = await self._get()
        return owner if isinstance(owner, BrokerError) else await owner.submit(commands, wait_s)

    async def nudge(self, account: str, channel: str) -> None:
        """Have a channel look for news in the database."""
        if self._part is not None:
            self._part.nudge(account, channel)

    async def open(self, name: str, follows: "Sequence[Follow]") -> "list[Head | BrokerError] | BrokerError":
        """Open a session of a gateway with the topics that it follows."""
        owner = await self._get()
        return owner if isinstance(owner, BrokerError) else await owner.open(name, follows)

    async def follow(self, name: str, follows: "Sequence[Follow]") -> "list[Head | BrokerError] | None":
        """Follow topics in a session; returns the head of each."""
        return None if self._part is None else await self._part.follow(name, follows)

    async def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """Stop following topics."""
        if self._part is not None:
            self._part.unfollow(name, numbers)

    async def poll(self, name: str, ack: int) -> "PollReply | BrokerError | None":
        """Wait for pushes after the cursors of a session."""
        return None if self._part is None else await self._part.poll(name, ack)

    async def leave(self, name: str) -> None:
        """End a session."""
        if self._part is not None:
            self._part.leave(name)

    async def history(
        self, topic: str, epoch: str, after_seq: int, limit: int
    ) -> "list[Entry] | BrokerError":
        """Read older pushes of a topic."""
        owner = await self._get()
        if isinstance(owner, BrokerError):
            return owner
        return await owner.history(topic, epoch, after_seq, limit)

    async def heads(self, topics: Sequence[str]) -> "list[Head | None] | None":
        """Where topics stand with everything that was acknowledged; None when that is not certain."""
        return None if self._part is None else self._part.heads(topics)

    async def _start(self) -> "Owner":
        return await self._open(self._settings, self._dsn, self._index, term=self._term)
