"""The rules of an account for images, cached for some seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker.auth.account_cache import AccountCache
from broker.clock import Clock
from broker.errors import NotFound
from broker.images.host_rules import HostRules
from broker.storage.image_rules import ImageRules, StoredImageRules


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


def rule_book(stored: ImageRules, clock: Clock) -> AccountCache[AccountRules]:
    """The rules of all accounts, as of some seconds ago. Use from one event loop, and `close` it."""

    async def find(account: str) -> AccountRules | None:
        try:
            return read_rules(await stored.get(account))
        except NotFound:
            return None

    return AccountCache(clock, find, name="images")


def read_rules(stored: StoredImageRules) -> AccountRules:
    """The rules in their parts."""
    return AccountRules(
        HostRules.of(stored.hosts), MappingProxyType(stored.presets), stored.signing_keys, stored.quota
    )
