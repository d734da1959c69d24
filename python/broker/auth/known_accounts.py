"""A cache of accounts, for the host name of every request.

Names come from Host headers, so anybody can ask for as many as it likes, and each that is not known here
costs a query. Four bounds hold for these, in one process: a name without an account is remembered too, an
address may ask for so many new names a second, one query for them runs at a time, and so many requests wait
for it. Names without an account are remembered apart, so that they take no place of those that have one.
"""

import asyncio

from broker.auth.local_rates import LocalRate
from broker.auth.rate_limits import Rate, caller_of
from broker.auth.shared_rates import EventRates
from broker.clock import Clock
from broker.concurrency.caches import LruCache, TtlCache
from broker.concurrency.single_flight import SingleFlight
from broker.domain.values import is_account_name
from broker.errors import SlowDown, Unavailable
from broker.storage.accounts import Accounts, unknown_account

_KNOWN_S = 5.0
_UNKNOWN_S = 1.0  # so that who makes an account does not wait for it
_NAMES = 10_000  # remembered at a time; as many names of none
_NEW = Rate(10, 100)  # names that are not known here, of one address
_AT_ONCE = 1  # of the pool's connections
_WAITING = 256


class KnownAccounts:
    """The names of all accounts, as of some seconds ago; without the database older answers hold.

    Use from one event loop; `close` ends the queries that run.
    """

    def __init__(self, accounts: Accounts, clock: Clock, rates: EventRates | None = None) -> None:
        """Nothing is known. `rates` learns the quotas of the accounts that are looked up."""
        self._accounts = accounts
        self._rates = rates
        self._clock = clock
        # Until when each is asked for no more. Not a TtlCache, which forgets what has expired.
        self._until_s: LruCache[str, float] = LruCache(_NAMES)
        self._unknown: TtlCache[str, bool] = TtlCache(clock, _UNKNOWN_S, _NAMES)
        self._queries: SingleFlight[str, bool] = SingleFlight()
        self._new = LocalRate(clock, _NEW, name="accounts")
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def close(self) -> None:
        """End what runs. Idempotent."""
        await self._queries.close()

    def has(self, name: str) -> bool:
        """Whether there is such an account, as far as is known without asking."""
        until_s = self._until_s.get(name)
        return until_s is not None and self._clock.monotonic_s() < until_s

    async def require(self, name: str, address: str) -> None:
        """Return where there is such an account. Safe to cancel.

        Args:
            address: of who asks, by which names that are not known here are counted; empty has no limit.

        Raises:
            NotFound: there is none.
            SlowDown: the address has asked for too many names that are not known here.
            Unavailable: the database is unavailable and the name was not asked for before, or too many wait.
        """
        if self.has(name):
            return
        if name in self._unknown or not is_account_name(name):
            raise unknown_account()
        if name in self._until_s:
            is_there = await self._queries.run(name, lambda: self._refresh(name))
        else:
            is_there = await self._queries.run(name, lambda: self._find_new(name, address), (SlowDown,))
        if not is_there:
            raise unknown_account()

    async def _find_new(self, name: str, address: str) -> bool:
        if address:
            self._new.take(caller_of(address), 1)
        if self._waiting >= _WAITING:
            raise Unavailable("too many accounts are being looked up", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._turns:
                return await self._look_up(name)
        finally:
            self._waiting -= 1

    async def _refresh(self, name: str) -> bool:
        try:
            return await self._look_up(name)
        except Unavailable:
            self._remember(name)
            return True

    async def _look_up(self, name: str) -> bool:
        """Whether there is such an account now, which is remembered."""
        account = await self._accounts.find(name)
        if account is None:
            self._until_s.pop(name)
            self._unknown.put(name, True)
            return False
        if self._rates is not None:
            self._rates.learn(name, account.quotas.events)
        self._remember(name)
        return True

    def _remember(self, name: str) -> None:
        self._until_s.put(name, self._clock.monotonic_s() + _KNOWN_S)
