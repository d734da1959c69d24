"""Source pictures: fetched safely, kept with what lets them be asked for again cheaply.

A source is fresh for a while; after that it is asked for with the validators that its server gave (RFC 9110,
section 13.1), and stays as it is when the server says so. A server that fails then does not take its pictures
with it: the old one is shown for some time (RFC 5861, section 4). Each source carries the digest of its
bytes, which results and faces are tied to: they outlive a new fetch that brings the same picture.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from broker.auth.single_flight import SingleFlight
from broker.clock import Clock
from broker.errors import BrokerError, Unavailable
from broker.fetching.errors import UpstreamFailed, UpstreamTimeout
from broker.fetching.fetcher import Fetched, Fetcher, FetchRequest
from broker.images.disk_cache import DiskCache
from broker.images.host_rules import HostRules

_ACCEPT = "image/avif,image/webp,image/png,image/jpeg,image/gif;q=0.9"
_USER_AGENT = "onair-broker"
_VALIDATORS = {"etag": "if-none-match", "last-modified": "if-modified-since"}
_MAX_VALIDATOR_CHARACTERS = 1_024
_PASSING = frozenset({408, 429, *range(500, 600)})


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """How sources are fetched.

    Attributes:
        max_bytes: of one source; total_s: of its fetching, over all redirects.
        fresh_s: how long a source is not asked for again, and `stale_s` how long it is shown while its server
            fails.
        memory_bytes: that all fetches under way may hold together; more of them wait, within their time.
    """

    max_bytes: int = 20 << 20
    total_s: float = 10.0
    fresh_s: float = 3_600.0
    stale_s: float = 86_400.0
    memory_bytes: int = 128 << 20


class SourceHead(msgspec.Struct, frozen=True):
    """What is kept of a source beside its bytes."""

    digest: str
    checked_time: float
    validators: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A source picture. `digest` names its bytes."""

    digest: str
    body: bytes


class Sources:
    """The sources of all accounts. Safe for concurrent use within one event loop.

    Args:
        cache: shared with other processes.
        clock: its wall clock says how old a source is, so a wrong one costs a fetch and never shows a wrong
            picture.
    """

    def __init__(
        self, fetcher: Fetcher, cache: DiskCache[SourceHead], clock: Clock, config: SourceConfig
    ) -> None:
        self._fetcher = fetcher
        self._cache = cache
        self._clock = clock
        self._config = config
        self._flights: SingleFlight[str, Source] = SingleFlight()
        self._fetches = asyncio.Semaphore(max(1, config.memory_bytes // config.max_bytes))
        self.fetched = 0

    async def get(self, account: str, url: str, rules: HostRules) -> Source:
        """The source, from the cache while it is fresh.

        Raises:
            InvalidUrl, ForbiddenUrl: the URL is malformed, or not for us to ask.
            UpstreamFailed, UpstreamTimeout: no picture could be had.
        """
        rules.check(url)
        key = _key(account, url)
        return await self._flights.run(key, lambda: self._load(key, url, rules))

    async def forget(self, account: str, url: str) -> bool:
        """Have the source fetched anew; whether it was kept."""
        return await asyncio.to_thread(self._cache.remove, _key(account, url))

    async def close(self) -> None:
        """End what runs."""
        await self._flights.close()

    async def _load(self, key: str, url: str, rules: HostRules) -> Source:
        kept = await asyncio.to_thread(self._cache.read, key)
        age_s = self._now_s() - kept[0].checked_time if kept is not None else -1.0
        if kept is not None and 0 <= age_s < self._config.fresh_s:
            return Source(kept[0].digest, kept[1])
        try:
            head, body = await self._ask(url, rules, kept)
        except _Failing as failing:
            if kept is None or not 0 <= age_s < self._config.stale_s:
                raise failing.error from None
            return Source(kept[0].digest, kept[1])
        await asyncio.to_thread(self._cache.write, key, head, body)
        return Source(head.digest, body)

    async def _ask(
        self, url: str, rules: HostRules, kept: tuple[SourceHead, bytes] | None
    ) -> tuple[SourceHead, bytes]:
        """The source as its server has it now. Raises _Failing for what may be over soon."""
        try:
            fetched = await self._fetch(url, rules, {} if kept is None else kept[0].validators)
        except (UpstreamFailed, UpstreamTimeout) as error:
            raise _Failing(error) from error
        if fetched.status == 304 and kept is not None:
            return msgspec.structs.replace(kept[0], checked_time=self._now_s()), kept[1]
        if fetched.status != 200:
            answered = UpstreamFailed(f"the upstream answers {fetched.status}")
            raise _Failing(answered) if fetched.status in _PASSING else answered
        digest = hashlib.sha256(fetched.body).hexdigest()
        return SourceHead(digest, self._now_s(), _validators(fetched.headers)), fetched.body

    async def _fetch(self, url: str, rules: HostRules, validators: Mapping[str, str]) -> Fetched:
        config = self._config
        headers = {"accept": _ACCEPT, "user-agent": _USER_AGENT}
        headers |= {_VALIDATORS[name]: value for name, value in validators.items()}
        request = FetchRequest(
            url, config.total_s, config.max_bytes, headers=headers, check=rules.check_target
        )
        try:
            async with asyncio.timeout(config.total_s):
                await self._fetches.acquire()
        except TimeoutError:
            raise Unavailable("too many pictures are being fetched", retry_after_s=1) from None
        try:
            self.fetched += 1
            return await self._fetcher.fetch(request)
        finally:
            self._fetches.release()

    def _now_s(self) -> float:
        return self._clock.now_ms() / 1_000


class _Failing(Exception):
    """The server cannot be asked, or says that it has trouble."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(error.message)
        self.error = error


def _key(account: str, url: str) -> str:
    return f"source\n{account}\n{url}"


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: headers[name]
        for name in _VALIDATORS
        if name in headers and len(headers[name]) <= _MAX_VALIDATOR_CHARACTERS
    }
