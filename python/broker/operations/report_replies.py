"""Reports of Matomo: fetched within a project's share, cached, and bounded.

A report that fits the look-ahead of `broker.analytics.matomo` is read whole before it is answered: what is
wrong with it is an error and not half a reply. Equal requests meanwhile wait for it. One that is longer is
passed on as it comes, at the pace of its reader, and holds its request to Matomo open. When it breaks off or
exceeds the limit, the reply is cut so that it cannot be taken for a whole. On its way it is copied, to be
kept, while it and all copies under way are small.

Whoever asks first works for those who wait. When its client goes, its request to Matomo ends, and the next
one asks.
"""

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum

import orjson

from broker.analytics.errors import MatomoError, report_error
from broker.analytics.matomo import Matomo, OpenReport, Request
from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.errors import BrokerError, SlowDown
from broker.operations.results import Json, Stream

_KEPT_BYTES = 1 << 20  # of one report; a table of 10,000 rows has about that
_PART_BYTES = 64 << 10  # of a kept one, sent at a time: what a slow reader holds of it
_OVERHEAD_BYTES = 1024  # of one kept report beside its body


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Bounds of one process.

    Attributes:
        max_bytes: of one report.
        cache_bytes: of all reports that are kept; of copies under way a quarter of that, besides.
        project_requests: that one project may have under way at a time.
        account_requests: that one account may, so that none takes all connections with slow readers.
    """

    max_bytes: int
    cache_bytes: int
    project_requests: int = 8
    account_requests: int = 24


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    ends_s: float


class _End(Enum):
    """How a request ended that has nothing for those who waited."""

    LONG = "the report is passed on to one reader"
    GONE = "its client has gone"


_Outcome = _Kept | BrokerError | _End


class ReportReplies:
    """Reads, caches and limits reports of Matomo. Use from one event loop."""

    def __init__(self, clock: Clock, config: ReportConfig) -> None:
        self._clock = clock
        self._config = config
        self._busy: Counter[tuple[str, ...]] = Counter()
        self._kept: TtlCache[bytes, bytes] = TtlCache(clock, 0, config.cache_bytes, _size)
        self._copied_bytes = 0
        self._asking: dict[bytes, asyncio.Future[_Outcome]] = {}

    async def get(
        self, project: tuple[str, str], url: str, matomo: Matomo, request: Request, kept_s: float
    ) -> Json | Stream:
        """A report, fetched or kept. A `Stream` must be closed, read or not.

        Args:
            project: account and project id; nothing is shared between two.
            url: of the Matomo that `matomo` is.
            kept_s: how long it may be used again.

        Raises:
            SlowDown: the project or its account has as many requests under way as it may.
            BadGateway, GatewayTimeout: Matomo failed, refused, or did not answer in time. The stream's
                chunks raise them too.
        """
        key = _key(project, url, request)
        joins = True
        while True:
            kept = self._find(key)
            if kept is not None:
                return self._answer(kept)
            asking = self._asking.get(key) if joins else None
            if asking is None:
                return await self._ask(key, project, matomo, request, kept_s)
            outcome = await asyncio.shield(asking)
            if isinstance(outcome, _Kept):
                return self._answer(outcome)
            if isinstance(outcome, BrokerError):
                raise outcome
            joins = outcome is _End.GONE

    async def _ask(
        self, key: bytes, project: tuple[str, str], matomo: Matomo, request: Request, kept_s: float
    ) -> Json | Stream:
        self._take_share(project)
        told: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        is_first = self._asking.setdefault(key, told) is told
        outcome: _Outcome = _End.GONE
        try:
            report = await matomo.open_report(request, self._config.max_bytes)
            if not report.is_whole:
                outcome = _End.LONG
                return self._passed_on(key, project, report, kept_s)
            await report.close()
            outcome = self._keep(key, report.beginning, kept_s)
            return self._answer(outcome)
        except MatomoError as error:
            outcome = report_error(error)
            raise outcome from error
        finally:
            if is_first:
                del self._asking[key]
                told.set_result(outcome)
            if outcome is not _End.LONG:
                self._leave_share(project)

    def _passed_on(self, key: bytes, project: tuple[str, str], report: OpenReport, kept_s: float) -> Stream:
        """A long report, which has its share until it is closed."""

        async def release() -> None:
            self._leave_share(project)
            await report.close()

        return Stream(self._parts(key, report, kept_s), headers=_headers(0), release=release)

    async def _parts(self, key: bytes, report: OpenReport, kept_s: float) -> AsyncIterator[bytes]:
        copy: bytearray | None = None
        try:
            copy = self._copied(bytearray(), report.beginning)
            async for part in _slices(report.beginning):
                yield part
            async for part in report.rest():
                copy = self._copied(copy, part)
                yield part
            if copy is not None:
                self._keep(key, bytes(copy), kept_s)
        except MatomoError as error:
            raise report_error(error) from error
        finally:
            self._copied_bytes -= len(copy or b"")

    def _copied(self, copy: bytearray | None, part: bytes) -> bytearray | None:
        """The copy with the part; None, from then on, where it becomes too much."""
        if copy is None:
            return None
        all_bytes = self._copied_bytes + len(part)
        if len(copy) + len(part) > _KEPT_BYTES or all_bytes > self._config.cache_bytes // 4:
            self._copied_bytes -= len(copy)
            return None
        self._copied_bytes = all_bytes
        copy += part
        return copy

    def _take_share(self, project: tuple[str, str]) -> None:
        account = project[:1]
        config = self._config
        is_full = self._busy[project] >= config.project_requests
        if is_full or self._busy[account] >= config.account_requests:
            whose = "this project" if is_full else "this account"
            raise SlowDown(f"too many reports of {whose} are in progress", retry_after_s=1)
        self._busy.update((project, account))

    def _leave_share(self, project: tuple[str, str]) -> None:
        self._busy.subtract((project, project[:1]))
        for one in (project, project[:1]):
            if not self._busy[one]:
                del self._busy[one]

    def _answer(self, kept: _Kept) -> Json | Stream:
        headers = _headers(kept.ends_s - self._clock.monotonic_s())
        if len(kept.body) <= _PART_BYTES:
            return Json(kept.body, headers)
        return Stream(_slices(kept.body), headers=headers)

    def _find(self, key: bytes) -> _Kept | None:
        kept = self._kept.find(key)
        return None if kept is None else _Kept(*kept)

    def _keep(self, key: bytes, body: bytes, kept_s: float) -> _Kept:
        kept = _Kept(body, self._clock.monotonic_s() + kept_s)
        self._kept.put(key, body, until_s=kept.ends_s)
        return kept


def _size(body: bytes) -> int:
    return len(body) + _OVERHEAD_BYTES


def _headers(left_s: float) -> Mapping[str, str]:
    seconds = math.floor(left_s)
    return {"Cache-Control": f"private, max-age={seconds}" if seconds > 0 else "no-store"}


def _key(project: tuple[str, str], url: str, request: Request) -> bytes:
    content = [*project, url, request.method, sorted(request.parameters.items())]
    return hashlib.sha256(orjson.dumps(content)).digest()


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PART_BYTES):
        yield body[start : start + _PART_BYTES]
