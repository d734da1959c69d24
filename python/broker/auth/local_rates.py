"""How fast callers may do what comes too often to ask the database each time: token buckets of one process.

A bucket is one number: the moment at which it is full again (the generic cell rate algorithm of ITU-T I.371,
annex A). Buckets that are full are the same as none, so forgetting them is free.
"""

from collections import OrderedDict

from broker.auth.rate_limits import Rate
from broker.clock import Clock
from broker.errors import SlowDown

_MOST = 100_000  # 150 bytes each
_SWEPT = 2  # full buckets forgotten for each new one


class LocalRate:
    """One limit for each key, within this process. A rate of 0 has no limit."""

    def __init__(self, clock: Clock, rate: Rate, *, most: int = _MOST) -> None:
        """Args: most: buckets at a time; over it the one that has not been used for longest is forgotten."""
        self._clock = clock
        self._rate = rate
        self._most = most
        self._full_at_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at_s)

    def take(self, key: str, tokens: int) -> None:
        """Take tokens out of the bucket of `key`.

        What takes more than a bucket holds needs a full one, and is paid off before the next is let through.

        Raises:
            SlowDown: there are too few, and none was taken; after `retry_after_s` there would be enough.
        """
        if not self._rate.per_s:
            return
        now_s = self._clock.monotonic_s()
        full_at_s = max(now_s, self._full_at_s.get(key, now_s))
        missing = (full_at_s - now_s) * self._rate.per_s + min(tokens, self._rate.burst) - self._rate.burst
        if missing > 1e-6:  # of a token: sums of seconds are not exact
            wait_s = int(-(-missing // self._rate.per_s))
            raise SlowDown("too many requests; wait and try again", retry_after_s=max(1, wait_s))
        self._full_at_s[key] = full_at_s + tokens / self._rate.per_s
        self._full_at_s.move_to_end(key)
        self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        for _ in range(_SWEPT):
            key, full_at_s = next(iter(self._full_at_s.items()))
            if full_at_s > now_s and len(self._full_at_s) <= self._most:
                return
            del self._full_at_s[key]
            if not self._full_at_s:
                return
