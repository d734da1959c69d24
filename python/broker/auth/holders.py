"""Finds the holder of an API token, at little cost for unknown tokens.

Nothing in an API token is signed, so a well-formed one is known only by a query. Found ones are remembered by
the caller. Four bounds hold for the others, in one process:

* one that was not found is not looked for again within a minute;
* after `per_address` of them in a minute, an address is refused what is not known here yet;
* `AT_ONCE` queries run at a time, whatever the number of addresses;
* `MOST_WAITING` wait for their turn; more are told to come again.

Only failures are counted, so that many machines behind one address can come at once. Those that wait when
the limit is met are refused without a query; the `AT_ONCE` under way are the only ones beyond it.
"""

import asyncio
from typing import Generic, TypeVar

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.concurrency.single_flight import SingleFlight
from broker.domain.callers import caller_of
from broker.errors import SlowDown, Unavailable
from broker.metrics.counts import RATE_LIMITED
from broker.storage.api_tokens import ApiTokens, Holder

AT_ONCE = 4  # of the pool's connections; a look-up is one read of a unique index
MOST_WAITING = 1_000
WINDOW_S = 60.0
_MOST_COUNTED = 20_000  # some 250 bytes each

HolderKey = tuple[str, str]
"""(account, address)"""
_Key = tuple[str, bytes]
"""(account, hash of the secret)"""
K = TypeVar("K")


class Holders:
    """The look-ups of one process. Use from one event loop; `close` ends those under way."""

    def __init__(self, api_tokens: ApiTokens, clock: Clock, per_address: int) -> None:
        """Args: per_address: API tokens a minute from one address that are not found."""
        self._api_tokens = api_tokens
        self._clock = clock
        self._per_address = per_address
        self._unknown: _Counts[_Key] = _Counts(clock)
        self._failures: _Counts[HolderKey] = _Counts(clock)
        self._single_flight: SingleFlight[_Key, Holder | None] = SingleFlight()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def find(self, account: str, secret_hash: bytes, address: str) -> Holder | None:
        """Whose API token it is; None for one that is unknown, revoked or expired.

        Args:
            address: where it came from; empty for that of no peer, which has no limit.

        Raises:
            SlowDown: too many from this address were not found; after `retry_after_s` the next is looked for.
            Unavailable: the database is unavailable, or too many wait.
        """
        key = account, secret_hash
        if self._unknown.count(key):
            return None
        caller = account, caller_of(address) if address else ""
        self._check(caller)
        if self._waiting >= MOST_WAITING:
            raise Unavailable("too many API tokens are waiting to be checked", retry_after_s=1)
        return await self._single_flight.run(key, lambda: self._look_up(key, caller))

    async def close(self) -> None:
        """End look-ups that are under way. Idempotent."""
        await self._single_flight.close()

    async def _look_up(self, key: _Key, caller: HolderKey) -> Holder | None:
        self._waiting += 1
        try:
            async with self._turns:
                self._check(caller)
                holder = await self._api_tokens.find_holder(*key, self._clock.now_ms())
                if holder is None:
                    self._unknown.add(key)
                    self._failures.add(caller)
                return holder
        finally:
            self._waiting -= 1

    def _check(self, caller: HolderKey) -> None:
        if not caller[1] or self._failures.count(caller) < self._per_address:
            return
        RATE_LIMITED.add("api_tokens")
        wait_s = self._failures.wait_s(caller)
        raise SlowDown("too many unknown API tokens; wait and try again", retry_after_s=wait_s)


class _Counts(Generic[K]):
    """How often something was seen of a key, within a minute that begins with the first time.

    Over `_MOST_COUNTED` keys the one that was used least recently is forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: TtlCache[K, list[int]] = TtlCache(clock, WINDOW_S, _MOST_COUNTED)

    def count(self, key: K) -> int:
        times = self._times.get(key)
        return 0 if times is None else times[0]

    def wait_s(self, key: K) -> int:
        """Whole seconds until the count of a key is 0; at least one."""
        found = self._times.find(key)
        left_s = 0.0 if found is None else found[1] - self._clock.monotonic_s()
        return max(1, -int(-left_s // 1))

    def add(self, key: K) -> None:
        times = self._times.get(key)
        if times is None:
            self._times.put(key, [1])
        else:
            times[0] += 1
