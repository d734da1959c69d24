"""Which accounts there are, for the host name of every request."""

from broker.auth.account_cache import AccountCache
from broker.clock import Clock
from broker.domain.values import is_account_name
from broker.limits.shared_rates import EventRates
from broker.storage.accounts import Account, Accounts, unknown_account


class KnownAccounts:
    """The names of all accounts, as of some seconds ago; without the database older answers hold.

    Use from one event loop; `close` ends the queries that run.
    """

    def __init__(self, accounts: Accounts, clock: Clock, rates: EventRates | None = None) -> None:
        """Nothing is known. `rates` learns the quotas of the accounts that are looked up."""
        self._accounts = accounts
        self._rates = rates
        self._cache: AccountCache[Account] = AccountCache(clock, self._find, name="accounts")

    async def close(self) -> None:
        """End what runs. Idempotent."""
        await self._cache.close()

    def has(self, name: str) -> bool:
        """Whether there is such an account, as far as is known without asking."""
        return self._cache.fresh(name) is not None

    async def require(self, name: str, address: str) -> None:
        """Return where there is such an account. Raises as `AccountCache.get`. Safe to cancel."""
        if not is_account_name(name):
            raise unknown_account()
        await self._cache.get(name, address)

    async def _find(self, name: str) -> Account | None:
        account = await self._accounts.find(name)
        if account is not None and self._rates is not None:
            self._rates.learn(name, account.quotas.events)
        return account
