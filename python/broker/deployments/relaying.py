"""A gateway among many: whom it follows, and how others follow it."""

from collections.abc import Iterator, Sequence

import ray

from broker.actors.link import NamedLink
from broker.deployments.compose import Opened
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.owners.calls import SESSION_CALLS, SessionCalls
from broker.owners.feed import Feed, Sink
from broker.owners.linked_feed import LinkedFeed
from broker.owners.relay import Relay
from broker.owners.upstreams import OwnRelay, Upstreams
from broker.rpc.listener import Listener
from broker.rpc.wire import Address
from broker.storage.gateways import GatewayRow


class Relaying:
    """The relay of a gateway's process, its listener, and the choice of relays. `close` it on its loop.

    Nothing is followed and nobody listens before another gateway asks for it, or this one is a relay itself.
    """

    def __init__(self, opened: Opened, actor: str) -> None:
        """Hear of gateways from now on. `actor` is the name of the actor of this process."""
        services = opened.services
        settings, clock, ids = services.settings, services.clock, services.ids
        self._opened = opened
        self._relay = Relay(settings, clock, ids, placement=opened.placement)
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray leaves it without types
        self._listener: Listener[SessionCalls] = Listener(host, SESSION_CALLS, self._relay)
        self._upstreams = Upstreams(
            actor,
            settings.relay_from,
            clock,
            lambda name: NamedLink(name, SESSION_CALLS),
            OwnRelay(self._relay),
        )
        services.known_gateways.on_read(self._learn)
        opened.exporter.add(self.figures)

    def make_feed(self, sink: Sink) -> Feed:
        """The feed of the gateway's own clients."""
        services = self._opened.services
        return LinkedFeed(
            services.settings,
            services.clock,
            services.ids,
            sink,
            placement=self._opened.placement,
            upstreams=self._upstreams,
        )

    async def address(self) -> Address:
        """Where others follow this gateway. Raises OSError."""
        return await self._listener.address()

    def figures(self) -> Iterator[Sample]:
        """What the relay has to tell now."""
        yield Sample(catalogue.RELAY_SESSIONS.name, (), self._relay.sessions)

    async def close(self) -> None:
        """End all sessions of others."""
        await self._listener.close()
        await self._relay.close()

    def _learn(self, rows: Sequence[GatewayRow]) -> None:
        """Take over who is there. Gateways of the version before have no actor, and are left out."""
        there = [row.actor for row in rows if row.actor and not row.draining]
        self._upstreams.learn(there, [row.actor for row in rows if row.draining])
