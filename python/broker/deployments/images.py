"""The image proxy as an application of Ray Serve of its own, so that images bypass the API.

No replica runs until the first request for an image. HAProxy sends that one to Ray Serve's own proxy,
which waits behind the replicas of every application; the proxy tells Serve's controller at once and holds the
request until a replica is there, for as long as an image may take. From then on HAProxy asks replicas
directly. After minutes without a request the last one goes: not sooner, because each change of the replicas
reloads HAProxy.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import serve

from broker.deployments.ingress import IMAGES
from broker.deployments.replica import Replica, bind
from broker.errors import Unavailable
from broker.image_urls import PREFIX
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.ids import IdSource
    from broker.images.service import FaceFinder, ImageService
    from broker.images.usage import UsageCounter
    from broker.metrics.counts import Sample
    from broker.rest.door import Door
    from broker.storage.database import Database

_REQUESTS = 5_000  # of one replica at a time; more than it takes itself, so that its refusals come first
_QUEUED = 500  # that Serve's proxy holds while the first replica starts; more are answered 503
_TARGET_REQUESTS = 16  # where autoscaling adds a replica
_LOOK_BACK_S = 30
_JOINED_LOOK_BACK_S = 5  # Serve notes every fifth of it how many requests wait, by which the first is noticed
_CPUS = 0.01  # a claim, not a limit, as the API's
_SOURCES = 4  # of the largest size that fit into the memory for them; one address may hold a third of it
_POOL = 2  # connections to PostgreSQL: one short query for each account every few seconds
_END_S = 8
_LATE_S = 0.2
_DIRECTORY = "images"
_FACES_SHARE = 32  # of the disk's bytes: boxes and landmarks are short
_LOGS = {"log_level": "WARNING", "enable_access_log": False}

_log = logging.getLogger(__name__)


class ImagesReplica(Replica):
    """A replica of the image proxy."""

    kind = "images"
    late_s = _LATE_S
    prefix = f"{PREFIX}/"

    async def open(self, stack: AsyncExitStack) -> "Door":
        """The image service, and what measures it."""
        from broker.deployments.faces import find_served_faces
        from broker.metrics.exporter import Exporter
        from broker.rest.images import ImageApp

        settings = self._settings
        opened = await open_service(stack, settings, self._dsn, find_served_faces(settings))
        service, clock = opened.service, opened.clock
        app = ImageApp(
            settings,
            clock,
            opened.ids,
            service.get,
            service.find,
            service.know_purges,
            opened.usage,
            settings.images_timeout_s,
        )
        measured = [app.figures, lambda: figures(service)]
        exporter = Exporter(self.kind, self.kind, settings.data_dir, clock, measured)
        await exporter.start()
        stack.push_async_callback(exporter.close)
        return app


@dataclass(frozen=True, slots=True)
class OpenedImages:
    """The service of one process, what counts for its accounts, and the time and the ids of both."""

    service: "ImageService"
    usage: "UsageCounter"
    clock: "Clock"
    ids: "IdSource"


async def open_service(
    stack: AsyncExitStack, settings: Settings, dsn: str, faces: "FaceFinder"
) -> OpenedImages:
    """The service of one process; `stack` closes all of it."""
    from broker.concurrency.tasks import cancel_and_wait, keep_running
    from broker.fetching.fetcher import FetchConfig, Fetcher
    from broker.fetching.urls import AllowList
    from broker.ids import IdSource
    from broker.images.account_rules import rule_book
    from broker.images.disk_cache import DiskCache
    from broker.images.jobs import DecodeLimits
    from broker.images.key_locks import KeyLocks
    from broker.images.purges import PurgeBook, PurgeFollower
    from broker.images.renderer import find_renderer
    from broker.images.service import FacesHead, ImageService, MakingRates, ResultHead, ServiceConfig
    from broker.images.sources import SourceConfig, SourceHead, Sources, digest_of
    from broker.images.workers import WorkerConfig, Workers
    from broker.limits.local_rates import LocalRate
    from broker.limits.rate_limits import Rate
    from broker.limits.shared_rates import image_rates
    from broker.storage.database import Database
    from broker.storage.database_clock import DatabaseClock
    from broker.storage.image_purges import ImagePurges
    from broker.storage.image_rules import ImageRules
    from broker.storage.rate_buckets import RateBuckets

    # The decoder processes first: they start while the rest is opened.
    workers = Workers(
        WorkerConfig(
            settings.images_processes,
            memory_bytes=settings.images_process_bytes,
            wall_s=settings.images_timeout_s,
            shrinks_fast=settings.images_shrink == "fast",
        )
    )
    stack.push_async_callback(workers.close)
    await workers.warm()
    # The database, the clock that follows it, and the fetcher of sources.
    database = await Database.open(dsn, size=_POOL, timeout_s=settings.database_timeout_s)
    stack.push_async_callback(database.close)
    clock = await DatabaseClock.open(database)
    stack.push_async_callback(cancel_and_wait, keep_running("clock", clock.run))
    ids = IdSource(clock)
    ports = frozenset(map(int, settings.images_ports))
    source_config = SourceConfig(
        max_bytes=settings.images_source_limit_bytes,
        total_s=settings.images_fetch_timeout_s,
        memory_bytes=max(settings.images_sources_bytes, _SOURCES * settings.images_source_limit_bytes),
    )
    fetcher = Fetcher(
        FetchConfig(AllowList(settings.images_allow_hosts), ports, connections=2 * source_config.fetches)
    )
    stack.push_async_callback(fetcher.close)
    # The caches on disk, and what must not be served from them.
    directory = await asyncio.to_thread(_make_directory, settings.data_dir / _DIRECTORY)
    share = settings.images_disk_bytes // 2
    usage = _open_usage(stack, settings, database, clock, ids)
    book = PurgeBook(ImagePurges(database))
    known_faces = DiskCache(directory / "faces", share // _FACES_SHARE, FacesHead)
    results = DiskCache(directory / "results", share, ResultHead)
    kept_sources = DiskCache(directory / "sources", share, SourceHead, digest_of)
    if not share:
        for cache in (known_faces, results, kept_sources):
            await asyncio.to_thread(cache.clear)  # what was kept before this setting
    sources = Sources(
        fetcher,
        kept_sources,
        KeyLocks(directory / "source-locks"),
        clock,
        source_config,
        book,
        usage,
        known_faces.remove,
    )
    # The limits and rules of accounts.
    per_account = Rate(settings.images_rate_per_account, settings.images_burst_per_account)
    per_address = Rate(settings.images_rate_per_address, settings.images_burst_per_address)
    rules = rule_book(ImageRules(database), clock)
    stack.push_async_callback(rules.close)
    service = ImageService(
        rules,
        MakingRates(
            LocalRate(clock, per_account, name="images"),
            LocalRate(clock, per_address, name="images"),
            image_rates(RateBuckets(database), clock),
        ),
        sources,
        workers,
        faces,
        results,
        known_faces,
        KeyLocks(directory / "locks"),
        clock,
        ServiceConfig(
            memory_bytes=settings.images_cache_bytes,
            timeout_s=settings.images_timeout_s,
            search_wait_s=settings.faces_timeout_s,
        ),
        DecodeLimits(),
        book,
        usage,
        await asyncio.to_thread(find_renderer, settings),
    )
    stack.push_async_callback(service.close)
    # Purges are read once, and then followed.
    with suppress(Unavailable):  # nothing is shown before they are read, which goes on
        await book.read()
    follower = PurgeFollower(book, directory, service.forget_purged, service.remove_purged)
    stack.push_async_callback(cancel_and_wait, keep_running("image purges", follower.run))
    return OpenedImages(service, usage, clock, ids)


def _open_usage(
    stack: AsyncExitStack, settings: Settings, database: "Database", clock: "Clock", ids: "IdSource"
) -> "UsageCounter":
    """What counts for the statistics; nothing does where they are off."""
    from broker.concurrency.tasks import cancel_and_wait, keep_running
    from broker.images.usage import Uncounted
    from broker.storage.statistics import Statistics
    from broker.storage.statistics_recorder import Recorder

    if not settings.statistics:
        return Uncounted()
    recorder = Recorder(Statistics(database), clock, ids)
    stack.push_async_callback(recorder.close)
    stack.push_async_callback(cancel_and_wait, keep_running("statistics", recorder.run))
    return recorder


def figures(service: "ImageService") -> "Iterator[Sample]":
    """What a service has done since its start."""
    from broker.metrics import catalogue
    from broker.metrics.counts import Sample

    counts = service.counts
    for outcome, count in (
        ("memory", counts.memory_hits),
        ("disk", counts.disk_hits),
        ("made", counts.misses),
        ("refused", counts.errors),
    ):
        yield Sample(catalogue.IMAGES.name, (outcome,), count)
    yield Sample(catalogue.IMAGE_FETCHES.name, (), service.sources.fetched)
    yield Sample(catalogue.IMAGE_CRASHES.name, (), counts.crashes)
    yield Sample(catalogue.FACE_SEARCHES.name, ("answered",), counts.detections - counts.faces_missing)
    yield Sample(catalogue.FACE_SEARCHES.name, ("missing",), counts.faces_missing)


def _make_directory(directory: Path) -> Path:
    """The directory of caches; where it cannot be made, on a node that is not ours, one of its own."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
        reason = "it cannot be written"
    except OSError as error:
        reason = str(error)
    made = Path(tempfile.mkdtemp(prefix="broker-images-"))
    _log.warning("images_kept_elsewhere", extra={"cause": reason, "place": str(made)})
    return made


def deployment_options(settings: Settings) -> dict[str, Any]:
    """How Serve runs it."""
    # Who asks while there is no replica waits at Serve's own proxy. There is one, on the head, and it listens
    # at the loopback address; the ingresses of other nodes do not reach it, and are not ready.
    fewest = max(settings.images_replicas_min, 1 if settings.ray_address else 0)
    return {
        "max_ongoing_requests": _REQUESTS,
        "max_queued_requests": _QUEUED,
        "autoscaling_config": {
            "min_replicas": fewest,
            "max_replicas": max(fewest, settings.images_replicas_max),
            "target_ongoing_requests": _TARGET_REQUESTS,
            "upscale_delay_s": 3,
            "look_back_period_s": _JOINED_LOOK_BACK_S if settings.ray_address else _LOOK_BACK_S,
            "downscale_delay_s": settings.images_idle_s,
        },
        "ray_actor_options": {"num_cpus": _CPUS},
        "logging_config": _LOGS,
        "graceful_shutdown_timeout_s": _END_S,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 3,
        "health_check_timeout_s": 10,
    }


def build_images(settings: Settings, dsn: str) -> serve.RunTarget:
    """The application, bound and ready for `serve.run_many`."""
    target = bind("Images", deployment_options(settings), ImagesReplica(settings, dsn))
    return serve.RunTarget(target, name=IMAGES, route_prefix=PREFIX)
