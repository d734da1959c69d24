"""The parts that run on Ray (owners, counters, gateways, the API): start, watch, exchange, stop.

All but the stop needs the lease of the conductor (`broker.deployments.leased_tasks`).
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from ray.exceptions import RayError

from broker import timers
from broker.actors.named import list_nodes
from broker.actors.pool import SlotPool
from broker.clock import SystemClock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import cancel_and_wait, keep_running, run_once
from broker.deployments import gateways, serve_app
from broker.deployments.ingress import IMAGES
from broker.deployments.ingress_check import (
    forget_faults,
    is_routed,
    require_not_taken,
    require_our_ingress,
    start_unless_refused,
)
from broker.deployments.leased_tasks import LeasedTasks
from broker.deployments.ray_internals import ray_cluster
from broker.deployments.ray_internals.draining import list_draining
from broker.deployments.ray_internals.joined_spares import keep_spares
from broker.deployments.reload_plan import keep_from_start
from broker.errors import Unavailable
from broker.logs import configure_logs
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.metrics.exporter import Exporter
from broker.operations.image_state import CONDUCTOR
from broker.owners.actor import OwnerActor
from broker.owners.placement import OWNER
from broker.settings import Settings
from broker.voting.counting.actor import CounterActor
from broker.voting.counting.placement import COUNTER

if TYPE_CHECKING:
    from broker.deployments.scaling import OwnerScaling

_STOP_S = 11.0  # for everything; `broker up` has four more
_DRAIN_LIMIT_S = 6.0
_IMAGES_S = 30.0  # that a start waits for the image proxy before it is over without
_IMAGES_LOOK_S = 60.0  # what Serve has given up is started again by us; a look takes tens of ms of CPU
_IMAGES_RETRY = Backoff(0.5, 60.0, jitter=0)
_ROUTED_S = 10.0  # for a change of the ingress
_SCALE_LOOK_S = 1.0  # for another number of owners; a row by its key
_SCALE_RETRY = Backoff(1.0, 10.0, jitter=0)
_LATE_S = 0.3  # timers once all runs: what is left are looks every few seconds

_log = logging.getLogger(__name__)


class Parts:
    """All parts of one instance. `run` once."""

    def __init__(
        self, settings: Settings, local: ray_cluster.LocalRay | None, *, succeeds: bool = False
    ) -> None:
        """Nothing is started yet.

        Args:
            local: the Ray of our own; None on a joined cluster.
            succeeds: whether another conductor still serves, whose Ray is damaged.
        """
        self._settings = settings
        self._local = local
        self._succeeds = succeeds
        self._stopping = asyncio.Event()
        self._is_abandoned = False
        self._dsn: asyncio.Future[str] | None = None
        self._rolls = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leased = LeasedTasks()
        self._term: int | None = None
        self._gateways: gateways.GatewayKeeper | None = None
        self._owners: SlotPool | None = None
        self._counters: SlotPool | None = None
        self._scaling: OwnerScaling | None = None
        self._api_started = False
        self._has_images = asyncio.Event()

    async def run(self) -> None:
        """Return when everything has been stopped. Raises what made a part fail to start."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        self._dsn = loop.create_future()
        commands = asyncio.create_task(self._read_commands())
        leased = keep_running("lease", self._leased.run)
        start = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
                tell({"ready": True})
                await stopping
        finally:
            await cancel_and_wait(start, stopping, commands, leased, *self._tasks)
            with suppress(TimeoutError):
                if self._may_stop():
                    await asyncio.wait_for(self._stop(), _STOP_S)

    def _may_stop(self) -> bool:
        """Whether what runs is ours: on a joined cluster, another conductor may have taken it over."""
        return self._local is not None or (self._leased.is_held and not self._is_abandoned)

    async def _start(self) -> None:
        assert self._dsn is not None
        # Connect to Ray, and wait for the database and the right to conduct on it.
        await asyncio.to_thread(self._connect)
        tell({"part": "ray", "detail": self._settings.ray_address or "local"})
        exporter = Exporter(CONDUCTOR, CONDUCTOR, self._settings.data_dir, SystemClock(), [self._figures])
        await exporter.start()
        dsn = await self._dsn
        await self._leased.until_held()
        await self._leased.within(self._start_parts(dsn))
        if not self._succeeds:
            await self._wait_for_images()

    async def _start_parts(self, dsn: str) -> None:
        # Refuse what cannot succeed, then describe the parts; nothing starts yet.
        joined = self._local is None
        if joined:
            nodes = await asyncio.to_thread(list_nodes)
            await require_not_taken(self._settings, [node.host for node in nodes])
        self._api_started = True
        # Not above: it brings the database's driver, which is not needed to start Ray.
        from broker.deployments.scaling import OwnerScaling

        self._scaling = await OwnerScaling.open(dsn, SystemClock(), self._settings.owners)
        owners = await self._scaling.begin()
        options: dict[str, Any] = {"detached": joined, "term": self._term}
        if joined:
            options["list_leaving"] = list_draining
        self._owners = SlotPool(OWNER, OwnerActor, owners, self._settings, dsn, **options)
        self._counters = SlotPool(
            COUNTER, CounterActor, self._settings.counters, self._settings, dsn, **options, first_node=1
        )
        self._gateways = gateways.GatewayKeeper(self._settings, dsn, outlive_driver=joined)
        slots = (
            self._part("owners", self._owners.start, lambda: f"{owners} of them"),
            self._part("counters", self._counters.start, lambda: f"{self._settings.counters} of them"),
        )
        doors = (
            self._part("gateways", self._gateways.start, self._gateway_detail),
            self._start_http(dsn),
        )
        # Start them, side by side.
        if self._succeeds:
            # The one before goes on until its slots are taken: that is the last thing, so that it is short.
            await asyncio.gather(*doors)
            await self._wait_for_images()
            await asyncio.gather(*slots)
        else:
            await asyncio.gather(*slots, *doors)
        if joined:
            await self._gateways.require_our_ingresses()
        # Watch them from now on.
        self._leased.keep("gateways", self._gateways.run)
        self._leased.keep("owners", self._owners.watch)
        self._leased.keep("scaling", self._scale)
        self._leased.keep("counters", self._counters.watch)
        if self._local is not None:  # a joined cluster may serve more than us
            timers.allow_late(_LATE_S)
            self._keep(keep_running("spare worker", self._local.workers.keep_spare))
            self._keep(keep_running("fork server", self._local.workers.keep_server))
            self._keep(run_once("damaged Ray", self._tell_lost(self._local)))
        else:
            self._leased.keep("spare workers", keep_spares)

    async def _wait_for_images(self) -> None:
        """Wait for the image proxy, but not for long: a product without it is ready, too."""
        try:
            await asyncio.wait_for(self._has_images.wait(), _IMAGES_S)
        except TimeoutError:
            tell({"warning": "no images are made yet; the log says why"})

    async def _part(self, name: str, start: Callable[[], Awaitable[None]], detail: Callable[[], str]) -> None:
        await start()
        tell({"part": name, "detail": detail()})

    async def _start_http(self, dsn: str) -> None:
        """Start the API, and begin to start the image proxy, without which everything goes on."""
        await self._part("api", lambda: self._start_api(dsn), lambda: f"port {self._settings.http_port}")
        self._leased.keep("images", lambda: self._keep_images(dsn))

    async def _start_api(self, dsn: str) -> None:
        await asyncio.to_thread(forget_faults)
        await start_unless_refused(asyncio.to_thread(serve_app.run_api, self._settings, dsn))
        if self._local is not None:  # else the gateways look, one on each node
            await require_our_ingress(self._settings)

    async def _keep_images(self, dsn: str) -> None:
        """Start the image proxy, and again whenever Serve has given it up, until cancelled."""
        delays = Delays(_IMAGES_RETRY)
        if not self._has_images.is_set():  # else only the lease was away for a while
            await self._run_images(dsn)
        while True:
            if fault := await self._find_images_fault():
                self._has_images.clear()
                _log.error("images_failed", extra={"cause": fault})
                await delays.wait()
                await self._run_images(dsn)
            else:
                delays.reset()
                self._has_images.set()
                await asyncio.sleep(_IMAGES_LOOK_S)

    async def _find_images_fault(self) -> str:
        try:
            fault = await asyncio.to_thread(serve_app.find_images_fault)
        except Exception as error:  # of Serve's controller, which may be about to be restarted
            return last_line(error)
        if fault or self._local is None or await is_routed(self._settings, IMAGES, _ROUTED_S):
            return fault
        return "the ingress does not lead to them"

    async def _run_images(self, dsn: str) -> None:
        try:
            await asyncio.to_thread(serve_app.run_images, self._settings, dsn)
        except Exception as error:  # whatever Serve has: nothing but images depends on it
            _log.error("images_not_started", extra={"cause": last_line(error)})

    async def _tell_lost(self, local: ray_cluster.LocalRay) -> None:
        tell({"lost": await ray_cluster.until_lost(local)})

    def _figures(self) -> Iterator[Sample]:
        if self._gateways is not None:
            yield Sample(catalogue.GATEWAYS.name, (), self._gateways.count)
        yield Sample(catalogue.IMAGES_UP.name, (), int(self._has_images.is_set()))

    def _gateway_detail(self) -> str:
        assert self._gateways is not None
        return f"port {self._settings.ws_port}, {self._gateways.count} of them"

    def _connect(self) -> None:
        if self._local is not None:
            ray_cluster.connect_local(self._local)
        else:
            ray_cluster.join(self._settings.ray_address)

    async def _read_commands(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            command: dict[str, Any] = orjson.loads(line)
            if "lease_until_s" in command:
                self._leased.extend(command["lease_until_s"])
            if "dsn" in command and self._dsn is not None and not self._dsn.done():
                self._term = command["term"]
                self._dsn.set_result(command["dsn"])
            elif command.get("do") == "roll":
                roll = partial(self._roll, command.get("settings"))
                if not self._leased.run_once("update", roll):
                    tell({"updated": "no update now: the lease of the conductor has lapsed; try again"})
            elif command.get("do") == "stop":
                break
        else:
            # `broker up` has died. On a joined cluster what it started goes on until the next one comes.
            self._is_abandoned = self._local is None
        self._stopping.set()

    async def _roll(self, settings: Mapping[str, str] | None) -> None:
        """Exchange gateways, replicas, owners and counters for some with these settings.

        A second request waits for the first. One that fails leaves the former settings to what is started
        later; what was exchanged before has the new ones.

        Args:
            settings: as an environment; None, as a `broker up` of older code has it, is no change.
        """
        outcome = "it was broken off, as the lease of the conductor has lapsed"
        try:
            async with self._rolls:
                former = self._settings
                if settings is not None:
                    loaded = Settings.load(settings, refuses_unknown=False)
                    self._use(keep_from_start(loaded, former))
                try:
                    await self._exchange()
                    outcome = ""
                finally:
                    if outcome:
                        self._use(former)
        except Exception as error:
            _log.exception("roll_failed")
            outcome = last_line(error)
        finally:
            tell({"updated": outcome})

    async def _exchange(self) -> None:
        assert self._gateways is not None, "the parts were started"
        assert self._owners is not None, "the parts were started"
        assert self._counters is not None, "the parts were started"
        assert self._dsn is not None, "the parts were started"
        if self._local is not None:
            await self._local.workers.renew()
        await self._gateways.roll()
        dsn = await self._dsn
        await self._start_api(dsn)
        if self._local is None:
            await self._gateways.require_our_ingresses()
        await self._run_images(dsn)
        await self._owners.exchange()
        await self._counters.exchange()

    def _use(self, settings: Settings) -> None:
        """Start with these settings whatever is started from now on."""
        self._settings = settings
        configure_logs(settings, CONDUCTOR)
        for each in (self._gateways, self._owners, self._counters):
            if each is not None:
                each.use(settings)

    async def _scale(self) -> None:
        """Have as many owners as are wanted, until cancelled."""
        assert self._owners is not None, "it is described first"
        assert self._scaling is not None, "it is described first"
        delays = Delays(_SCALE_RETRY)
        await self._owners.shrink(self._owners.slots)  # those that an earlier process has left
        while True:
            await asyncio.sleep(_SCALE_LOOK_S)
            try:
                async with self._rolls:
                    placement = await self._scaling.advance(self._owners)
            except (Unavailable, RayError) as error:
                _log.warning("owners_not_scaled", extra={"cause": last_line(error)})
                await delays.wait()
            else:
                delays.reset()
                if placement is not None:
                    tell({"part": "owners", "detail": f"{placement.owners} of them"})

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        """Let clients and running requests go, then the pools, so that nothing accepted is cut off."""
        over_s = min(self._settings.drain_s, _DRAIN_LIMIT_S)
        is_ours = self._local is not None
        doors: list[Awaitable[None]] = []
        if self._api_started:
            doors.append(asyncio.to_thread(serve_app.stop_application, leave_ingress=is_ours))
        if self._gateways is not None:
            doors.append(self._gateways.drain(over_s))
        for result in await asyncio.gather(*doors, return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("stop_failed", extra={"cause": last_line(result)})
        pools = [pool for pool in (self._owners, self._counters) if pool is not None]
        await asyncio.gather(*(pool.stop() for pool in pools))
        if self._scaling is not None:
            await self._scaling.close()


def tell(message: dict[str, object]) -> None:
    """Say something to `broker up`."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def last_line(error: BaseException) -> str:
    """The last line of an error, which is where Ray puts the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
