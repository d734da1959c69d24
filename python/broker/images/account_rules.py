"""What an account says about pictures, remembered for some seconds."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker.clock import Clock
from broker.errors import NotFound, Unavailable
from broker.images.host_rules import HostRules
from broker.storage.image_rules import ImageRules, StoredImageRules

_KNOWN_S = 5.0
_UNKNOWN_S = 1.0  # so that who makes an account does not wait for it
_ACCOUNTS = 10_000  # remembered at a time; names come from URLs, so anybody can ask for as many as it likes


@dataclass(frozen=True, slots=True)
class AccountRules:
    """The rules of one account.

    Attributes:
        presets: name → options in their one spelling.
        signing_keys: with one of which URLs must be signed; none takes unsigned ones.
    """

    hosts: HostRules = field(default_factory=HostRules)
    presets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    signing_keys: tuple[str, ...] = field(default=(), repr=False)


class RuleBook:
    """The rules of all accounts, as of some seconds ago; while the database is away older ones hold."""

    def __init__(self, stored: ImageRules, clock: Clock) -> None:
        self._stored = stored
        self._clock = clock
        self._known: OrderedDict[str, tuple[AccountRules | None, float]] = OrderedDict()

    async def get(self, account: str) -> AccountRules:
        """The rules of an account.

        Raises:
            NotFound: there is no such account.
            Unavailable: the database is away, and the account was not asked for before.
        """
        known = self._known.get(account)
        if known is None or self._clock.monotonic_s() >= known[1]:
            known = await self._ask(account, known)
        if known[0] is None:
            raise NotFound("there is no such account")
        return known[0]

    async def _ask(
        self, account: str, known: tuple[AccountRules | None, float] | None
    ) -> tuple[AccountRules | None, float]:
        rules: AccountRules | None
        try:
            rules = read_rules(await self._stored.get(account))
        except NotFound:
            rules = None
        except Unavailable:
            if known is None:
                raise
            rules = known[0]
        keep_s = _UNKNOWN_S if rules is None else _KNOWN_S
        kept = self._known[account] = rules, self._clock.monotonic_s() + keep_s
        self._known.move_to_end(account)
        if len(self._known) > _ACCOUNTS:
            self._known.popitem(last=False)
        return kept


def read_rules(stored: StoredImageRules) -> AccountRules:
    """The rules in their parts."""
    return AccountRules(HostRules.of(stored.hosts), MappingProxyType(stored.presets), stored.signing_keys)
