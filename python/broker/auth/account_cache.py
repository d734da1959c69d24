"""A cache of what is known of each account, for names that come from outside.

Anybody can ask for as many names as it likes, by host names or URLs, and each that is not known here costs a
query. Three bounds hold for these, in one process: an address may ask for so many a second, one query for
them runs at a time, and so many wait for it, of whom addresses take turns. Names without an account are
remembered apart, so that they take no place of those that have one.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from broker.clock import Clock
from broker.concurrency.caches import LruCache, TtlCache
from broker.concurrency.shares import Asker, Shares
from broker.concurrency.single_flight import SingleFlight
from broker.concurrency.turns import Turns
from broker.domain.callers import caller_of
from broker.errors import SlowDown, Unavailable
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from broker.storage.accounts import unknown_account

MAX_NAMES = 10_000  # remembered at a time; as many names of none
_KNOWN_S = 5.0
_UNKNOWN_S = 1.0  # so that who makes an account does not wait for it
_NEW = Rate(10, 100)  # names that are not known here, of one address
_NEW_AT_ONCE = 1  # of the pool's connections; the others refresh what is known
_NEW_WAITING = 256  # of which all together take half at most, and one address a third (`Shares`)

V = TypeVar("V")


class AccountCache(Generic[V]):
    """What `find` says of each account, as of some seconds ago; without the database older answers hold.

    Use from one event loop; `close` ends the queries that run.
    """

    def __init__(self, clock: Clock, find: Callable[[str], Awaitable[V | None]], *, name: str) -> None:
        """Nothing is known.

        Args:
            find: asks the database; None where there is no such account.
            name: of the limit on new names, in the metrics.
        """
        self._clock = clock
        self._find = find
        # With the second until which each is fresh. Not a TtlCache, which forgets what has expired.
        self._known: LruCache[str, tuple[V, float]] = LruCache(MAX_NAMES)
        self._unknown: TtlCache[str, bool] = TtlCache(clock, _UNKNOWN_S, MAX_NAMES)
        self._queries: SingleFlight[str, V | None] = SingleFlight()
        self._new = LocalRate(clock, _NEW, name=name)
        self._turns = Turns(_NEW_AT_ONCE, Shares(_NEW_WAITING, "too many accounts are being looked up"))

    async def close(self) -> None:
        """End what runs. Idempotent."""
        await self._queries.close()

    def fresh(self, account: str) -> V | None:
        """What was found within the last seconds, without asking."""
        known = self._known.get(account)
        return known[0] if known is not None and self._clock.monotonic_s() < known[1] else None

    async def get(self, account: str, address: str = "") -> V:
        """What is known of an account. Safe to cancel.

        Args:
            address: of who asks, by which names that are not known here are counted; empty has no limit.

        Raises:
            NotFound: there is no such account.
            SlowDown: the address has asked for too many names that are not known here.
            Unavailable: the database is unavailable and the account is not known yet, or too many wait.
        """
        value = self.fresh(account)
        if value is None and account not in self._unknown:
            known = self._known.get(account)
            if known is None:
                find, personal = lambda: self._find_new(account, address), (SlowDown,)
                value = await self._queries.run(account, find, personal)
            else:
                value = await self._queries.run(account, lambda: self._refresh(account, known[0]))
        if value is None:
            raise unknown_account()
        return value

    async def _find_new(self, account: str, address: str) -> V | None:
        caller = caller_of(address)
        if caller:
            self._new.take(caller, 1)
        async with self._turns.held(Asker("", caller)):
            return await self._look_up(account)

    async def _refresh(self, account: str, before: V) -> V | None:
        try:
            return await self._look_up(account)
        except Unavailable:
            self._remember(account, before)
            return before

    async def _look_up(self, account: str) -> V | None:
        """What is so now, which is remembered."""
        value = await self._find(account)
        if value is None:
            self._known.pop(account)
            self._unknown.put(account, True)
        else:
            self._remember(account, value)
        return value

    def _remember(self, account: str, value: V) -> None:
        self._known.put(account, (value, self._clock.monotonic_s() + _KNOWN_S))
