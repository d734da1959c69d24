"""A counter as a Ray actor. Thin: what it does is `broker.answers.counter`."""

from typing import TYPE_CHECKING, ClassVar

from broker.answers.placement import COUNTER
from broker.errors import BrokerError
from broker.settings import Settings
from broker.slots.actor import SlotActor
from broker.slots.placement import slot_name

if TYPE_CHECKING:
    from broker.answers.batches import Answer, Batch
    from broker.answers.counter import Counter


class CounterActor(SlotActor["Counter"]):
    """The class that a pool makes the counters' actors of. See `Counter` for each method."""

    kind: ClassVar[str] = COUNTER
    late_s: ClassVar[float] = 0.3  # a counter counts when something comes; only its pauses are timed

    def __init__(self, settings: Settings, dsn: str, index: int) -> None:
        # Not above: the conductor, which names this class and no more, would hold it all.
        from broker.answers.calls import COUNTER_CALLS
        from broker.answers.counter import Counter

        super().__init__(settings, dsn, index, COUNTER_CALLS)
        self._open = Counter.start

    async def submit(self, batch: "Batch", wait_s: float) -> "Answer":
        """See `Counter.submit`."""
        counter = await self._get()
        return counter if isinstance(counter, BrokerError) else await counter.submit(batch, wait_s)

    async def _start(self) -> "Counter":
        return await self._open(self._settings, self._dsn, slot_name(COUNTER, self._index))
