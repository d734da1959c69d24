"""Gateways on the nodes of the cluster: one per node, replaced when it dies, exchanged without a gap.

A gateway owns its port with SO_REUSEPORT, so two of one node can listen at a time: an exchange starts the new
one, then drains the old one, whose clients reconnect to the new one over `drain_s` seconds and go on where
they were. That, and connections that live for hours, is why gateways are actors with a reconciler and not
replicas of Ray Serve, which knows replicas that are stopped first and proxies that reload.

A node that drains (`ray drain-node`) has its gateway drained and gets no other.

On a joined cluster gateways outlive the reconciler. When one dies, Ray starts another process for it, which
takes connections by itself; a reconciler that is there starts a gateway as on a Ray of our own, then drains
that of Ray. One that hangs is killed by an API replica of its node (`gateway_watch`).
"""

import asyncio
import gc
import logging
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from broker import timers
from broker.actors.named import NAMESPACE, find_actor, kill, list_names, live_nodes
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.periodic import Periodic
from broker.concurrency.tasks import run_once
from broker.deployments.ingress_check import find_ingress_fault
from broker.deployments.node_address import on_this_node
from broker.deployments.ray_internals.draining import list_draining
from broker.deployments.ray_internals.haproxy import CONNECT_FILE
from broker.logs import configure_logs
from broker.metrics.counts import GATEWAY_REPLACEMENTS
from broker.settings import Settings
from broker.setup_error import SetupError

if TYPE_CHECKING:
    from broker.deployments.compose import Opened
    from broker.deployments.connect_door import ConnectDoor
    from broker.deployments.relaying import Relaying
    from broker.gateway.gateway import Gateway
    from broker.rpc.wire import Address

_PREFIX = "gateway-"
_START_S = 60.0
_DRAIN_GRACE_S = 10.0
_INGRESS_S = 30.0  # until an ingress has started on another node
_ROUND_S = 5.0  # between two looks for new nodes
_LOOK_S = 4.0  # between two looks at a gateway
_HUNG_S = 10.0  # without an answer; Ray watches over processes, not over what does not answer
_RETURN_S = 2.0  # before another try of a gateway that no process watches
_RETRY = Backoff(0.5, 10.0, jitter=0)

_log = logging.getLogger(__name__)
# Objects more than there were. At Python's 700 a text of lists within lists is read six times as slowly.
_COLLECT_AFTER = 20_000


class GatewayActor:
    """One gateway in a process of its own."""

    def __init__(self, settings: Settings, dsn: str) -> None:
        configure_logs(settings, "gateway")
        self._settings = on_this_node(settings)
        self._dsn = dsn
        self._ended = asyncio.Event()
        self._opened: Opened | None = None
        self._gateway: Gateway | None = None
        self._watch: Periodic | None = None  # of the certificate of this node's ingress
        self._door: ConnectDoor | None = None
        self._relaying: Relaying | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._returning = run_once("gateway", self._return())

    async def _return(self) -> None:
        """Take connections in the place of a process that died: nobody may be there to say so.

        What fails, as while the database is unavailable, is tried again in another process.
        """
        try:
            await self.start()
        except Exception as error:
            _log.error("gateway_not_started", extra={"cause": _first_line(error), "retry_s": _RETURN_S})
            await asyncio.sleep(_RETURN_S)
            os._exit(1)

    async def start(self) -> int:
        """Take connections; returns the port."""
        # Not above: the conductor, which names this class and no more, would hold it all.
        from broker.deployments.compose import open_services
        from broker.deployments.connect_door import ConnectDoor
        from broker.deployments.ray_internals.departures import ingress_directory
        from broker.deployments.relaying import Relaying
        from broker.gateway.gateway import Gateway
        from broker.resources.catalogue import build_registry

        timers.allow_late(timers.EXACT_S)  # of the event loops too, which it starts
        gc.set_threshold(_COLLECT_AFTER)
        self._opened = opened = await open_services(self._settings, self._dsn, "gateway")
        services = opened.services
        actor = ray.get_runtime_context().get_actor_name() or ""
        self._relaying = relaying = Relaying(opened, actor)
        self._gateway = Gateway(services, build_registry(), relaying.make_feed, actor=actor)
        opened.exporter.add(self._gateway.figures)
        if self._settings.http_tls_port:
            from broker.deployments.ingress_certificate import IngressCertificate

            certificate = IngressCertificate(self._settings)
            opened.exporter.add(certificate.figures)
            self._watch = Periodic("http certificate", _LOOK_S, certificate.look)
            self._watch.start()
        port = await self._gateway.start()
        directory = ingress_directory()
        if directory is not None:
            known, key = services.known_gateways, services.settings.ingress_key
            self._door = ConnectDoor(self._gateway, known, services.clock, key)
            try:
                self._door.open(directory / CONNECT_FILE)
            except (OSError, SetupError) as error:  # then the API answers
                _log.warning("gateway_answers_no_connects", extra={"cause": str(error)})
        return port

    async def address(self) -> "Address":
        """Where other gateways follow this one. Raises OSError, and RuntimeError before it has started."""
        if self._relaying is None:
            raise RuntimeError("the gateway has not started")
        return await self._relaying.address()

    async def run(self) -> None:
        """Return when the gateway has stopped: who waits for it learns at once when its process dies."""
        await self._ended.wait()

    async def process_id(self) -> int:
        """The process that is to be killed when this is not answered."""
        return os.getpid()

    async def find_fault(self) -> str:
        """What is wrong with it for good; empty when nothing is. A loop that hangs does not answer."""
        return "" if self._gateway is None else self._gateway.find_fault()

    async def ingress_fault(self) -> str:
        """What is wrong with the ingress of this node; empty when nothing is."""
        return await find_ingress_fault(self._settings, _INGRESS_S)

    async def drain(self, over_s: float) -> None:
        """Send the clients away over `over_s` seconds; returns when they have gone."""
        if self._door is not None:
            await self._door.close()
        if self._gateway is not None:
            await self._gateway.drain(over_s)

    async def stop(self) -> None:
        """Close everything."""
        if self._door is not None:
            await self._door.close()
        if self._watch is not None:
            await self._watch.stop()
        if self._gateway is not None:
            await self._gateway.stop()
        if self._relaying is not None:
            await self._relaying.close()
        if self._opened is not None:
            await self._opened.close()
        self._ended.set()


class GatewayAiling(Exception):
    """A gateway answers, but a part of it is dead; the rest goes on until there is another."""


@dataclass(slots=True, eq=False)
class _Running:
    """A gateway that takes connections; `ended` ends when its process does, or it hangs or is ailing."""

    name: str
    node: str
    actor: Any
    ended: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.ensure_future(_until_ended(self.actor))


class GatewayKeeper:
    """Keeps one gateway on each node. `start`, then `run` in a task; `roll` and `drain` at any time."""

    def __init__(self, settings: Settings, dsn: str, *, outlive_driver: bool) -> None:
        """Nothing is started yet.

        Args:
            outlive_driver: whether gateways go on without this process, as on a joined cluster.
        """
        self._settings = settings
        self._dsn = dsn
        self._outlive_driver = outlive_driver
        self._running: dict[str, _Running] = {}
        # Until there is another on their node. Also those that have died on a joined cluster: Ray may have
        # started the next process of each already, which has clients.
        self._outgoing: list[_Running] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()  # one change of the set at a time

    @property
    def count(self) -> int:
        """Gateways that take connections."""
        return len(self._running)

    async def start(self) -> None:
        """Start a gateway on every node, and send away those that an earlier process left.

        Raises:
            RayError: one does not start; nothing is retried here.
        """
        left = await asyncio.to_thread(_list_left)
        async with self._lock:
            await asyncio.gather(*(self._start_while_there(node) for node in _staying_nodes()))
        await asyncio.gather(*(self._retire(actor) for actor in left))

    async def require_our_ingresses(self) -> None:
        """Return when the ingress of every node is ours.

        Raises:
            SetupError: one is not; it names the node.
        """
        running = list(self._running.values())
        for each, fault in zip(running, await asyncio.gather(*map(_ingress_fault, running)), strict=True):
            if fault:
                raise SetupError(f"the node {each.node[:12]}: {fault}")

    async def run(self) -> None:
        """Replace gateways that died and add those of new nodes, until cancelled."""
        delays = Delays(_RETRY)
        while True:
            try:
                async with self._lock:
                    await self._reconcile()
                delays.reset()
            except (RayError, TimeoutError) as error:
                wait_s = delays.next_s()
                _log.error("gateway_not_started", extra={"cause": _first_line(error), "retry_s": wait_s})
                await asyncio.sleep(wait_s)
            else:
                # The last one may have ended, and none been started on a node that is about to go.
                ended = [each.ended for each in self._running.values()] or [asyncio.Future()]
                await asyncio.wait(ended, timeout=_ROUND_S, return_when=asyncio.FIRST_COMPLETED)

    def use(self, settings: Settings) -> None:
        """Give these settings to the gateways that are started from now on."""
        self._settings = settings

    async def roll(self) -> None:
        """Exchange every gateway for a new one, one node after the other. Raises RayError."""
        async with self._lock:  # one that is about to start has what was there before, too
            nodes = list(self._running)
        for node in nodes:
            async with self._lock:
                old = self._running.get(node)
                if old is None:
                    continue
                await self._start_on(node)
            old.ended.cancel()
            await self._retire(old.actor)

    async def drain(self, over_s: float) -> None:
        """Send all clients away and stop all gateways."""
        async with self._lock:
            running, self._running = [*self._running.values(), *self._outgoing], {}
            self._outgoing.clear()
        await asyncio.gather(*(self._retire(each.actor, over_s) for each in running), *self._retiring)
        for each in running:
            each.ended.cancel()

    async def _reconcile(self) -> None:
        draining = await asyncio.to_thread(list_draining)
        nodes = set(live_nodes())
        for node in draining & nodes & self._running.keys():
            running = self._running.pop(node)
            _log.info("gateway_drained", extra={"gateway": running.name, "node": node})
            running.ended.cancel()
            self._retire_beside(running)
        nodes -= draining
        for node, running in list(self._running.items()):
            if running.ended.done() or node not in nodes:
                GATEWAY_REPLACEMENTS.add()
                error = _find_error(running.ended)
                is_ailing = isinstance(error, GatewayAiling)
                cause = str(error) if is_ailing else ""
                _log.warning("gateway_died", extra={"gateway": running.name, "node": node, "cause": cause})
                del self._running[node]
                running.ended.cancel()
                hangs = isinstance(error, TimeoutError)
                if node in nodes and (is_ailing or (self._outlive_driver and not hangs)):
                    self._outgoing.append(running)
                else:
                    kill(running.actor)
        for node in nodes - self._running.keys():
            await self._start_on(node)
        while self._outgoing:
            self._retire_beside(self._outgoing.pop())

    def _retire_beside(self, running: _Running) -> None:
        """Drain and stop it while everything else goes on."""
        task = run_once("retire gateway", self._retire(running.actor))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _start_while_there(self, node: str) -> None:
        """`_start_on`, unless the node dies: a GCS that was restarted lists those that died with it."""
        start = asyncio.ensure_future(self._start_on(node))
        try:
            while not (await asyncio.wait([start], timeout=_LOOK_S))[0]:
                if await _is_gone(node):
                    return
            if start.exception() is None or not await _is_gone(node):
                await start
        finally:
            if not start.done():
                _log.warning("node_died", extra={"node": node})
                start.cancel()
                await asyncio.wait([start])

    async def _start_on(self, node: str) -> None:
        name = f"{name_prefix(node)}{secrets.token_hex(3)}"
        options: dict[str, Any] = {"lifetime": "detached"} if self._outlive_driver else {}
        kind: Any = ray.remote(GatewayActor)
        kind = kind.options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=0,
            # The reconciler starts another, which also knows of a node that is gone. See above.
            max_restarts=-1 if self._outlive_driver else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            **options,
        )
        actor = await asyncio.to_thread(kind.remote, self._settings, self._dsn)
        try:
            await asyncio.wait_for(_wait(actor.start.remote()), _START_S)
        except BaseException:
            kill(actor)
            raise
        self._running[node] = _Running(name, node, actor)

    async def _retire(self, actor: Any, over_s: float | None = None) -> None:
        over_s = self._settings.drain_s if over_s is None else over_s
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(_wait(actor.drain.remote(over_s)), over_s + _DRAIN_GRACE_S)
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(_wait(actor.stop.remote()), _DRAIN_GRACE_S)
        kill(actor)


def name_prefix(node: str) -> str:
    """How the names of all gateways of a node begin."""
    return f"{_PREFIX}{node[:12]}-"


def _staying_nodes() -> list[str]:
    draining = list_draining()
    return [node for node in live_nodes() if node not in draining]


async def _is_gone(node: str) -> bool:
    return node not in await asyncio.to_thread(live_nodes)


async def _until_ended(actor: Any) -> None:
    """Return when the gateway has stopped.

    Raises:
        RayError: it died.
        TimeoutError: it hangs.
        GatewayAiling: it has to be exchanged.
    """
    run = asyncio.ensure_future(_wait(actor.run.remote()))
    try:
        while not (await asyncio.wait([run], timeout=_LOOK_S))[0]:
            if fault := await asyncio.wait_for(_wait(actor.find_fault.remote()), _HUNG_S):
                raise GatewayAiling(fault)
        await run
    finally:
        run.cancel()


def _find_error(ended: asyncio.Future[None]) -> BaseException | None:
    """What `_until_ended` has raised; None while it waits, and when it was cancelled or returned."""
    return None if not ended.done() or ended.cancelled() else ended.exception()


async def _ingress_fault(running: _Running) -> str:
    try:
        fault: str = await asyncio.wait_for(_wait(running.actor.ingress_fault.remote()), 2 * _INGRESS_S)
    except (RayError, TimeoutError) as error:
        return f"its ingress cannot be looked at: {_first_line(error)}"
    return fault


async def _wait(reference: Any) -> Any:
    """The result of an actor's call; raises what it raised."""
    return await reference


def _list_left() -> list[Any]:
    """Gateways of a `broker up` that has gone, on a cluster that has not."""
    return [actor for actor in map(find_actor, list_names(_PREFIX)) if actor is not None]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
