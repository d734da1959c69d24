"""What owners are asked over links. The annotations are what travels; see `broker.rpc.calls`."""

from collections.abc import Sequence
from typing import Protocol

from broker.errors import BrokerError
from broker.owners.commands import Command, CommandReply
from broker.owners.protocol import Entry, Head
from broker.owners.sessions import Follow, PollReply
from broker.rpc.calls import Calls, SlotCalls


class OwnerCalls(SlotCalls, Protocol):
    """The owner's side is `broker.owners.actor.OwnerActor`; what the calls do is `Owner`'s."""

    async def submit(self, commands: Sequence[Command], wait_s: float) -> list[CommandReply] | BrokerError:
        """See `Owner.submit`."""

    async def nudge(self, account: str, channel: str) -> None:
        """See `Owner.nudge`."""

    async def open(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | BrokerError:
        """See `Owner.open`."""

    async def follow(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | None:
        """See `Owner.follow`."""

    async def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """See `Owner.unfollow`."""

    async def poll(self, name: str, ack: int) -> PollReply | BrokerError | None:
        """See `Owner.poll`."""

    async def leave(self, name: str) -> None:
        """See `Owner.leave`."""

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry] | BrokerError:
        """See `Owner.history`."""

    async def heads(self, topics: Sequence[str]) -> list[Head | None] | None:
        """See `Owner.heads`."""


OWNER_CALLS: Calls[OwnerCalls] = Calls(OwnerCalls)
