"""How fast callers may do what needs no token: token buckets for each address and each account.

A bucket holds up to `burst` tokens and gets `per_s` new ones a second; each request takes one. Buckets are in
the memory of one process, so behind several replicas the limit is that many times as high.
"""

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass

from broker.clock import Clock
from broker.errors import SlowDown

_BUCKETS = 100_000  # of one limit; the one unused for longest is forgotten, as if it were full again
_IPV6_SITE_BITS = 64  # what one household or server is given: its addresses are one caller


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second, and how many there are at most. A rate of 0 has no limit."""

    per_s: float
    burst: int


class Buckets:
    """Token buckets by key."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Seconds until the key's bucket has a token; 0 when it has one."""
        if self._rate.per_s == 0:
            return 0.0
        return max(0.0, (1 - self._level(key)) / self._rate.per_s)

    def take(self, key: str) -> None:
        """Take a token; `wait_s` must have said 0."""
        if self._rate.per_s == 0:
            return
        self._levels[key] = (self._level(key) - 1, self._clock.monotonic_s())
        self._levels.move_to_end(key)
        if len(self._levels) > _BUCKETS:
            self._levels.popitem(last=False)

    def _level(self, key: str) -> float:
        level, then_s = self._levels.get(key, (float(self._rate.burst), 0.0))
        gained = (self._clock.monotonic_s() - then_s) * self._rate.per_s
        return min(float(self._rate.burst), level + gained)


class RateLimit:
    """One limit for each address within an account, and one for the account as a whole."""

    def __init__(self, clock: Clock, per_address: Rate, per_account: Rate) -> None:
        self._addresses = Buckets(per_address, clock)
        self._accounts = Buckets(per_account, clock)

    def take(self, account: str, address: str) -> None:
        """Count one request. Raises SlowDown, and counts nothing, when it comes too early."""
        caller = f"{account}/{caller_of(address)}"
        wait_s = max(self._addresses.wait_s(caller), self._accounts.wait_s(account))
        if wait_s > 0:
            # A microsecond off: the sum of many fractions must not cost a whole second.
            raise SlowDown(
                "too many requests; wait and try again", retry_after_s=math.ceil(wait_s - 1e-6) or 1
            )
        self._addresses.take(caller)
        self._accounts.take(account)


def caller_of(address: str) -> str:
    """What counts as one caller: an IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_SITE_BITS), strict=False))
