"""Reports as Matomo answers them: fetched within a project's share, kept for a while, and bounded.

A report is read to its end before the first byte of it is answered, so that one that breaks off or is too
large is an error and not half a reply. Small ones are read into memory and may be used again; of large ones
all but the beginning is in a file without a name, and is answered from there in parts. Equal requests at the
same time are one request to Matomo.
"""

import asyncio
import hashlib
import math
import os
import tempfile
import weakref
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from broker.analytics.errors import MatomoError, report_error
from broker.analytics.matomo import Matomo, Request
from broker.auth.single_flight import SingleFlight
from broker.clock import Clock
from broker.errors import BadGateway, SlowDown
from broker.operations.registry import Json, Stream

_MEMORY_BYTES = 1 << 20  # of one report; a table of 1,000 rows has about a tenth of that
_PART_BYTES = 256 << 10
_OVERHEAD_BYTES = 1024  # of one kept report beside its body


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Bounds of one process.

    Attributes:
        max_bytes: of one report.
        cache_bytes: of all reports that are kept.
        project_requests: that one project may have under way at a time.
    """

    max_bytes: int
    cache_bytes: int
    project_requests: int = 8


class Spool:
    """Bytes that are written once, in order, then read any number of times: in memory while they are few."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._file: int | None = None

    async def write(self, part: bytes) -> None:
        """Append. One writer at a time."""
        self.size += len(part)
        if self._file is None and self.size <= _MEMORY_BYTES:
            self._parts.append(part)
            return
        if self._file is None:
            self._file = await asyncio.to_thread(_unnamed_file)
            weakref.finalize(self, os.close, self._file)
            await asyncio.to_thread(_write, self._file, b"".join(self._parts))
            self._parts = []
        await asyncio.to_thread(_write, self._file, part)

    def small(self) -> bytes | None:
        """All of it, when it is in memory."""
        return None if self._file is not None else b"".join(self._parts)

    async def read(self) -> AsyncIterator[bytes]:
        """All of it, in parts."""
        assert self._file is not None, "what is in memory is answered whole"
        for start in range(0, self.size, _PART_BYTES):
            yield await asyncio.to_thread(os.pread, self._file, _PART_BYTES, start)


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    ends_s: float


class ReportReplies:
    """See the module's docstring. Use from one event loop; `close` ends what is under way."""

    def __init__(self, clock: Clock, config: ReportConfig) -> None:
        self._clock = clock
        self._config = config
        self._busy: Counter[tuple[str, str]] = Counter()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._flights: SingleFlight[bytes, Spool] = SingleFlight()

    async def close(self) -> None:
        """End what is under way."""
        await self._flights.close()

    async def get(
        self, project: tuple[str, str], url: str, matomo: Matomo, request: Request, kept_s: float
    ) -> Json | Stream:
        """A report, fetched or kept.

        Args:
            project: account and project id; nothing is shared between two.
            url: of the Matomo that `matomo` is.
            kept_s: how long it may be used again.

        Raises:
            SlowDown: the project has as many requests under way as it may.
            BadGateway, GatewayTimeout: Matomo failed, refused, or did not answer in time.
        """
        key = _key(project, url, request)
        kept = self._find(key)
        if kept is not None:
            return Json(kept.body, _headers(kept.ends_s - self._clock.monotonic_s()))
        spool = await self._flights.run(key, lambda: self._fetch(key, project, matomo, request, kept_s))
        small = spool.small()
        return Stream(spool.read(), headers=_headers(0)) if small is None else Json(small, _headers(kept_s))

    async def _fetch(
        self, key: bytes, project: tuple[str, str], matomo: Matomo, request: Request, kept_s: float
    ) -> Spool:
        if self._busy[project] >= self._config.project_requests:
            raise SlowDown("too many reports of this project are under way", retry_after_s=1)
        self._busy[project] += 1
        try:
            spool = await self._read(matomo, request)
        except MatomoError as error:
            raise report_error(error) from error
        finally:
            self._busy[project] -= 1
            if not self._busy[project]:
                del self._busy[project]
        small = spool.small()
        if small is not None:
            self._keep(key, _Kept(small, self._clock.monotonic_s() + kept_s))
        return spool

    async def _read(self, matomo: Matomo, request: Request) -> Spool:
        spool = Spool()
        async with matomo.report(request) as parts:
            async for part in parts:
                if spool.size + len(part) > self._config.max_bytes:
                    raise BadGateway(f"the report is over {self._config.max_bytes} bytes")
                await spool.write(part)
        return spool

    def _find(self, key: bytes) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.ends_s <= self._clock.monotonic_s():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def _keep(self, key: bytes, kept: _Kept) -> None:
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self._kept_bytes += len(kept.body) + _OVERHEAD_BYTES
        while self._kept_bytes > self._config.cache_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self._kept_bytes -= len(self._kept.pop(key).body) + _OVERHEAD_BYTES


def _headers(left_s: float) -> Mapping[str, str]:
    seconds = math.floor(left_s)
    return {"Cache-Control": f"private, max-age={seconds}" if seconds > 0 else "no-store"}


def _key(project: tuple[str, str], url: str, request: Request) -> bytes:
    content = [*project, url, request.method, sorted(request.parameters.items())]
    return hashlib.sha256(orjson.dumps(content)).digest()


def _unnamed_file() -> int:
    """A file that nobody else can open and that is gone with its descriptor."""
    descriptor, path = tempfile.mkstemp(prefix="broker-report-")
    Path(path).unlink()
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
