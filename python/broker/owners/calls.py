"""The calls of owners over links. `broker.rpc.calls` encodes arguments and replies by the annotations."""

from collections.abc import Sequence
from typing import Protocol

from broker.errors import BrokerError
from broker.owners.commands import CarriedCommand, CommandReply
from broker.owners.protocol import Entry, Head
from broker.owners.sessions import Follow, PollReply
from broker.rpc.calls import Calls, SlotCalls


class SessionCalls(Protocol):
    """What a gateway asks whom it follows: an owner, or a relay (`broker.owners.relay`)."""

    async def open(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | BrokerError:
        """Open a session of a gateway with the topics that it follows."""

    async def follow(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | None:
        """Follow topics in a session; returns the head of each."""

    async def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """Stop following topics."""

    async def poll(self, name: str, ack: int) -> PollReply | BrokerError | None:
        """Wait for pushes after the cursors of a session."""

    async def leave(self, name: str) -> None:
        """End a session."""


class OwnerCalls(SessionCalls, SlotCalls, Protocol):
    """The owner's side is `broker.owners.actor.OwnerActor`; what the calls do is `Owner`'s."""

    async def submit(
        self, commands: Sequence[CarriedCommand], wait_s: float
    ) -> list[CommandReply] | BrokerError:
        """Apply commands in order; each has its own reply."""

    async def nudge(self, account: str, channel: str) -> None:
        """Have a channel look for news in the database."""

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry] | BrokerError:
        """Read older pushes of a topic."""

    async def heads(self, topics: Sequence[str]) -> list[Head | None] | None:
        """Where topics stand with everything that was acknowledged; None when that is not certain."""


SESSION_CALLS: Calls[SessionCalls] = Calls(SessionCalls)
OWNER_CALLS: Calls[OwnerCalls] = Calls(OwnerCalls)
