"""Rate limits of one process, for frequent requests: token buckets in memory.

The buckets are native, so that the gateway's native code takes tokens out of the same ones.
"""

from broker._native import Rates
from broker.clock import Clock
from broker.errors import SlowDown
from broker.limits.rate_limits import Rate
from broker.metrics.counts import RATE_LIMITED

_MOST = 100_000  # some 200 bytes each


class LocalRate:
    """One limit for each key, within this process. A rate of 0 has no limit.

    Attributes:
        buckets: by key; native code that shares them must go by the machine's monotonic clock.
    """

    def __init__(self, clock: Clock, rate: Rate, *, most: int = _MOST, name: str = "responses") -> None:
        """Keep the buckets, which are full at first.

        Args:
            most: buckets at a time; over it the one that has not been used for longest is forgotten.
            name: of the limit in the metrics.
        """
        self._name = name
        self._clock = clock
        self._rate = rate
        self.buckets = Rates(rate.per_s, rate.burst, most)

    def __len__(self) -> int:
        return len(self.buckets)

    def take(self, key: str, tokens: int) -> None:
        """Take tokens out of the bucket of `key`.

        What takes more than a bucket holds needs a full one, and is paid off before the next is let through.

        Raises:
            SlowDown: there are too few, and none was taken; after `retry_after_s` there would be enough.
        """
        missing = self.buckets.take(key, tokens, self._clock.monotonic_s())
        if missing:
            RATE_LIMITED.add(self._name)
            wait_s = int(-(-missing // self._rate.per_s))
            raise SlowDown("too many requests; wait and try again", retry_after_s=max(1, wait_s))
