"""Back-off: how long to wait between attempts. Standard library only, because the SDK uses it too."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

Draw = Callable[[], float]
"""Draws uniformly from [0, 1)."""

_MAX_DOUBLINGS = 32  # beyond it every ceiling has long been reached


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: the nth delay is at most min(cap_s, base_s · 2ⁿ), n from 0.

    Attributes:
        jitter: the share of each delay that is drawn at random, from 0 to 1. With 1, full jitter, a delay is
            anything from nothing to its ceiling, so that clients that lose one server together do not come
            back together. With 0 every delay is its ceiling.
    """

    base_s: float = 0.1
    cap_s: float = 5.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError("base_s must be over 0 and at most cap_s")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be from 0 to 1")

    def delay_s(self, attempt: int, draw: Draw = random.random) -> float:
        """Seconds to wait after the failed try number `attempt`, counted from 0."""
        ceiling = min(self.cap_s, self.base_s * float(1 << min(attempt, _MAX_DOUBLINGS)))
        return ceiling * (1 - self.jitter + self.jitter * draw()) if self.jitter else ceiling


class Delays:
    """The delays of one series of tries, in their order."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._attempt = 0

    def next_s(self) -> float:
        """Seconds to wait now, after one more failure."""
        self._attempt += 1
        return self._backoff.delay_s(self._attempt - 1)

    def reset(self) -> None:
        """Begin with the shortest delay again, because something has succeeded."""
        self._attempt = 0

    async def wait(self, at_most_s: float = math.inf) -> None:
        """Sleep for the next delay, or for `at_most_s` where that is less. Safe to cancel."""
        await asyncio.sleep(min(self.next_s(), at_most_s))
