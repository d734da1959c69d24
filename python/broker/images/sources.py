"""Source images: fetched safely, and cached with their validators.

A source is fresh for a while; after that it is asked for with the validators that its server gave (RFC 9110,
section 13.1), and stays as it is when the server says so. A server that fails then does not take its images
with it: the old one is shown for some time (RFC 5861, section 4). Each source carries the digest of its
bytes, which results and faces are tied to: they outlive a new fetch that brings the same image. A source
also has the servers over which it came, each of which is judged again before a kept one is used: by the rules
of whoever asks, and by those of this process.

The bytes of all sources that a process holds are counted, those that are still arriving too. What does not
fit is dropped, and loaded again when its address has room for a whole source, one after the other. Who gets
none in time is refused, and so is what would be one fetch too many, of all or of one host: a server that is
slow on purpose takes the places of its own images only.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

import msgspec

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.concurrency.shares import Asker, Shares
from broker.concurrency.single_flight import SingleFlight
from broker.concurrency.turns import Turns, TurnsByKey
from broker.domain.statistics import ImagesUsed
from broker.errors import BrokerError, Unavailable
from broker.fetching.errors import UpstreamFailed, UpstreamTimeout
from broker.fetching.fetcher import Fetched, Fetcher, FetchRequest
from broker.fetching.network import Hop
from broker.fetching.urls import parse_url
from broker.images.body_files import BodyFile, digest_of_parts
from broker.images.disk_cache import DiskCache
from broker.images.host_rules import HostRules
from broker.images.key_locks import KeyLocks
from broker.images.purges import Origin, PurgeBook
from broker.images.usage import UsageCounter

_ACCEPT = "image/avif,image/webp,image/png,image/jpeg,image/gif;q=0.9"
_USER_AGENT = "onair-broker"
_VALIDATORS = {"etag": "if-none-match", "last-modified": "if-modified-since"}
_MAX_VALIDATOR_CHARACTERS = 1_024
_PASSING = frozenset({408, 429, *range(500, 600)})
_FAILING_SOURCES = 10_000  # remembered at a time
_RESERVED_SHARE = 4  # of the memory, at most; an address may hold a third
_ROOM_LOOK_S, _ROOM_LOOK_MOST_S = 0.05, 0.4
"""After which one who waits for room looks again: longer each time, for two thousand addresses may wait."""
_APART_S = 5.0  # by which clocks of two processes may differ; each measures the database's to half a second


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """How sources are fetched.

    Attributes:
        max_bytes: of one source; total_s: of its fetching, over all redirects.
        fresh_s: how long a source is not asked for again, and `stale_s` how long it is shown while its server
            fails, which is then not asked again for `retry_s`.
        kept_s: how long a source can be asked for conditionally; less than purges are known.
        memory_bytes: of all sources that are held at a time, and `room_s` how long one waits for room.
        fetches: under way at a time, with half of them for one account and `fetches_per_host` of one host;
            `waiting` more may wait for their turn.
    """

    max_bytes: int = 20 << 20
    total_s: float = 10.0
    fresh_s: float = 3_600.0
    stale_s: float = 86_400.0
    retry_s: float = 300.0
    kept_s: float = 6 * 86_400.0
    memory_bytes: int = 256 << 20
    room_s: float = 10.0
    fetches: int = 256
    fetches_per_host: int = 32
    waiting: int = 2_048


class SourceHead(msgspec.Struct, frozen=True):
    """What is kept of a source beside its bytes.

    Attributes:
        hops: the servers over which it came when it was last asked for.
    """

    digest: str
    checked_time: float
    validators: dict[str, str] = msgspec.field(default_factory=dict)
    origin: Origin = Origin()
    hops: tuple[Hop, ...] = ()


def digest_of(head: SourceHead) -> str:
    """What the bytes of a kept source are checked by."""
    return head.digest


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Source:
    """A source image; its bytes count as held for as long as this object lives. `digest` names them.

    They are on disk, as a rule, and in the memory of nobody but the system, which may need it for others.
    """

    digest: str
    body: BodyFile


@dataclass(frozen=True, slots=True)
class FoundSource:
    """A source and the servers over which it came.

    Attributes:
        is_stale: whether it is older than it should be, because a server fails.
        is_kept: whether it was on disk before.
    """

    source: Source
    hops: tuple[Hop, ...]
    is_stale: bool = False
    is_kept: bool = True


class Sources:
    """The sources of all accounts. Safe for concurrent use within one event loop.

    Args:
        cache, locks: shared with other processes. The locks are of this class alone.
        clock: of all nodes alike. It says how old a source is, so a wrong one costs a fetch and never shows a
            wrong image.
        forget: called in a thread with the digest of a source that was purged, for what is kept by digests.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        cache: DiskCache[SourceHead],
        locks: KeyLocks,
        clock: Clock,
        config: SourceConfig,
        purges: PurgeBook,
        usage: UsageCounter,
        forget: Callable[[str], object],
    ) -> None:
        self._fetcher = fetcher
        self._cache = cache
        self._locks = locks
        self._clock = clock
        self._config = config
        self._purges = purges
        self._usage = usage
        self._forget = forget
        self._single_flight: SingleFlight[tuple[str, int, HostRules], FoundSource] = SingleFlight()
        waiting = Shares(config.waiting, "too many images wait to be fetched")
        self._hosts = TurnsByKey(config.fetches_per_host, waiting)
        self._accounts = TurnsByKey(max(1, config.fetches // 2), waiting)
        self._all = Turns(config.fetches, waiting)
        self._failing: TtlCache[str, bool] = TtlCache(clock, config.retry_s, _FAILING_SOURCES)
        self._replaced: TtlCache[str, bool] = TtlCache(clock, config.retry_s, _FAILING_SOURCES)
        self.memory = Shares(config.memory_bytes, "too many images are being processed")
        self._queues = TurnsByKey(1, waiting)  # of those for whom there was no room; one for each address
        self.fetched = 0

    async def get(self, asker: Asker, url: str, rules: HostRules) -> FoundSource:
        """The source for an account, from the cache while it is fresh.

        Raises:
            InvalidUrl, ForbiddenUrl: the URL is malformed, or not for us to ask.
            UpstreamFailed, UpstreamTimeout: no image could be had.
            Unavailable: too many are fetched or held.
        """
        rules.check(url)
        origin = self._purges.origin(asker.account, url)
        key = _key(asker.account, url)
        # Who asks after a purge, or under other rules, does not get what was fetched for it before.
        wanted = _Wanted(key, origin, asker, url, rules)
        return await self._single_flight.run(
            (key, origin.number, rules), lambda: self._load(wanted), (Unavailable,)
        )

    async def get_another(
        self, asker: Asker, url: str, rules: HostRules, failed: Source
    ) -> FoundSource | None:
        """The source in place of a kept one that cannot be decoded; None where it would be the same again.

        What was kept is removed and fetched again, once in `retry_s`: whoever asks for many sizes of an image
        that is broken at its server does not have it fetched for each. Raises as `get` does.
        """
        key = _key(asker.account, url)
        is_first = key not in self._replaced
        if is_first:
            self._replaced.put(key, True)
            await asyncio.to_thread(self._cache.remove, key)
        found = await self.get(asker, url, rules)
        return found if is_first or found.source.digest != failed.digest else None

    def allows(self, hops: tuple[Hop, ...]) -> bool:
        """Whether what came over these servers might be fetched by this process; not where none is known."""
        return bool(hops) and self._fetcher.allows(hops)

    def remove_purged(self) -> int:
        """Remove what was purged from the cache; returns how many. Blocks."""
        return self._cache.remove_where(self._is_purged)

    async def close(self) -> None:
        """End what runs."""
        await self._single_flight.close()

    async def _load(self, wanted: "_Wanted") -> FoundSource:
        queue = f"{wanted.asker.account}\n{wanted.asker.address}"
        if queue not in self._queues:  # else it would take the room that others wait for
            try:
                return await self._load_at_once(wanted)
            except Unavailable:
                if not wanted.reserve.was_too_small:
                    raise
        async with self._queues.held(queue, wanted.asker), self._reserved(wanted.asker) as reserve:
            return await self._load_at_once(replace(wanted, reserve=reserve))

    @asynccontextmanager
    async def _reserved(self, asker: Asker) -> AsyncIterator["_Reserve"]:
        """Room for a source, as soon as there is some. Raises Unavailable where that takes too long."""
        size_bytes = min(self._config.max_bytes, self._config.memory_bytes // _RESERVED_SHARE)
        clock = asyncio.get_running_loop().time
        until_s, look_s = clock() + self._config.room_s, _ROOM_LOOK_S
        while True:  # sources end in any thread, and where they are collected
            try:
                self.memory.take(asker, size_bytes)
                break
            except Unavailable:
                if clock() > until_s:
                    raise
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, _ROOM_LOOK_MOST_S)
        reserve = _Reserve(size_bytes)
        try:
            yield reserve
        finally:
            self.memory.give_back(asker, reserve.take(size_bytes))

    async def _load_at_once(self, wanted: "_Wanted") -> FoundSource:
        """As far as there is room; raises Unavailable where there is not."""
        kept = await self._find(wanted)
        if kept is not None and self._is_fresh(kept[0]):
            return FoundSource(kept[1], kept[0].hops)
        del kept  # its bytes need not be held twice
        async with self._locks.held(wanted.key):
            kept = await self._find(wanted)
            if kept is not None and self._is_fresh(kept[0]):
                return FoundSource(kept[1], kept[0].hops)  # another process has fetched it meanwhile
            return await self._refresh(wanted, kept)

    async def _find(self, wanted: "_Wanted") -> tuple[SourceHead, Source] | None:
        """What is on disk and might be fetched now. Raises Unavailable if it cannot be held."""
        return await asyncio.to_thread(self._read, wanted) if self._cache.has(wanted.key) else None

    async def _refresh(self, wanted: "_Wanted", kept: tuple[SourceHead, Source] | None) -> FoundSource:
        """Ask the server, unless it was failing a moment ago."""
        may_be_stale = kept is not None and 0 <= self._age_s(kept[0]) < self._config.stale_s
        if kept is not None and may_be_stale and wanted.key in self._failing:
            return FoundSource(kept[1], kept[0].hops, is_stale=True)
        try:
            return await self._ask(wanted, kept)
        except _Failing as failing:
            if kept is None or not may_be_stale:
                raise failing.error from None
            self._failing.put(wanted.key, True)
            return FoundSource(kept[1], kept[0].hops, is_stale=True)

    def _keep(self, key: str, head: SourceHead, parts: Sequence[bytes]) -> Source:
        """A source on disk, or in memory if the disk has not taken it. Blocks.

        Raises Unavailable where there is no room for it.
        """
        kept = self._cache.write_and_open(key, head, parts)
        if self._is_purged(head):  # meanwhile, and the disk may have been cleared by then
            self._cache.remove(key)
        return Source(head.digest, kept or BodyFile.of_parts(parts))

    def _renew(self, key: str, head: SourceHead, source: Source) -> None:
        """Write a source that is as it was with a new head. Blocks."""
        with suppress(OSError):
            self._cache.write(key, head, source.body.read())
        if self._is_purged(head):
            self._cache.remove(key)

    def _read(self, wanted: "_Wanted") -> tuple[SourceHead, Source] | None:
        """See `_find`. In a thread."""
        with self._counting(wanted) as count:
            kept = self._cache.open(wanted.key, count.take)
            if kept is None or not 0 <= self._age_s(kept[0]) < self._config.kept_s:
                return None
            if self._is_purged(kept[0]):
                self._cache.remove(wanted.key)
                return None
            if not (self.allows(kept[0].hops) and wanted.rules.allows(kept[0].hops)):
                return None
            return kept[0], count.keep(Source(kept[0].digest, kept[1]))

    async def _ask(self, wanted: "_Wanted", kept: tuple[SourceHead, Source] | None) -> FoundSource:
        """The source as its server has it now, which is kept. Raises _Failing for what may be over soon."""
        with self._counting(wanted) as count:
            try:
                validators = {} if kept is None else kept[0].validators
                fetched = await self._fetch(wanted, validators, count)
            except (UpstreamFailed, UpstreamTimeout) as error:
                raise _Failing(error) from error
            if fetched.status == 304 and kept is not None:
                head = msgspec.structs.replace(
                    kept[0], checked_time=self._now_s(), origin=wanted.origin, hops=fetched.hops
                )
                await asyncio.to_thread(self._renew, wanted.key, head, kept[1])
                return FoundSource(kept[1], fetched.hops)
            if fetched.status != 200:
                answered = UpstreamFailed(f"the upstream answers {fetched.status}")
                raise _Failing(answered) if fetched.status in _PASSING else answered
            source = count.keep(await asyncio.to_thread(self._take_over, wanted, fetched))
            return FoundSource(source, fetched.hops, is_kept=False)

    def _take_over(self, wanted: "_Wanted", fetched: Fetched) -> Source:
        """The source of a reply, which is kept. Blocks. Raises Unavailable."""
        digest = digest_of_parts(fetched.parts)
        validators = _validators(fetched.headers)
        head = SourceHead(digest, self._now_s(), validators, wanted.origin, fetched.hops)
        return self._keep(wanted.key, head, fetched.parts)

    async def _fetch(self, wanted: "_Wanted", validators: Mapping[str, str], count: "_Count") -> Fetched:
        config, asker = self._config, wanted.asker
        headers = {"accept": _ACCEPT, "user-agent": _USER_AGENT}
        headers |= {_VALIDATORS[name]: value for name, value in validators.items()}
        request = FetchRequest(
            wanted.url,
            config.total_s,
            config.max_bytes,
            headers=headers,
            check=wanted.rules.check_target,
            count=count.take,
            asker=asker,
        )
        async with (
            self._hosts.held(parse_url(wanted.url).host, asker),
            self._accounts.held(asker.account, asker),
            self._all.held(asker),
        ):
            self.fetched += 1
            self._usage.count_images(asker.account, ImagesUsed(fetches=1))
            return await self._fetcher.fetch(request)

    @contextmanager
    def _counting(self, wanted: "_Wanted") -> Iterator["_Count"]:
        """Count bytes that are held, and forget those that no source has come to hold."""
        count = _Count(self.memory, wanted.asker, wanted.reserve)
        try:
            yield count
        finally:
            count.drop()

    def _is_purged(self, head: SourceHead) -> bool:
        """Whether a kept source must not be used; what hangs on its digest is forgotten then. In a thread."""
        if not self._purges.is_gone(head.origin):
            return False
        self._forget(head.digest)
        return True

    def _is_fresh(self, head: SourceHead) -> bool:
        return 0 <= self._age_s(head) < self._config.fresh_s

    def _age_s(self, head: SourceHead) -> float:
        return age_s(self._now_s(), head.checked_time)

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1_000


class _Reserve:
    """Bytes that are counted before they come.

    Attributes:
        was_too_small: whether more came, for which there was no room.
    """

    def __init__(self, size_bytes: int) -> None:
        self.was_too_small = False
        self._left_bytes = size_bytes

    def take(self, size_bytes: int) -> int:
        """Use up so many, or as many as are left, which is returned."""
        taken = min(size_bytes, self._left_bytes)
        self._left_bytes -= taken
        return taken


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A source that is asked for; `key` is its name in the cache, `origin` what the purges were then."""

    key: str
    origin: Origin
    asker: Asker
    url: str
    rules: HostRules
    reserve: _Reserve = field(default_factory=lambda: _Reserve(0))


class _Count:
    """The bytes of one body on its way to being a source."""

    def __init__(self, memory: Shares, asker: Asker, reserve: _Reserve) -> None:
        self._memory = memory
        self._asker = asker
        self._reserve = reserve
        self._held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count some more. Raises Unavailable."""
        reserved_bytes = self._reserve.take(size_bytes)
        self._held_bytes += reserved_bytes
        if reserved_bytes == size_bytes:
            return  # for nothing more there might be no room
        try:
            self._memory.take(self._asker, size_bytes - reserved_bytes)
        except Unavailable:
            self._reserve.was_too_small = True
            raise
        self._held_bytes += size_bytes - reserved_bytes

    def keep(self, source: Source) -> Source:
        """They count from now on for as long as the source lives."""
        give_back = weakref.finalize(source, self._memory.give_back, self._asker, self._held_bytes)
        give_back.atexit = False
        self._held_bytes = 0
        return source

    def drop(self) -> None:
        """They are not held."""
        self._memory.give_back(self._asker, self._held_bytes)
        self._held_bytes = 0


class _Failing(Exception):
    """The server cannot be asked, or says that it has trouble."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(error.message)
        self.error = error


def age_s(now_s: float, made_s: float) -> float:
    """How old something is that any process has made; negative where a clock has been set back."""
    return 0.0 if now_s < made_s <= now_s + _APART_S else now_s - made_s


def _key(account: str, url: str) -> str:
    return f"source\n{account}\n{url}"


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: headers[name]
        for name in _VALIDATORS
        if name in headers and len(headers[name]) <= _MAX_VALIDATOR_CHARACTERS
    }
