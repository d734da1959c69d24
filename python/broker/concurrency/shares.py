"""A bounded resource that no single user can exhaust.

An account may hold as much as is still free, an address half as much as is still free. So one account alone
gets half of everything at most, two get a third each, and there is always some left for one that comes now.
The bound follows who is there, and needs no list of tenants (dynamic thresholds, as switches share a buffer:
Choudhury and Hahne, IEEE/ACM Transactions on Networking 6:2, 1998).
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from broker.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom something is done.

    Attributes:
        address: what counts as one caller; empty where there is none, which then has no bound of its own.
    """

    account: str
    address: str = ""


NOBODY = Asker("")
"""Asks for the product itself."""


class Shares:
    """So much at a time. Safe for any threads."""

    def __init__(self, size: int, refusal: str) -> None:
        """Nothing is held.

        Args:
            size: of all together, in whatever is shared.
            refusal: the message of `Unavailable` where a share or the whole is used up.
        """
        self._free = size
        self._refusal = refusal
        self._accounts: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """What is left."""
        return self._free

    def refusal(self) -> Unavailable:
        """The error for who gets nothing."""
        return Unavailable(self._refusal, retry_after_s=1)

    def take(self, asker: Asker, amount: int = 1) -> None:
        """Hold so much more. Raises Unavailable where it would be too much."""
        with self._lock:
            of_account = self._accounts[asker.account] + amount
            of_address = self._addresses[asker.address] + amount if asker.address else 0
            if max(of_account, 2 * of_address) > self._free:
                _forget_nothing(self._accounts, asker.account)
                _forget_nothing(self._addresses, asker.address)
                raise self.refusal()
            self._free -= amount
            self._accounts[asker.account] = of_account
            if asker.address:
                self._addresses[asker.address] = of_address

    def give_back(self, asker: Asker, amount: int = 1) -> None:
        """Hold so much less."""
        with self._lock:
            self._free += amount
            self._accounts[asker.account] -= amount
            _forget_nothing(self._accounts, asker.account)
            if asker.address:
                self._addresses[asker.address] -= amount
                _forget_nothing(self._addresses, asker.address)

    @contextmanager
    def held(self, asker: Asker, amount: int = 1) -> Iterator[None]:
        """Hold so much for a while. Raises Unavailable."""
        self.take(asker, amount)
        try:
            yield
        finally:
            self.give_back(asker, amount)


def _forget_nothing(held: Counter[str], name: str) -> None:
    """Names come from strangers, so only those that hold something are kept."""
    if not held[name]:
        del held[name]
