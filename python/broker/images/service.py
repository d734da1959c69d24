"""An image by account, options and URL: from a cache, or produced once for all concurrent requests.

What is asked for passes, in this order: the account's rules, the options, the memory of this process, the
directory that processes share, one single flight per image in this process and one lock per image between
processes, the source, for face modes the faces of that source, and the processes that decode. Errors that say
something of the image are remembered for a while; overload is not. Whatever is kept is used only while no
purge of its source has come since (`purges`), and only for those who might have it fetched now: each server
over which a source came is judged again by the account's rules and by ours.

What has to be made is counted for the account and the address that ask (`MakingRates`), and they take turns
with others (`turns`, `shares`). What is there already is nobody's.
"""

import asyncio
import hashlib
import logging
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import msgspec

from broker.clock import Clock
from broker.concurrency.caches import LruCache, TtlCache
from broker.concurrency.shares import Asker, Shares
from broker.concurrency.single_flight import SingleFlight
from broker.concurrency.turns import Turns
from broker.domain.statistics import ImagesUsed
from broker.errors import BrokerError, SlowDown, Unavailable
from broker.fetching.network import Hop
from broker.images.account_rules import AccountRules
from broker.images.disk_cache import DiskCache
from broker.images.errors import (
    DecoderEnded,
    FacesUnavailable,
    SourceFailed,
    SourceTimeout,
    TooCostly,
    UnprocessableImage,
    told_of_source,
)
from broker.images.geometry import Face, Size
from broker.images.host_rules import HostRules
from broker.images.jobs import DecodeLimits, Description, Job, JobReply
from broker.images.key_locks import KeyLocks
from broker.images.options import MEDIA_TYPES, Format, Options, parse_options
from broker.images.purges import Origin, PurgeBook
from broker.images.renderer import Renderer
from broker.images.signatures import Signature, check_signature
from broker.images.sources import FoundSource, Source, Sources, age_s
from broker.images.usage import UsageCounter
from broker.images.workers import KeptImage, Workers
from broker.limits.local_rates import LocalRate
from broker.limits.shared_rates import SharedRates
from broker.metrics.counts import IMAGE_SECONDS

_log = logging.getLogger(__name__)

_ERRORS = 10_000  # remembered at a time
_CHECKED = 4_096  # requests that were found to be allowed, of at most so many characters each
_SHORT_CHARACTERS = 1_024
_SEARCHES_WAITING = 256  # of one account 128, of one address 85 (`Shares`); beyond, a crop goes by attention
_HEAD_BYTES = 1_024  # of a result in memory beside its body
_PERSONAL = (SlowDown, Unavailable)  # concern who asks, or the moment; nobody else is told them


class FaceFinder(Protocol):
    """Finds faces in small images. Any number of calls may run at once."""

    async def find(self, size: Size, pixels: bytes) -> tuple[Face, ...]:
        """The faces, in pixels of the image.

        Args:
            pixels: `(height, width, 3)` uint8 sRGB, row-major.

        Raises:
            FacesUnavailable: there is no model, or no answer in time.
        """
        ...


class RuleBook(Protocol):
    """The rules of accounts, as `auth.account_cache.AccountCache` keeps them."""

    def fresh(self, account: str) -> AccountRules | None:
        """What is known of an account without asking."""
        ...

    async def get(self, account: str, address: str) -> AccountRules:
        """The rules of an account, for somebody at an address. Raises NotFound, SlowDown, Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How long and how much is remembered.

    Attributes:
        fresh_s: of a result, counted from its making; error_s: of an error, and of what was made of a source
            whose server fails.
        memory_bytes: of results in this process.
        timeout_s: of the making of an image, with all its waiting; a request's, since nobody waits longer.
        searches: for faces that run at the same time; each holds a preview and its copies, some 3 MB.
        search_wait_s: for a place among them; afterwards an image is cropped by attention.
        kept_s: how long a result can become fresh again with its source; less than purges are known.
    """

    fresh_s: float = 86_400.0
    kept_s: float = 6 * 86_400.0
    error_s: float = 300.0
    memory_bytes: int = 64 << 20
    timeout_s: float = 30.0
    searches: int = 16
    search_wait_s: float = 10.0


@dataclass(frozen=True, slots=True)
class MakingRates:
    """How many images a second may be made for one account, and for one address, in this process.

    `quotas` are those of accounts, over all processes; None keeps none.
    """

    per_account: LocalRate
    per_address: LocalRate
    quotas: SharedRates | None = None

    async def take(self, asker: Asker, quota: int | None) -> None:
        """Count one image. Raises SlowDown, and with a quota Unavailable."""
        if asker.address:  # first, so that one which is refused costs its account nothing
            self.per_address.take(asker.address, 1)
        self.per_account.take(asker.account, 1)
        if self.quotas is not None:
            await self.quotas.take(asker.account, quota)


class ResultHead(msgspec.Struct, frozen=True):
    """What is kept of a result beside its bytes.

    Attributes:
        source: digest of the source that it was made of.
        renderer: name of what made it; another one makes it again.
        hops: the servers over which the source came.
        lacks_faces: whether no detector answered, so that it should be produced again soon.
    """

    type: str
    etag: str
    source: str
    made_time: float
    lacks_faces: bool = False
    origin: Origin = Origin()
    renderer: str = ""
    hops: tuple[Hop, ...] = ()


@dataclass(frozen=True, slots=True)
class _KnownError:
    """An error that is remembered.

    Attributes:
        hosts: by which the request was judged; None where that made no difference.
    """

    error: BrokerError
    origin: Origin
    hosts: HostRules | None = None


class FacesHead(msgspec.Struct, frozen=True):
    """The faces of one source, in its pixels, and the name of what found them."""

    faces: tuple[Face, ...]
    renderer: str = ""


@dataclass(frozen=True, slots=True)
class ServedImage:
    """A finished reply. `is_hit` says that it was served from a cache."""

    body: bytes
    type: str
    etag: str
    is_hit: bool


@dataclass(slots=True)
class ImageCounts:
    """What has happened since the start.

    Attributes:
        detections: searches for faces; `faces_missing` are those that no detector answered, so that a crop
            went by attention.
        crashes: images that ended their process.
        errors: replies that say that there is no image, remembered ones too.
    """

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    detections: int = 0
    faces_missing: int = 0
    crashes: int = 0
    errors: int = 0


class ImageService:
    """Serves image requests. For concurrent use within one event loop; `close` ends the work in progress."""

    def __init__(
        self,
        rules: RuleBook,
        rates: MakingRates,
        sources: Sources,
        workers: Workers,
        faces: FaceFinder,
        results: DiskCache[ResultHead],
        known_faces: DiskCache[FacesHead],
        locks: KeyLocks,
        clock: Clock,
        config: ServiceConfig,
        limits: DecodeLimits,
        purges: PurgeBook,
        usage: UsageCounter,
        renderer: Renderer,
    ) -> None:
        self._rules = rules
        self._rates = rates
        self.sources = sources
        self._workers = workers
        self._faces = faces
        self._results = results
        self._known_faces = known_faces
        self._locks = locks
        self._clock = clock
        self._config = config
        self._limits = limits
        self._purges = purges
        self._usage = usage
        self._renderer = renderer
        self._memory: LruCache[str, tuple[ResultHead, bytes]] = LruCache(
            config.memory_bytes, lambda kept: len(kept[1]) + _HEAD_BYTES
        )
        self._errors: TtlCache[str, _KnownError] = TtlCache(clock, config.error_s, _ERRORS)
        self._ended: TtlCache[str, _KnownError] = TtlCache(clock, config.error_s, _ERRORS)
        self._checked: LruCache[tuple[str, str, str], tuple[AccountRules, Options, str]] = LruCache(_CHECKED)
        waiting = Shares(_SEARCHES_WAITING, "too many images wait for a search for faces")
        self._searches = Turns(config.searches, waiting)
        self._single_flight: SingleFlight[tuple[str, int, HostRules], ServedImage] = SingleFlight()
        self._detections: SingleFlight[str, tuple[Face, ...] | None] = SingleFlight()
        self.counts = ImageCounts()

    async def close(self) -> None:
        """End what runs."""
        await self._single_flight.close()
        await self._detections.close()
        await self.sources.close()

    async def get(
        self, asker: Asker, options_text: str, url: str, signature: Signature | None = None
    ) -> ServedImage:
        """The image, from a cache or made now. Safe to cancel: others who wait for it get it.

        Args:
            options_text: as it was written, which is what a signature is made of.

        Raises:
            NotFound: no such account.
            InvalidOptions, InvalidImageUrl, ForbiddenUrl: what is asked for is not allowed.
            SourceFailed, SourceTimeout, UnprocessableImage: no image could be had or made.
            SlowDown: the account or the address has had too many made.
            Unavailable: too much is asked for at once.
        """
        began_s = self._clock.monotonic_s()
        rules = await self._rules.get(asker.account, asker.address)
        try:
            served = await self._get(rules, asker, options_text, url, signature)
        except BrokerError as error:
            self._usage.count_images(asker.account, ImagesUsed(images=1, errors=1))
            IMAGE_SECONDS.observe(self._clock.monotonic_s() - began_s, _outcome(error))
            raise
        self._count_served(asker, served, began_s)
        return served

    def find(
        self, asker: Asker, options_text: str, url: str, signature: Signature | None = None
    ) -> ServedImage | None:
        """What `get` would answer from the memory of this process; None where it has to wait, or refuses."""
        began_s = self._clock.monotonic_s()
        rules = self._rules.fresh(asker.account)
        if rules is None:
            return None
        try:
            _, key = self._judge(rules, asker.account, options_text, url, signature)
        except BrokerError:
            return None
        served = None if key in self._errors else self._find_in_memory(key, rules)
        if served is not None:
            self._count_served(asker, served, began_s)
        return served

    async def _get(
        self, rules: AccountRules, asker: Asker, options_text: str, url: str, signature: Signature | None
    ) -> ServedImage:
        account = asker.account
        options, key = self._judge(rules, account, options_text, url, signature)
        known = self._errors.get(key)
        if known is not None and known.hosts == rules.hosts and not self._purges.is_gone(known.origin):
            self.counts.errors += 1
            raise copy(known.error)  # one that is raised again and again would gather tracebacks
        served = self._find_in_memory(key, rules)
        if served is not None:
            return served
        origin = self._purges.origin(account, url)
        # Who asks after a purge, or under other rules, does not get what was begun before.
        return await self._single_flight.run(
            (key, origin.number, rules.hosts),
            lambda: self._load(key, origin, asker, options, url, rules),
            _PERSONAL,
        )

    def _judge(
        self, rules: AccountRules, account: str, options_text: str, url: str, signature: Signature | None
    ) -> tuple[Options, str]:
        """The options and the name of an image that may be asked for. Raises as `get` does."""
        if rules.signing_keys:
            check_signature(rules.signing_keys, account, options_text, url, signature, self._now_s())
        asked = self._check(account, options_text, url, rules)
        self._purges.require_read()
        return asked

    def _find_in_memory(self, key: str, rules: AccountRules) -> ServedImage | None:
        kept = self._memory.get(key)
        if kept is None or not self._is_fresh(kept[0]) or not rules.hosts.allows(kept[0].hops):
            return None
        self.counts.memory_hits += 1
        return _served(kept, is_hit=True)

    def _count_served(self, asker: Asker, served: ServedImage, began_s: float) -> None:
        IMAGE_SECONDS.observe(self._clock.monotonic_s() - began_s, "hit" if served.is_hit else "made")
        self._usage.count_images(asker.account, ImagesUsed(images=1, hits=int(served.is_hit)))

    async def know_purges(self, number: int) -> None:
        """Answer nothing that a stored purge up to this number has removed. Raises Unavailable."""
        await self._purges.catch_up(number)

    def forget_purged(self) -> None:
        """Give up the memory of what was purged."""
        for key in list(self._memory):
            kept = self._memory.peek(key)
            if kept is not None and self._purges.is_gone(kept[0].origin):
                self._memory.pop(key)

    def remove_purged(self) -> int:
        """Remove what was purged from the disk; returns how many entries that were. Blocks."""
        return self._results.remove_where(self._is_purged) + self.sources.remove_purged()

    def _check(self, account: str, options_text: str, url: str, rules: AccountRules) -> tuple[Options, str]:
        """The options, and the name of the image, once the account's rules allow it.

        Reading options and URL takes most of the time of an image that is in memory, so it is remembered for
        as long as the rules stay as they are.
        """
        asked = account, options_text, url
        known = self._checked.get(asked)
        if known is not None and known[0] == rules:
            return known[1], known[2]
        options = parse_options(options_text, rules.presets)
        try:
            rules.hosts.check(url)
        except BrokerError as error:
            raise told_of_source(error) from None
        key = _key(account, options, url)
        if len(options_text) + len(url) <= _SHORT_CHARACTERS:
            self._checked.put(asked, (rules, options, key))
        return options, key

    async def _load(
        self, key: str, origin: Origin, asker: Asker, options: Options, url: str, rules: AccountRules
    ) -> ServedImage:
        try:
            async with asyncio.timeout(self._config.timeout_s), self._locks.held(key):
                return await self._find_or_make(key, origin, asker, options, url, rules)
        except TimeoutError:
            raise Unavailable("the image took too long; try again", retry_after_s=1) from None
        except _PERSONAL:
            raise
        except BrokerError as error:
            # What is remembered is a copy: an error that was raised holds all that was at hand then.
            self._errors.put(key, _KnownError(copy(told_of_source(error)), origin, rules.hosts))
            self.counts.errors += 1
            raise told_of_source(error) from None

    async def _find_or_make(
        self, key: str, origin: Origin, asker: Asker, options: Options, url: str, rules: AccountRules
    ) -> ServedImage:
        renderer = self._renderer.name_of(options)
        kept = None
        if self._results.has(key):
            kept = await asyncio.to_thread(self._read_result, key, renderer, rules.hosts)
        if kept is not None and self._is_fresh(kept[0]):
            self.counts.disk_hits += 1
            self._remember(key, kept)
            return _served(kept, is_hit=True)
        await self._rates.take(asker, rules.quota)
        found = await self.sources.get(asker, url, rules.hosts)
        is_hit = kept is not None and kept[0].source == found.source.digest and not kept[0].lacks_faces
        if kept is not None and is_hit:
            self.counts.disk_hits += 1
            head, body = kept
        else:
            self.counts.misses += 1
            found, (head, body) = await self._make_of(found, origin, asker, options, url, rules.hosts)
        head = msgspec.structs.replace(
            head,
            made_time=self._made_time(head, found),
            origin=origin,
            renderer=renderer,
            hops=found.hops,
        )
        self._remember(key, (head, body))
        await asyncio.to_thread(self._write_result, key, head, body)
        return _served((head, body), is_hit=is_hit)

    async def _make_of(
        self, found: FoundSource, origin: Origin, asker: Asker, options: Options, url: str, hosts: HostRules
    ) -> tuple[FoundSource, tuple[ResultHead, bytes]]:
        """A result and the source that it was made of: another one where a kept one cannot be decoded."""
        try:
            return found, await self._make(origin, asker, found.source, options)
        except DecoderEnded:  # which is remembered of the source, and costs much
            raise
        except UnprocessableImage:
            another = None
            if found.is_kept:
                another = await self.sources.get_another(asker, url, hosts, found.source)
            if another is None:
                raise
        return another, await self._make(origin, asker, another.source, options)

    def _made_time(self, head: ResultHead, found: FoundSource) -> float:
        """From when a result is fresh; for a shorter time where a better one may be had soon."""
        if found.is_stale or head.lacks_faces:
            return self._now_s() - max(0.0, self._config.fresh_s - self._config.error_s)
        return self._now_s()

    async def _make(
        self, origin: Origin, asker: Asker, source: Source, options: Options
    ) -> tuple[ResultHead, bytes]:
        faces: tuple[Face, ...] | None = ()
        if options.format is Format.JSON:
            reply, _ = await self._work(origin, asker, Job("describe", self._limits), source)
            assert reply.description is not None, "a description is what the task gives"
            if reply.description.frames == 1:
                faces = await self._faces_or_none(origin, asker, source, Job("preview", self._limits), None)
            body = msgspec.json.encode(_body(reply.description, faces))
            return _head(Format.JSON, body, source, faces), body
        if options.fit.is_face:
            with self._workers.keeping_image() as kept:
                look = Job("preview", self._limits, options, number=kept.number)
                faces = await self._faces_or_none(origin, asker, source, look, kept)
                job = Job("render", self._limits, options, faces or (), kept.number)
                reply, body = await self._work(origin, asker, job, source, kept)
        else:
            reply, body = await self._work(origin, asker, Job("render", self._limits, options), source)
        return _head(reply.format, body, source, faces), body

    async def _faces_or_none(
        self, origin: Origin, asker: Asker, source: Source, look: Job, kept: KeptImage | None
    ) -> tuple[Face, ...] | None:
        """The faces of a source; None where nobody can say. The image is kept for whoever asks first."""
        return await self._detections.run(
            source.digest, lambda: self._detect(origin, asker, source, look, kept), _PERSONAL
        )

    async def _detect(
        self, origin: Origin, asker: Asker, source: Source, look: Job, kept: KeptImage | None
    ) -> tuple[Face, ...] | None:
        renderer = self._renderer.name_faces()
        known = None
        if self._known_faces.has(source.digest):
            known = await asyncio.to_thread(self._known_faces.read, source.digest)
        if known is not None and known[0].renderer == renderer:
            return known[0].faces
        async with AsyncExitStack() as stack:
            try:
                turn = self._searches.held(asker, wait_s=self._config.search_wait_s)
                await stack.enter_async_context(turn)
            except Unavailable as error:
                self.counts.detections += 1
                self._miss_faces(error.message)
                return None
            reply, pixels = await self._work(origin, asker, look, source, kept)
            if not pixels:  # an animation, whose faces are not looked for
                return ()
            self.counts.detections += 1
            self._usage.count_images(asker.account, ImagesUsed(searches=1))
            try:
                found = await self._faces.find(reply.size, pixels)
            except FacesUnavailable as error:
                self._miss_faces(error.message)
                return None
        faces = tuple(face.scaled(reply.scale) for face in found)
        await asyncio.to_thread(self._known_faces.write, source.digest, FacesHead(faces, renderer), b"")
        return faces

    def _miss_faces(self, reason: str) -> None:
        self.counts.faces_missing += 1
        _log.warning("faces_unavailable", extra={"reason": reason})

    async def _work(
        self, origin: Origin, asker: Asker, job: Job, source: Source, kept: KeptImage | None = None
    ) -> tuple[JobReply, bytes]:
        """Give a job to the processes; a source that crashed some is not given to others for a while.

        With options that cost too much it is not tried again either; with others it is, or whoever names
        costly options would take the image from everybody else. Both are looked at again when the job's
        turn has come: many may wait with the same source.
        """
        attempt = f"{source.digest} {job.task} {job.options.text()}"

        def check() -> None:
            error = self._find_end(source.digest) or self._find_end(attempt)
            if error is not None:
                raise error

        check()
        try:
            return await self._workers.run(job, source.body, asker, kept, check)
        except DecoderEnded as error:
            ended = attempt if isinstance(error, TooCostly) else source.digest
            if self._find_end(ended) is None:
                self._ended.put(ended, _KnownError(copy(error), origin))
                self.counts.crashes += 1
            raise

    def _find_end(self, name: str) -> BrokerError | None:
        """What is remembered of a source, or of one with its options, that ended processes."""
        ended = self._ended.get(name)
        return None if ended is None or self._purges.is_gone(ended.origin) else copy(ended.error)

    def _remember(self, key: str, kept: tuple[ResultHead, bytes]) -> None:
        if len(kept[1]) < self._config.memory_bytes // 8:
            self._memory.put(key, kept)

    def _is_fresh(self, head: ResultHead) -> bool:
        is_young = 0 <= age_s(self._now_s(), head.made_time) < self._config.fresh_s
        return is_young and not self._purges.is_gone(head.origin)

    def _write_result(self, key: str, head: ResultHead, body: bytes) -> None:
        """Keep a result unless it was purged meanwhile, for the disk may be cleared by then. Blocks."""
        self._results.write(key, head, body)
        if self._is_purged(head):
            self._results.remove(key)

    def _read_result(self, key: str, renderer: str, hosts: HostRules) -> tuple[ResultHead, bytes] | None:
        """What is on disk and can still be right, as long as its source is. Blocks."""
        kept = self._results.read(key)
        if kept is None or kept[0].renderer != renderer:
            return None
        if self._now_s() - kept[0].made_time >= self._config.kept_s:
            return None
        if not (self.sources.allows(kept[0].hops) and hosts.allows(kept[0].hops)):
            return None
        return None if self._is_purged(kept[0]) else kept

    def _is_purged(self, head: ResultHead) -> bool:
        """Whether a kept result must not be used; the faces of its source are forgotten then. Blocks."""
        if not self._purges.is_gone(head.origin):
            return False
        self._known_faces.remove(head.source)
        return True

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1_000


def _key(account: str, options: Options, url: str) -> str:
    """A name of fixed length: URLs may be long, and ten thousands of keys are kept."""
    return hashlib.sha256(f"{account}\n{options.text()}\n{url}".encode()).hexdigest()


def _outcome(error: BrokerError) -> str:
    """Who is the cause, for the metrics: the request, its source, or we."""
    if isinstance(error, SourceFailed | SourceTimeout | UnprocessableImage):
        return "failed" if isinstance(error, DecoderEnded) else "source"
    return "refused" if error.status < 500 else "failed"


def _served(kept: tuple[ResultHead, bytes], *, is_hit: bool) -> ServedImage:
    head, body = kept
    return ServedImage(body, head.type, head.etag, is_hit)


def _head(format_: Format, body: bytes, source: Source, faces: tuple[Face, ...] | None) -> ResultHead:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return ResultHead(MEDIA_TYPES[format_], etag, source.digest, 0.0, lacks_faces=faces is None)


def _body(description: Description, faces: tuple[Face, ...] | None) -> dict[str, object]:
    """The description as it is told; `faces` is null where no detector answered."""
    told = None
    if faces is not None:
        told = [
            {
                "left": round(face.left, 1),
                "top": round(face.top, 1),
                "width": round(face.width, 1),
                "height": round(face.height, 1),
                "score": round(face.score, 3),
                "landmarks": [[round(point.x, 1), round(point.y, 1)] for point in face.landmarks],
            }
            for face in faces
        ]
    return {
        "type": description.type,
        "width": description.size.width,
        "height": description.size.height,
        "frames": description.frames,
        "hasAlpha": description.has_alpha,
        "color": description.color,
        "blurHash": description.blurhash,
        "thumbHash": description.thumbhash,
        "faces": told,
    }
