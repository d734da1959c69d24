"""What counters are asked over links. The annotations are what travels; see `broker.slots.calls`."""

from typing import Protocol

from broker.answers.batches import Answer, Batch
from broker.slots.calls import Calls, SlotCalls


class CounterCalls(SlotCalls, Protocol):
    """The counter's side is `broker.answers.actor.CounterActor`; what the calls do is `Counter`'s."""

    async def submit(self, batch: Batch, wait_s: float) -> Answer:
        """See `Counter.submit`."""


COUNTER_CALLS: Calls[CounterCalls] = Calls(CounterCalls)
