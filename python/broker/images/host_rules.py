"""The hosts from which an account allows images."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from broker.fetching.errors import ForbiddenUrl
from broker.fetching.network import Hop
from broker.fetching.urls import ParsedUrl, parse_url

MAX_HOSTS = 100
_HOST = re.compile(r"(\*\.)?(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostRules:
    """The hosts of one account; none named means any public one.

    Attributes:
        exact: such as `cdn.example.com`.
        below: such as `example.com` for `*.example.com`, which covers every host below it and not itself.
    """

    exact: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> Self:
        """Raises ValueError for an entry that is neither a host name nor `*.` before one."""
        exact, below = set(), []
        for entry in entries:
            if not _HOST.fullmatch(entry):
                raise ValueError(f"{entry}: must be a host name, or *. before one")
            if entry.startswith("*."):
                below.append(entry[2:])
            else:
                exact.add(entry)
        return cls(frozenset(exact), tuple(sorted(below)))

    def check(self, url: str) -> None:
        """Raises InvalidUrl or ForbiddenUrl for a URL that this account does not take."""
        self.check_target(parse_url(url))

    def allows(self, hops: Iterable[Hop]) -> bool:
        """Whether this account takes what came over these servers."""
        return self._takes_any or all(self._covers(hop.host) for hop in hops)

    def check_target(self, target: ParsedUrl) -> None:
        """Raises ForbiddenUrl where the host, be it of a redirect, is not one of the account's."""
        if not self._covers(target.host):
            raise ForbiddenUrl("the account does not allow images from this host")

    @property
    def _takes_any(self) -> bool:
        return not self.exact and not self.below

    def _covers(self, host: str) -> bool:
        if self._takes_any:
            return True
        host = host.removesuffix(".")
        return host in self.exact or any(host.endswith(f".{name}") for name in self.below)
