"""What is looked up again and again, remembered for a moment: many callers at a time cost one look."""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from broker.auth.single_flight import SingleFlight
from broker.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, none older than `lasts_s`; the least recently stored go over `most`.

    Use from one event loop; `close` ends the looks that are under way. What fails is not remembered.
    """

    def __init__(self, clock: Clock, lasts_s: float, most: int) -> None:
        self._clock = clock
        self._lasts_s = lasts_s
        self._most = most
        self._values: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._looks: SingleFlight[K, V] = SingleFlight()

    async def get(self, key: K, look: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value that is remembered, or that `look` brings; raises what it raises."""
        kept = self._values.get(key)
        if kept is not None and self._clock.monotonic_s() < kept[1]:
            return kept[0]

        async def look_and_keep() -> V:
            until_s = self._clock.monotonic_s() + self._lasts_s  # old from when it was looked up
            value = await look()
            self.put(key, value, until_s)
            return value

        return await self._looks.run(key, look_and_keep)

    def peek(self, key: K) -> V | None:
        """The value that is remembered, or None."""
        kept = self._values.get(key)
        return kept[0] if kept is not None and self._clock.monotonic_s() < kept[1] else None

    def put(self, key: K, value: V, until_s: float | None = None) -> None:
        """Remember a value, until a moment of the monotonic clock or for as long as all."""
        self._values[key] = (value, self._clock.monotonic_s() + self._lasts_s if until_s is None else until_s)
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def forget(self, key: K) -> None:
        """Look again the next time."""
        self._values.pop(key, None)

    async def close(self) -> None:
        """End the looks that are under way."""
        await self._looks.close()
