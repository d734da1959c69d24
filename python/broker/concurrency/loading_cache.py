"""A cache that loads missing entries: concurrent callers cost one load."""

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.concurrency.single_flight import SingleFlight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LoadingCache(TtlCache[K, V]):
    """A `TtlCache` with a single flight in front of what fills it; the least recently loaded goes first.

    A failed load is not remembered. Use from one event loop; `close` ends the loads that are under way.
    """

    __slots__ = ("_loads",)

    def __init__(self, clock: Clock, lasts_s: float, most: int) -> None:
        super().__init__(clock, lasts_s, most)
        self._loads: SingleFlight[K, V] = SingleFlight()

    async def load(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value that is kept, or that `load` brings; raises what it raises."""
        kept = self._entries.get(key)
        if kept is not None and self._clock.monotonic_s() < kept[1]:
            return kept[0]
        return await self._loads.run(key, lambda: self._load_and_keep(key, load))

    def begin(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> None:
        """Have the value that `load` brings kept soon, unless it is being loaded; a failure is for nobody."""
        self._loads.begin(key, lambda: self._load_and_keep(key, load))

    async def _load_and_keep(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        until_s = self._clock.monotonic_s() + self._lasts_s  # it ages from when it was asked for
        value = await load()
        self.put(key, value, until_s=until_s)
        return value

    async def close(self) -> None:
        """End the loads that are under way. Idempotent."""
        await self._loads.close()
