"""Limits on concurrent long lists, and on the rate at which they begin.

A list that is longer than a page costs a query a page and keeps a page in memory for as long as its reader
takes. So one address has so many under way and begins so many a second, and so has an account. What callers
without a token take of their account is counted apart: they leave that of the others alone. A list of one
page is a read as any other.

Counted in each process, as a list that many begin must cost no more round trips than it is worth.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from broker.clock import Clock
from broker.domain.callers import caller_of
from broker.domain.users import Principal
from broker.errors import SlowDown
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from broker.settings import Settings

_RETRY_S = 2  # about as long as a list of 100,000 events takes


class LongLists:
    """Limits long lists per address and account. Use from one event loop."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._most_of_address = settings.lists_per_address
        self._most_of_account = settings.lists_per_account
        self._address_rate = LocalRate(
            clock, Rate(settings.lists_rate_per_address, settings.lists_burst_per_address), name="lists"
        )
        self._account_rate = LocalRate(
            clock, Rate(settings.lists_rate_per_account, settings.lists_burst_per_account), name="lists"
        )
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def admit(self, principal: Principal, address: str) -> Iterator[None]:
        """Count a long list from here to the end of the block.

        An empty address is that of no peer and has no limit of its own.

        Raises:
            SlowDown: there are as many as there may be; it is not counted.
        """
        account = f"{principal.account}/{'anybody' if principal.is_anonymous else 'users'}"
        caller = f"{principal.account}/{caller_of(address)}/address" if address else ""
        for key, most in ((caller, self._most_of_address), (account, self._most_of_account)):
            if key and self._under_way[key] >= most:
                raise SlowDown(
                    "too many long lists are being read; read pages, or wait", retry_after_s=_RETRY_S
                )
        if caller:
            self._address_rate.take(caller, 1)
        self._account_rate.take(account, 1)
        keys = [key for key in (caller, account) if key]
        self._under_way.update(keys)
        try:
            yield
        finally:
            for key in keys:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
