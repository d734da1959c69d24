"""A gateway as a Ray actor: one per node, pinned to it, owning its port.

The actor is thin: Ray starts it, finds it and restarts it; everything else is `broker.gateway`. Viewers never
go through Ray. The port is shared (`SO_REUSEPORT`), so that a successor takes connections while its
predecessor drains.

Whoever supervises gateways calls `start`, which is idempotent, after making the actor and again whenever
`ping` says that it does not serve: Ray restarts a dead actor, but only its constructor runs by itself.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from broker.gateway.gateway import Gateway
from broker.operations.registry import Registry
from broker.operations.services import Services
from broker.owners.feed import Feed, Sink
from broker.settings import Settings

_log = logging.getLogger(__name__)

CALLS_AT_ONCE = 16  # start, stats and pings must get through while a drain waits


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What a gateway is made of; the composition root knows how to make it."""

    services: Services
    registry: Registry
    make_feed: Callable[[Sink], Feed]


OpenParts = Callable[[Settings], AbstractAsyncContextManager[GatewayParts]]
"""Opens the parts in the actor's process and closes them at its end; a function that can be pickled."""


class GatewayActor:
    """The methods that the supervisor calls; see the module's docstring. Made by `make_gateway_actor`."""

    def __init__(
        self, settings: Settings, open_parts: OpenParts, port: int | None = None, url: str | None = None
    ) -> None:
        self._settings = settings
        self._open_parts = open_parts
        self._port = port
        self._url = url
        self._stack = AsyncExitStack()
        self._gateway: Gateway | None = None
        self._bound_port = 0
        self._life = asyncio.Lock()

    async def start(self) -> int:
        """Serve, and return the port; at once when it serves already.

        Raises:
            Unavailable: the database cannot be reached.
            OSError: the port cannot be had.
        """
        async with self._life:
            if self._gateway is None:
                await self._start()
            return self._bound_port

    async def ping(self) -> bool:
        """Whether the gateway serves."""
        return self._gateway is not None

    async def stats(self) -> dict[str, Any]:
        """See `Gateway.stats`; empty while it does not serve."""
        return {} if self._gateway is None else self._gateway.stats()

    async def drain(self, over_s: float) -> None:
        """Send the clients elsewhere within `over_s` seconds; returns when they have left or time is up."""
        if self._gateway is not None:
            await self._gateway.drain(over_s)

    async def stop(self) -> None:
        """Close what is open. Idempotent; `start` begins anew."""
        async with self._life:
            await self._stop()

    async def exit(self, drain_s: float) -> None:
        """Drain, stop, and end the process without Ray starting it again."""
        await self.drain(drain_s)
        await self.stop()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]  # Ray has no annotations here

    async def _start(self) -> None:
        stack = AsyncExitStack()
        try:
            parts = await stack.enter_async_context(self._open_parts(self._settings))
            gateway = Gateway(parts.services, parts.registry, parts.make_feed, port=self._port, url=self._url)
            stack.push_async_callback(gateway.stop)
            self._bound_port = await gateway.start()
        except BaseException:
            await stack.aclose()
            raise
        self._stack, self._gateway = stack, gateway
        _log.info("gateway_started", extra={"port": self._bound_port})

    async def _stop(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await self._stack.aclose()
            _log.info("gateway_stopped", extra={"port": self._bound_port})


def make_gateway_actor(
    name: str,
    node_id: str,
    settings: Settings,
    open_parts: OpenParts,
    *,
    port: int | None = None,
    url: str | None = None,
) -> Any:
    """The handle of the actor `name` on a node, made when there is none.

    Args:
        node_id: hexadecimal id of the Ray node; the actor never runs elsewhere.
        port: to listen on; None takes the setting.
        url: of this node's endpoint; None makes it from the settings.
    """
    return (
        ray.remote(GatewayActor)
        .options(
            name=name,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CALLS_AT_ONCE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(settings, open_parts, port, url)
    )
