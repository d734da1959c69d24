"""Whom a gateway follows: owners themselves or, where there are many gateways, a relay.

The relays are computed from the list of gateways (`broker.domain.relays`). A gateway takes the first of its
order whose link has not failed lately, and the owner when three have. Each poller of its feed has a
`SessionRoute`, which says where its next session is. Wherever that is, it begins with the poller's cursors,
so nothing is lost or doubled on the way; a relay that does not know them is left alone for some seconds,
which the poller spends at the owner.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from broker.actors.link import Link, LinkLost
from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.domain.relays import choose_relays, rank_relays
from broker.owners.calls import SessionCalls

KEPT_S = 15.0
"""How long a gateway counts that is listed no more: after PostgreSQL crashes the list is empty at first."""
AVOIDED_S = 30.0
"""How long a relay is not tried whose link has failed; one that has died is out of the list by then."""
_TRIES = 3
_RETIRED_S = 60.0  # a session ends with the poll that is under way
_DIRECT = Backoff(5.0, 60.0, jitter=0.5)  # at the owner, after a relay could not go on from the cursors


class Upstreams:
    """The relay that this gateway follows. Belongs to one event loop; `close` it there."""

    def __init__(
        self, name: str, relay_from: int, clock: Clock, open_link: Callable[[str], Link], own: Link
    ) -> None:
        """Follow owners until `learn` is told of enough gateways.

        Args:
            name: this gateway's in the list.
            relay_from: with so many gateways there are relays; 0 is never.
            open_link: makes the link to the relay of this name; it connects by itself.
            own: the way to the relay in this process.
        """
        self._name = name
        self._relay_from = relay_from
        self._clock = clock
        self._open_link = open_link
        self._own = own
        self._seen_s: dict[str, float] = {}
        self._ranked: list[str] = []
        self._links: dict[str, Link] = {}
        self._avoided_s: dict[str, float] = {}  # until when
        self._retired_s: dict[Link, float] = {}  # since when

    def learn(self, gateways: Collection[str], leaving: Collection[str] = ()) -> None:
        """Take over the list of gateways, without those that drain, which are `leaving`."""
        now_s = self._clock.monotonic_s()
        before, seen_s = self._seen_s.keys(), self._seen_s | dict.fromkeys(gateways, now_s)
        known = {name: at_s for name, at_s in seen_s.items() if now_s - at_s < KEPT_S and name not in leaving}
        self._seen_s = known
        self._close_retired(now_s)
        if known.keys() == before:
            return
        ranked = rank_relays(self._name, choose_relays(known, self._relay_from))[:_TRIES]
        for name in self._links.keys() - set(ranked):
            self._avoided_s.pop(name, None)
            self._retired_s[self._links.pop(name)] = now_s
        self._ranked = ranked

    def best(self) -> Link | None:
        """The relay to follow now; None is the owner."""
        now_s = self._clock.monotonic_s()
        for name in self._ranked:
            if self._avoided_s.get(name, 0.0) <= now_s:
                return self._links.get(name) or self._make_link(name)
        return None

    def avoid(self, link: Link) -> None:
        """Do not choose the relay behind this link for a while: it does not answer."""
        for name, each in self._links.items():
            if each is link:
                self._avoided_s[name] = self._clock.monotonic_s() + AVOIDED_S

    def close(self) -> None:
        """End the links."""
        self._ranked = []
        for link in (*self._links.values(), *self._retired_s):
            link.close()

    def _close_retired(self, now_s: float) -> None:
        """Close the links that no session has any more."""
        for link, since_s in list(self._retired_s.items()):
            if now_s - since_s >= _RETIRED_S:
                del self._retired_s[link]
                link.close()

    def _make_link(self, name: str) -> Link:
        link = self._links[name] = self._own if name == self._name else self._open_link(name)
        return link


class SessionRoute:
    """Where the sessions of one poller are: at its owner, or at a relay.

    Attributes:
        link: the way of the present session, and of its calls.
    """

    def __init__(self, owner: Link, upstreams: Upstreams | None, clock: Clock) -> None:
        self.link = owner
        self._owner = owner
        self._upstreams = upstreams
        self._clock = clock
        self._delays = Delays(_DIRECT)
        self._direct_until_s = 0.0

    @property
    def is_relayed(self) -> bool:
        """Whether the present session is at a relay."""
        return self.link is not self._owner

    @property
    def is_best(self) -> bool:
        """Whether the present session is where the next one would be."""
        return self._upstreams is None or self._choose(self._upstreams) is self.link

    def choose(self) -> None:
        """Choose the way of the next session."""
        if self._upstreams is not None:
            self.link = self._choose(self._upstreams)

    def opened(self) -> None:
        """The other side has begun the session, from all cursors."""
        if self.is_relayed:
            self._delays.reset()

    def lost(self) -> None:
        """The session's link has failed."""
        if self.is_relayed and self._upstreams is not None:
            self._upstreams.avoid(self.link)

    def refused(self) -> None:
        """The session's other side does not go on with it: a relay is left to the owner for a while."""
        if self.is_relayed:
            self._direct_until_s = self._clock.monotonic_s() + self._delays.next_s()

    def _choose(self, upstreams: Upstreams) -> Link:
        if self._direct_until_s > self._clock.monotonic_s():
            return self._owner
        return upstreams.best() or self._owner


class OwnRelay:
    """The link of a gateway to the relay in its own process. Nothing is open, and so nothing is closed."""

    def __init__(self, relay: SessionCalls) -> None:
        self._relay = relay

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method of the relay, as over a link to another process. Raises LinkLost."""
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self._relay, method)(*arguments)
        except TimeoutError as error:
            raise LinkLost(method) from error

    def close(self) -> None:
        """Leave the relay to who has made it."""
