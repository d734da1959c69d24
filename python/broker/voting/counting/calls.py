"""The calls of counters over links. `broker.rpc.calls` encodes arguments and replies by the annotations."""

from typing import Protocol

from broker.rpc.calls import Calls, SlotCalls
from broker.voting.counting.batches import BatchReply, VoteBatch


class CounterCalls(SlotCalls, Protocol):
    """The counter's side is `broker.voting.counting.actor.CounterActor`; what the calls do is `Counter`'s."""

    async def submit(self, batch: VoteBatch, wait_s: float) -> BatchReply:
        """Count groups of votes and return an outcome for each."""


COUNTER_CALLS: Calls[CounterCalls] = Calls(CounterCalls)
