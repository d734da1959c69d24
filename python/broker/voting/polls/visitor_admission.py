"""Who counts as a visitor of an account, as one process remembers it, and how many new ones there may be."""

from dataclasses import dataclass

from broker.auth.signed_visitors import VisitorKey, read_key
from broker.clock import Clock
from broker.concurrency.loading_cache import LoadingCache
from broker.domain.callers import caller_of, network_of
from broker.limits.rate_limits import Rate, take_each
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.rate_buckets import RateBuckets
from broker.storage.visitor_rules import VisitorRules
from broker.voting.rules import Visitors

RULES_S = 5.0
"""A process remembers an account's rules for so long, and accepts visitors that they have ceased to allow.

Visitors that they newly allow are accepted at once: before a process refuses one, it reads the rules again.
"""
_ACCOUNTS = 10_000  # whose rules are remembered at a time


@dataclass(frozen=True, slots=True)
class Rules:
    """Who counts as a visitor.

    Attributes:
        keys: those with which the account's own server signs visitors.
        secret: that of visitors whom the broker hands out; None before the first.
        required: what polls require that say nothing themselves.
    """

    keys: tuple[VisitorKey, ...]
    secret: bytes | None
    required: Visitors


class VisitorAdmission:
    """The rules of all accounts, and the limits on new visitors. Use from one event loop, and `close` it."""

    def __init__(self, settings: Settings, clock: Clock, database: Database) -> None:
        self._clock = clock
        self._stored = VisitorRules(database)
        self._buckets = RateBuckets(database)
        self._rules: LoadingCache[str, Rules] = LoadingCache(clock, RULES_S, _ACCOUNTS)
        self._bits = settings.visitors_ipv4_prefix, settings.visitors_ipv6_prefix
        self._per_address = Rate(settings.visitors_rate_per_address, settings.visitors_burst_per_address)
        self._per_network = Rate(settings.visitors_rate_per_network, settings.visitors_burst_per_network)

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._rules.close()

    async def rules(self, account: str) -> Rules:
        """The rules of an account, at most `RULES_S` old. Raises NotFound, Unavailable."""
        return await self._rules.load(account, lambda: self._read(account))

    async def rules_now(self, account: str) -> Rules:
        """The rules of an account as they are now; calls during a query share the next. As `rules`."""
        rules = await self._read(account)
        self._rules.put(account, rules)
        return rules

    def remembered(self, account: str) -> Rules | None:
        """The rules of an account if they are cached; else None, and they are looked up for the next time."""
        rules = self._rules.get(account)
        if rules is None:
            self._rules.begin(account, lambda: self._read(account))
        return rules

    async def ensure_secret(self, account: str) -> bytes:
        """The secret under which visitors of an account are handed out now; the first call makes one.

        Raises NotFound, Unavailable.
        """
        secret = (await self.rules_now(account)).secret
        if secret is None:
            secret = await self._stored.make_secret(account)
            self._rules.pop(account)
        return secret

    async def take(self, account: str, address: str) -> None:
        """Count one new visitor of an address; the count is one for all processes.

        Raises:
            SlowDown: its network or the address itself has had too many, and this one is not counted.
            Unavailable: the database is unavailable.
        """
        buckets = []
        if address and self._per_network.per_s:
            buckets.append(self._per_network.bucket(f"visitors/{account}/{self.network_of(address)}"))
        if address and self._per_address.per_s:
            buckets.append(self._per_address.bucket(f"visitors/{account}/={caller_of(address)}"))
        await take_each("visitors", self._buckets, self._clock, buckets, "new visitors")

    def network_of(self, address: str) -> str:
        """The network that an address is counted with."""
        return network_of(address, *self._bits)

    async def _read(self, account: str) -> Rules:
        keys, secret, required = await self._stored.get(account)
        return Rules(tuple(read_key(text) for text in keys), secret, Visitors(required))
