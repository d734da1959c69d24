"""Limits failed log-ins per minute, for each user name and each address, over all processes.

A try is judged before its password is checked, once more when that check's turn has come, which spares the
processor, and again afterwards, which makes the limit exact: of many tries at the same time, no more than the
limit are told whether they were wrong.
A refused try does not count, so a name is free again a minute after the last counted one at the latest.
"""

import hashlib
from dataclasses import dataclass

from broker.clock import Clock
from broker.errors import SlowDown
from broker.metrics.counts import RATE_LIMITED
from broker.storage.login_failures import LoginFailures

WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """Failed tries in a minute; the next one is refused."""

    per_user: int = 10
    per_address: int = 30


@dataclass(frozen=True, slots=True)
class Try:
    """One try to log in: the account, and its subjects (keyed hashes) with their limits."""

    account: str
    limits: dict[bytes, int]


class LoginThrottle:
    """Counts and refuses. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, failures: LoginFailures, clock: Clock, config: ThrottleConfig) -> None:
        self._failures = failures
        self._clock = clock
        self._config = config

    def build_try(self, account: str, name: str, address: str, secret: bytes, kind: str = "user") -> Try:
        """The try of a name from an address; an empty address is that of no peer and has no limit.

        Args:
            kind: of what `name` is the name; names of different kinds are different subjects.
        """
        limits = {_subject(secret, kind, name): self._config.per_user}
        if address:
            limits[_subject(secret, "address", address)] = self._config.per_address
        return Try(account, limits)

    async def check(self, attempt: Try) -> None:
        """Raise SlowDown while the name or the address is at its limit."""
        _refuse_if(await self._failures.wait_ms(attempt.account, attempt.limits, self._clock.now_ms()))

    async def record_failure(self, attempt: Try) -> None:
        """Count a failed try. Raises SlowDown, and counts nothing, where the limit has been met meanwhile."""
        _refuse_if(await self._failures.record(attempt.account, attempt.limits, self._clock.now_ms()))

    async def purge(self) -> None:
        """Delete what counts no more."""
        await self._failures.purge(self._clock.now_ms())


def _refuse_if(wait_ms: int) -> None:
    if wait_ms > 0:
        RATE_LIMITED.add("login_failures")
        raise SlowDown("too many failed log-ins; wait and try again", retry_after_s=-(-wait_ms // 1000))


def _subject(secret: bytes, kind: str, text: str) -> bytes:
    message = f"{kind}:{text}".encode(errors="surrogatepass")
    return hashlib.blake2b(message, digest_size=16, key=secret).digest()
