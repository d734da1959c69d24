"""A counter as a Ray actor. Thin: `broker.voting.counting.counter` does the work."""

from typing import TYPE_CHECKING, ClassVar

from broker.actors.actor import SlotActor
from broker.actors.placement import slot_name
from broker.errors import BrokerError
from broker.settings import Settings
from broker.voting.counting.placement import COUNTER

if TYPE_CHECKING:
    from broker.voting.counting.batches import BatchReply, VoteBatch
    from broker.voting.counting.counter import Counter


class CounterActor(SlotActor["Counter"]):
    """The class that a pool makes the counters' actors of. See `Counter` for each method."""

    kind: ClassVar[str] = COUNTER
    late_s: ClassVar[float] = 0.3  # a counter counts when something comes; only its pauses are timed

    def __init__(self, settings: Settings, dsn: str, index: int, term: int | None = None) -> None:
        # Not above: the conductor, which names this class and no more, would hold it all.
        from broker.voting.counting.calls import COUNTER_CALLS
        from broker.voting.counting.counter import Counter

        super().__init__(settings, dsn, index, term, COUNTER_CALLS)
        self._open = Counter.start

    async def submit(self, batch: "VoteBatch", wait_s: float) -> "BatchReply":
        """Count groups of votes and return an outcome for each."""
        counter = await self._get()
        return counter if isinstance(counter, BrokerError) else await counter.submit(batch, wait_s)

    async def _start(self) -> "Counter":
        slot = slot_name(COUNTER, self._index)
        return await self._open(self._settings, self._dsn, slot, term=self._term)
