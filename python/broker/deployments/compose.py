"""The composition root: the one place where the parts of a process are created and connected."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from broker.auth.authenticator import AuthConfig, Authenticator
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.deployments.health import HealthChecks
from broker.deployments.ingress_check import ingress_host
from broker.deployments.node_address import on_this_node
from broker.domain.placement import Placement
from broker.fetching.fetcher import FetchConfig, Fetcher
from broker.fetching.urls import AllowList
from broker.ids import IdSource
from broker.metrics.exporter import Exporter
from broker.operations.health import ProductHealth
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.services import Services, build_services
from broker.owners.known_placement import KnownPlacement
from broker.owners.linked_owners import LinkedOwners
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock
from broker.storage.placements import Placements
from broker.tracing.opening import open_tracer
from broker.voting.counting.linked_counters import LinkedCounters


@dataclass(frozen=True, slots=True)
class Opened:
    """Services together with what closes them again, in the reverse order of their making."""

    services: Services
    placement: KnownPlacement
    stack: AsyncExitStack
    exporter: Exporter

    async def close(self) -> None:
        """Close everything that was opened. Idempotent."""
        await self.stack.aclose()


async def open_services(settings: Settings, dsn: str, kind: str) -> Opened:
    """Open every service that a door needs, in this process and on the running loop.

    The process is connected to Ray; the owners need not run yet. It tells its metrics as one of `kind`.

    Raises:
        Unavailable: the database is unavailable.
    """
    stack = AsyncExitStack()
    try:
        # The database, and the clock that follows it.
        database = await Database.open(
            dsn, size=settings.database_pool, timeout_s=settings.database_timeout_s
        )
        stack.push_async_callback(database.close)
        clock = await DatabaseClock.open(database)
        stack.push_async_callback(cancel_and_wait, keep_running("clock", clock.run))
        ids = IdSource(clock)
        tracer = open_tracer(settings, kind, clock)
        if tracer is not None:
            stack.push_async_callback(tracer.close)
        # Authentication, whose keys may come from other servers.
        fetcher = Fetcher(FetchConfig(AllowList(settings.identity_allow_hosts)))
        stack.push_async_callback(fetcher.close)
        auth = Authenticator(database, clock, ids, AuthConfig.of(settings), fetcher.document)
        stack.push_async_callback(auth.close)
        await auth.start()
        maintenance = KnownMaintenance(database)
        stack.push_async_callback(maintenance.close)
        await maintenance.start()
        # The links to owners and counters.
        placements = Placements(database)
        placement = KnownPlacement(settings.owners)

        async def read_placement() -> Placement:
            return (await placements.read()).in_effect(settings.owners)

        placement.take(await read_placement())
        looking = keep_running("placement", lambda: placement.run(read_placement))
        stack.push_async_callback(cancel_and_wait, looking)
        owners = LinkedOwners(settings, clock, ids, placement=placement)
        stack.push_async_callback(owners.close)
        counters = LinkedCounters(settings, clock, ids)
        stack.push_async_callback(counters.close)
        checks = HealthChecks(settings, database, placement)
        stack.callback(checks.close)
        exporter = Exporter(
            kind, kind, settings.data_dir, clock, [database.figures, owners.figures, counters.figures]
        )
        # The services of the operations; they stop in the reverse order.
        services = build_services(
            settings,
            clock,
            ids,
            database,
            auth=auth,
            owners=owners,
            counters=counters,
            health=ProductHealth(settings, clock, maintenance, checks.check),
            maintenance=maintenance,
            ingress_host=ingress_host(on_this_node(settings)),
            tracer=tracer,
        )
        stack.push_async_callback(services.close)
        exporter.add(auth.figures)
        exporter.add(maintenance.figures)
        exporter.add(services.lists.figures)
        exporter.add(services.image_warmer.figures)
        if services.image_warmer.is_on:
            warming = keep_running("image warming", services.image_warmer.run)
            stack.push_async_callback(cancel_and_wait, warming)
        # Metrics and statistics begin when all that they measure is there.
        await exporter.start()
        stack.push_async_callback(exporter.close)
        if services.recorder is not None:
            stack.push_async_callback(services.recorder.close)  # which writes what was counted last
            recording = keep_running("statistics", services.recorder.run)
            stack.push_async_callback(cancel_and_wait, recording)
    except BaseException:
        await stack.aclose()
        raise
    return Opened(services, placement, stack, exporter)
