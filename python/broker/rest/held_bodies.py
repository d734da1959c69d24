"""How many bytes of request bodies an API replica holds in memory, and whose they are.

A body is held from its first byte until its request is answered. Each has a bound of its own
(`BROKER_BODY_LIMIT_BYTES`); without one for all together, whoever sends many of them slowly takes that
times its connections. So they share so many bytes (`broker.concurrency.shares`): accounts are counted
apart, in an account callers without a token apart from users, and there each address and each user by
itself. Whatever strangers hold, there is room left for the request of somebody with a token.

What is streamed is not held: its reader takes it part by part. Nor is a small body that is there at once
(`SMALL_BYTES` of `broker.rest.request`): counting it would cost each publish three microseconds.
"""

from broker.concurrency.shares import Asker, Shares
from broker.domain.callers import caller_of
from broker.domain.users import Principal

_REFUSAL = "too many request bodies are being read; try again"


class HeldBodies:
    """The bodies of one replica."""

    def __init__(self, most_bytes: int, body_bytes: int) -> None:
        """None is held.

        Args:
            most_bytes: of all together. One caller may hold a third of it, and those of one account a half.
            body_bytes: the longest body, for which there is room in any case.
        """
        self._most_bytes = max(most_bytes, 4 * body_bytes)
        self._shares = Shares(self._most_bytes, _REFUSAL)

    @property
    def held_bytes(self) -> int:
        """The bytes that are held now."""
        return self._most_bytes - self._shares.free

    def begin(self) -> "HeldBody":
        """A body of which nothing is held yet. Whoever begins it releases it."""
        return HeldBody(self._shares)


class HeldBody:
    """The body of one request."""

    __slots__ = ("_asker", "_bytes", "_shares", "_whose")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._whose: tuple[Principal, str] | None = None
        self._asker: Asker | None = None
        self._bytes = 0

    def belong_to(self, principal: Principal, address: str) -> None:
        """Say whose it is, before any of it is held."""
        self._whose = principal, address

    def take(self, size: int) -> None:
        """Hold so many bytes more. Raises Unavailable where there is no room for them."""
        if self._asker is None:
            assert self._whose is not None, "the door says whose a body is before it reads it"
            self._asker = _asker(*self._whose)
        self._shares.take(self._asker, size)
        self._bytes += size

    def release(self) -> None:
        """Hold none of it any more."""
        if self._asker is not None and self._bytes:
            self._shares.give_back(self._asker, self._bytes)
            self._bytes = 0


def _asker(principal: Principal, address: str) -> Asker:
    if principal.subject is None:
        return Asker(f"{principal.account}/anybody", caller_of(address))
    return Asker(principal.account, principal.subject)
