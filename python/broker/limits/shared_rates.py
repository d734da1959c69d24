"""Rates of accounts over all processes, each account with a number of its own.

The bucket of an account is in the database (`broker.storage.rate_buckets`). A process draws tokens from it
in groups of at most a twentieth of what the account gains in the window, and hands them out by itself; so a
frequent request seldom costs a query, and what one process holds back from the others is little. An account
without a quota costs nothing.
"""

import asyncio

from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.domain.quotas import QuotaName
from broker.errors import SlowDown
from broker.metrics.counts import QUOTA_REFUSALS
from broker.storage.rate_buckets import Bucket, RateBuckets

_ACCOUNTS = 10_000  # with quotas, that are remembered at a time
_GROUPS = 20  # that a window's tokens are drawn in
_SECOND_US = 1_000_000


class SharedRates:
    """The rates of one quota. For concurrent use within one event loop."""

    def __init__(
        self, quota: QuotaName, buckets: RateBuckets, clock: Clock, *, window_s: int, text: str
    ) -> None:
        """Nothing is drawn.

        Args:
            window_s: in which an account may do as much as its quota says; a bucket holds as much.
            text: what the quota counts, for the refusal, such as `events a second`.
        """
        self._quota = quota
        self._buckets = buckets
        self._clock = clock
        self._window_s = window_s
        self._text = text
        self._drawn: LruCache[str, _Drawn] = LruCache(_ACCOUNTS)

    async def take(self, account: str, most: int | None, tokens: int = 1) -> None:
        """Count so many. Requests of an account take turns in the order in which they come.

        What is more than a whole window's is let through when nothing was used lately, and is paid off
        before the next.

        Args:
            most: in a window; None has no bound.

        Raises:
            SlowDown: it is too early; after `retry_after_s` it would be taken. Nothing was counted.
            Unavailable: the database is unavailable.
        """
        if most is None:
            return
        drawn = self._drawn.get(account)
        if drawn is None:
            drawn = _Drawn()
            self._drawn.put(account, drawn)
        async with drawn.turn:
            if drawn.tokens < tokens:
                drawn.tokens += await self._draw(account, most, tokens - drawn.tokens)
            drawn.tokens -= tokens

    async def _draw(self, account: str, most: int, missing: int) -> int:
        """Draw a group, or as many as are missing; returns how many these are."""
        bucket = Bucket(f"quota_{self._quota}/{account}", max(1, self._window_s * _SECOND_US // most), most)
        for tokens in sorted({max(missing, most // _GROUPS), missing}, reverse=True):
            wait_us = await self._buckets.take_many(bucket, tokens, self._clock.now_ms() * 1000)
            if not wait_us:
                return tokens
        QUOTA_REFUSALS.add(self._quota.value)
        raise SlowDown(
            f"the account has reached its quota of {most} {self._text}",
            retry_after_s=-(-wait_us // _SECOND_US),
        )


def image_rates(buckets: RateBuckets, clock: Clock) -> SharedRates:
    """Those of images that are made."""
    return SharedRates(QuotaName.IMAGES, buckets, clock, window_s=60, text="images made a minute")


class _Drawn:
    """What this process has drawn for an account, and whose turn it is."""

    __slots__ = ("tokens", "turn")

    def __init__(self) -> None:
        self.tokens = 0
        self.turn = asyncio.Lock()


class EventRates:
    """The quotas of accounts for events a second, as a door knows them: as of some seconds ago."""

    def __init__(self, buckets: RateBuckets, clock: Clock) -> None:
        self._most: dict[str, int] = {}
        self._rates = SharedRates(QuotaName.EVENTS, buckets, clock, window_s=1, text="events a second")

    def learn(self, account: str, most: int | None) -> None:
        """Take over what the database says of an account."""
        if most is None:
            self._most.pop(account, None)
        else:
            self._most[account] = most

    async def take(self, account: str, events: int) -> None:
        """Count events. Raises as `SharedRates.take`."""
        most = self._most.get(account)
        if most is not None:
            await self._rates.take(account, most, events)
