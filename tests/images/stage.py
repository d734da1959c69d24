"""An image service on a directory of its own, with real processes and a real upstream on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.clock import SystemClock
from broker.concurrency.shares import NOBODY, Asker
from broker.domain.statistics import ImagesUsed
from broker.errors import NotFound
from broker.fetching.fetcher import Fetcher
from broker.images.account_rules import AccountRules
from broker.images.body_files import BodyFile
from broker.images.disk_cache import DiskCache
from broker.images.errors import FacesUnavailable
from broker.images.geometry import Face, Size
from broker.images.jobs import DecodeLimits, Job, JobReply
from broker.images.key_locks import KeyLocks
from broker.images.purges import PurgeBook, source_of
from broker.images.renderer import Renderer
from broker.images.service import FacesHead, ImageService, MakingRates, ResultHead, ServiceConfig
from broker.images.sources import SourceConfig, SourceHead, Sources, digest_of
from broker.images.workers import KeptImage, WorkerConfig, Workers, _Worker
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from broker.limits.shared_rates import image_rates
from broker.storage.database import Database
from broker.storage.image_purges import ALL, Purge
from broker.storage.rate_buckets import RateBuckets

NO_RATE = Rate(0, 1)
RENDERER = Renderer("code", "models")


class LateClock(SystemClock):
    """The machine's clocks, and what a test has put them forward by; once stopped they move by that alone."""

    later_s = 0.0
    _stopped: tuple[int, float] | None = None

    def stop(self, *, at_second: bool = False) -> None:
        now_ms = super().now_ms()
        self._stopped = (now_ms - now_ms % 1_000 if at_second else now_ms, super().monotonic_s())

    def now_ms(self) -> int:
        now_ms = self._stopped[0] if self._stopped else super().now_ms()
        return now_ms + round(self.later_s * 1_000)

    def monotonic_s(self) -> float:
        now_s = self._stopped[1] if self._stopped else super().monotonic_s()
        return now_s + self.later_s


class CountedWorkers(Workers):
    """Workers that write down what they are given, whether a process had the image decoded, and starts."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self.tasks: list[str] = []
        self.had_kept: list[bool] = []
        self.started = 0

    async def run(
        self,
        job: Job,
        source: BodyFile,
        asker: Asker = NOBODY,
        kept: KeptImage | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[JobReply, bytes]:
        self.tasks.append(job.task)
        self.had_kept.append(kept is not None and kept.worker is not None)
        return await super().run(job, source, asker, kept, check)

    async def _start(self) -> _Worker:
        self.started += 1
        return await super()._start()


@dataclass
class KnownFaces:
    """Finds what it was told to; with nothing told it has no model."""

    faces: tuple[Face, ...] | None = None
    asked: list[Size] = field(default_factory=list)

    async def find(self, size: Size, pixels: bytes) -> tuple[Face, ...]:
        assert len(pixels) == size.width * size.height * 3
        self.asked.append(size)
        if self.faces is None:
            raise FacesUnavailable("there is no model")
        return self.faces


class ListedPurges:
    """The repository of purges, in memory."""

    def __init__(self) -> None:
        self.purges: list[Purge] = []

    def add(self, account: str, url: str | None = None) -> None:
        """Purge a source of an account, or all of it."""
        source = ALL if url is None else source_of(url)
        self.purges.append(Purge(account, source, len(self.purges) + 1))

    async def list_after(self, number: int) -> tuple[int, list[Purge]]:
        return len(self.purges), [purge for purge in self.purges if purge.number > number]


class ListedRules:
    """The rules of accounts, which are all known."""

    def __init__(self, accounts: Mapping[str, AccountRules]) -> None:
        self.fresh = accounts.get

    async def get(self, account: str, address: str) -> AccountRules:
        del address
        rules = self.fresh(account)
        if rules is None:
            raise NotFound("there is no such account")
        return rules


class SummedUsage:
    """Adds up what each account used."""

    def __init__(self) -> None:
        self.of: dict[str, ImagesUsed] = {}

    def count_images(self, account: str, used: ImagesUsed) -> None:
        known = self.of.get(account, ImagesUsed())
        self.of[account] = ImagesUsed(*(a + b for a, b in zip(known, used, strict=True)))


@dataclass
class Stage:
    """A service and what stands around it."""

    service: ImageService
    sources: Sources
    workers: CountedWorkers
    faces: KnownFaces
    clock: LateClock
    purges: ListedPurges
    book: PurgeBook
    usage: SummedUsage


@asynccontextmanager
async def open_stage(
    directory: Path,
    fetcher: Fetcher,
    *,
    accounts: Mapping[str, AccountRules] | None = None,
    faces: KnownFaces | None = None,
    workers: WorkerConfig | None = None,
    sources: SourceConfig | None = None,
    config: ServiceConfig | None = None,
    per_account: Rate = NO_RATE,
    per_address: Rate = NO_RATE,
    quotas_dsn: str = "",
    disk_bytes: int = 64 << 20,
    renderer: Renderer = RENDERER,
) -> AsyncIterator[Stage]:
    """A service over `directory`; several may share it, as processes do.

    Quotas of accounts are kept in the database `quotas_dsn`, where it is given.
    """
    rules = ListedRules({"demo": AccountRules()} if accounts is None else accounts)
    clock, usage, purges = LateClock(), SummedUsage(), ListedPurges()
    database = await Database.open(quotas_dsn, size=1, timeout_s=5.0) if quotas_dsn else None
    quotas = image_rates(RateBuckets(database), clock) if database else None
    book = PurgeBook(purges)
    await book.read()
    known_faces = DiskCache(directory / "faces", disk_bytes, FacesHead)
    pool = CountedWorkers(workers or WorkerConfig(processes=1))
    found = Sources(
        fetcher,
        DiskCache(directory / "sources", disk_bytes, SourceHead, digest_of),
        KeyLocks(directory / "source-locks"),
        clock,
        sources or SourceConfig(),
        book,
        usage,
        known_faces.remove,
    )
    finder = faces or KnownFaces()
    service = ImageService(
        rules,
        MakingRates(LocalRate(clock, per_account), LocalRate(clock, per_address), quotas),
        found,
        pool,
        finder,
        DiskCache(directory / "results", disk_bytes, ResultHead),
        known_faces,
        KeyLocks(directory / "locks"),
        clock,
        config or ServiceConfig(),
        DecodeLimits(),
        book,
        usage,
        renderer,
    )
    try:
        yield Stage(service, found, pool, finder, clock, purges, book, usage)
    finally:
        await asyncio.shield(service.close())
        await pool.close()
        await fetcher.close()
        if database is not None:
            await database.close()
