"""Rate limits over all processes, for expensive and anonymous requests: token buckets in the database.

A bucket holds up to `burst` tokens and gains `per_s` new ones a second; each request takes one. Buckets are
in the database, so a limit holds over all processes, at the price of one short statement a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.clock import Clock
from broker.domain.callers import caller_of
from broker.errors import SlowDown
from broker.metrics.counts import RATE_LIMITED
from broker.storage.rate_buckets import Bucket, RateBuckets

_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second, and how many there are at most. A rate of 0 has no limit."""

    per_s: float
    burst: int

    def bucket(self, key: str) -> Bucket:
        """The bucket of `key`; the rate must not be 0."""
        return Bucket(key, max(1, round(_SECOND_US / self.per_s)), self.burst)


class RateLimit:
    """One limit for each address within an account, and one for the account as a whole."""

    def __init__(
        self, name: str, buckets: RateBuckets, clock: Clock, *, per_address: Rate, per_account: Rate
    ) -> None:
        """Args: name: of the limit; limits of one name share their buckets, over all processes."""
        self._name = name
        self._buckets = buckets
        self._clock = clock
        self._per_address = per_address
        self._per_account = per_account

    async def take(self, account: str, address: str) -> None:
        """Count one request.

        An empty address is that of no peer and has no limit of its own.

        Raises:
            SlowDown: it comes too early, and is not counted; after `retry_after_s` it would be taken.
            Unavailable: the database is unavailable.
        """
        buckets = []
        if self._per_account.per_s:
            buckets.append(self._per_account.bucket(f"{self._name}/{account}"))
        if self._per_address.per_s and address:
            buckets.append(self._per_address.bucket(f"{self._name}/{account}/{caller_of(address)}"))
        await take_each(self._name, self._buckets, self._clock, buckets)


async def take_each(
    name: str, stored: RateBuckets, clock: Clock, buckets: Sequence[Bucket], what: str = "requests"
) -> None:
    """Take a token out of each bucket, or none of any; `name` is that of the limit in the metrics.

    Raises:
        SlowDown: there are too few of `what`; after `retry_after_s` there would be enough.
        Unavailable: the database is unavailable.
    """
    wait_us = await stored.take(buckets, clock.now_ms() * 1000) if buckets else 0
    if wait_us > 0:
        RATE_LIMITED.add(name)
        raise SlowDown(f"too many {what}; wait and try again", retry_after_s=-(-wait_us // _SECOND_US))
