"""Responses of data sources: fetched within a project's share of connections, and cached.

Only good replies to a GET are kept, each under everything that was sent for it, so that whoever would have
sent something else gets something else. Equal requests at the same time are sent once where they may be
kept. The oldest used replies go when the kept ones take too many bytes.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace

import orjson

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.concurrency.shares import Asker
from broker.concurrency.single_flight import SingleFlight
from broker.domain.data_sources import OutgoingRequest
from broker.errors import SlowDown
from broker.fetching.fetcher import Fetched, Fetcher, FetchRequest

ProjectKey = tuple[str, str]
"""An account, and the id of one of its projects."""

_OVERHEAD_BYTES = 1024  # of one kept reply beside its body, its headers among it


@dataclass(frozen=True, slots=True)
class SourceReplyConfig:
    """Bounds of one process.

    Attributes:
        max_bytes: of one reply.
        project_requests: that one project may have under way at a time.
        cache_bytes: of all kept replies.
    """

    max_bytes: int
    project_requests: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class SourceReply:
    """A reply, and for how many seconds it may still be used."""

    fetched: Fetched
    left_s: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """A reply, and when it came, in monotonic seconds."""

    fetched: Fetched
    came_s: float


class SourceReplies:
    """Calls data sources, with a cache and limits. Use from one event loop; `close` ends its requests."""

    def __init__(self, fetcher: Fetcher, clock: Clock, config: SourceReplyConfig) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._config = config
        self._busy: Counter[ProjectKey] = Counter()
        self._kept: TtlCache[bytes, _Kept] = TtlCache(clock, 0, config.cache_bytes, _size)
        self._single_flight: SingleFlight[bytes, Fetched] = SingleFlight()

    async def close(self) -> None:
        """End what is under way and close all connections."""
        await self._single_flight.close()
        await self._fetcher.close()

    async def get(
        self, project: ProjectKey, asker: Asker, request: OutgoingRequest, total_s: float, cache_s: float
    ) -> SourceReply:
        """The reply to a request, fetched or kept.

        Args:
            project: nothing is shared between two.
            asker: for whom it is fetched, where it is not kept.
            total_s: how long fetching may take.
            cache_s: how old a good reply may be, whoever had it fetched; 0 for none that is kept.

        Raises:
            SlowDown: the project has as many requests under way as it may.
            ForbiddenUrl, InvalidUrl, UpstreamFailed, UpstreamTimeout: see `Fetcher.fetch`.
        """
        if request.method != "GET" or cache_s <= 0:
            return SourceReply(await self._fetch(project, asker, request, total_s), 0)
        key = _key(project, request)
        kept = self._kept.get(key)
        if kept is not None:
            left_s = kept.came_s + cache_s - self._clock.monotonic_s()
            if left_s > 0:
                return SourceReply(kept.fetched, left_s)
        fetched = await self._single_flight.run(
            key, lambda: self._fetch_and_keep(key, project, asker, request, total_s, cache_s)
        )
        return SourceReply(fetched, cache_s if _is_good(fetched) else 0)

    async def _fetch_and_keep(
        self,
        key: bytes,
        project: ProjectKey,
        asker: Asker,
        request: OutgoingRequest,
        total_s: float,
        cache_s: float,
    ) -> Fetched:
        fetched = await self._fetch(project, asker, request, total_s)
        if _is_good(fetched):
            fetched = replace(fetched, parts=(fetched.body,))  # so that it costs nothing to use again
            self._kept.put(key, _Kept(fetched, self._clock.monotonic_s()), lasts_s=cache_s)
        return fetched

    async def _fetch(
        self, project: ProjectKey, asker: Asker, request: OutgoingRequest, total_s: float
    ) -> Fetched:
        if self._busy[project] >= self._config.project_requests:
            raise SlowDown("too many requests of this project are in progress", retry_after_s=1)
        self._busy[project] += 1
        try:
            return await self._fetcher.fetch(
                FetchRequest(
                    url=request.url,
                    total_s=total_s,
                    max_bytes=self._config.max_bytes,
                    method=request.method,
                    headers=request.headers,
                    body=request.body,
                    asker=asker,
                )
            )
        finally:
            self._busy[project] -= 1
            if not self._busy[project]:
                del self._busy[project]


def _is_good(fetched: Fetched) -> bool:
    return 200 <= fetched.status < 300


def _size(kept: _Kept) -> int:
    return kept.fetched.body_bytes + _OVERHEAD_BYTES


def _key(project: ProjectKey, request: OutgoingRequest) -> bytes:
    content = [*project, request.method, request.url, sorted(request.headers.items())]
    return hashlib.sha256(orjson.dumps(content)).digest()
