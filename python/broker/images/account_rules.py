"""The rules of an account for images, cached for some seconds.

Names of accounts come from URLs, so anybody can ask for as many as it likes, and each that is not known here
costs a query. Three bounds hold for these, in one process: an address may ask for so many a second, one query
for them runs at a time, and so many wait for it, of whom addresses take turns. Names without an account are
remembered apart, so that they take no place of those that have one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker.auth.local_rates import LocalRate
from broker.auth.rate_limits import Rate
from broker.clock import Clock
from broker.concurrency.caches import LruCache, TtlCache
from broker.concurrency.shares import Asker, Shares
from broker.concurrency.single_flight import SingleFlight
from broker.errors import NotFound, SlowDown, Unavailable
from broker.images.host_rules import HostRules
from broker.images.turns import Turns
from broker.storage.accounts import unknown_account
from broker.storage.image_rules import ImageRules, StoredImageRules

_KNOWN_S = 5.0
_UNKNOWN_S = 1.0  # so that who makes an account does not wait for it
_ACCOUNTS = 10_000  # remembered at a time; as many names of none
_NEW = Rate(10, 100)  # names that are not known here, of one address
_NEW_AT_ONCE = 1  # of two connections; the other one refreshes what is known
_NEW_WAITING = 256


@dataclass(frozen=True, slots=True)
class AccountRules:
    """The rules of one account.

    Attributes:
        presets: name → options in their one spelling.
        signing_keys: with one of which URLs must be signed; none takes unsigned ones.
        quota: of images made a minute; None has no bound.
    """

    hosts: HostRules = field(default_factory=HostRules)
    presets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    quota: int | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """Rules, and until when they are asked for no more, in monotonic seconds."""

    rules: AccountRules
    until_s: float


class RuleBook:
    """The rules of all accounts, as of some seconds ago; while the database is unavailable older ones hold.

    Use from one event loop; `close` ends what runs.
    """

    def __init__(self, stored: ImageRules, clock: Clock) -> None:
        self._stored = stored
        self._clock = clock
        # Not a TtlCache, which forgets what has expired: older rules hold while the database is unavailable.
        self._known: LruCache[str, _Known] = LruCache(_ACCOUNTS)
        self._unknown: TtlCache[str, bool] = TtlCache(clock, _UNKNOWN_S, _ACCOUNTS)
        self._loads: SingleFlight[str, AccountRules | None] = SingleFlight()
        self._new = LocalRate(clock, _NEW, name="images")
        self._turns = Turns(_NEW_AT_ONCE, Shares(_NEW_WAITING, "too many accounts are being looked up"))

    async def close(self) -> None:
        """End what runs. Idempotent."""
        await self._loads.close()

    async def get(self, account: str, address: str = "") -> AccountRules:
        """The rules of an account. Safe to cancel.

        Args:
            address: of who asks, by which accounts that are not known here are counted; empty has no limit.

        Raises:
            NotFound: there is no such account.
            SlowDown: the address has asked for too many accounts that are not known here.
            Unavailable: the database is unavailable and the account is not known yet, or too many wait.
        """
        known = self._known.get(account)
        if known is not None and self._clock.monotonic_s() < known.until_s:
            return known.rules
        if account in self._unknown:
            raise unknown_account()
        if known is None:
            rules = await self._loads.run(account, lambda: self._find_new(account, address), (SlowDown,))
        else:
            rules = await self._loads.run(account, lambda: self._refresh(account, known.rules))
        if rules is None:
            raise unknown_account()
        return rules

    async def _find_new(self, account: str, address: str) -> AccountRules | None:
        if address:
            self._new.take(address, 1)
        async with self._turns.held(Asker("", address)):
            return await self._load(account)

    async def _refresh(self, account: str, before: AccountRules) -> AccountRules | None:
        try:
            return await self._load(account)
        except Unavailable:
            self._remember(account, before)
            return before

    async def _load(self, account: str) -> AccountRules | None:
        """The rules as they are now, which are remembered; None where there is no such account."""
        try:
            rules = read_rules(await self._stored.get(account))
        except NotFound:
            self._known.pop(account)
            self._unknown.put(account, True)
            return None
        self._remember(account, rules)
        return rules

    def _remember(self, account: str, rules: AccountRules) -> None:
        self._known.put(account, _Known(rules, self._clock.monotonic_s() + _KNOWN_S))


def read_rules(stored: StoredImageRules) -> AccountRules:
    """The rules in their parts."""
    return AccountRules(
        HostRules.of(stored.hosts), MappingProxyType(stored.presets), stored.signing_keys, stored.quota
    )
