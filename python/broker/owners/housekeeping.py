"""What one owner does for the whole product now and then: condensing, and deleting what is too old."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.clock import Clock
from broker.errors import Unavailable
from broker.settings import Settings
from broker.storage.audit import Audit
from broker.storage.database import Database
from broker.storage.history import History
from broker.storage.program_changes import ProgramChanges
from broker.storage.rate_buckets import RateBuckets
from broker.storage.statistics_upkeep import Retention, StatisticsUpkeep
from broker.storage.stored_values import StoredValues

_log = logging.getLogger(__name__)
_EVERY_S = 600.0
_ROWS = 10_000  # a statement
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000


class Housekeeping:
    """Run by the owner of slot 0; a second one at the same time does no harm."""

    def __init__(self, settings: Settings, database: Database, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._history = History(database)
        self._changes = ProgramChanges(database, clock)
        self._stored_values = StoredValues(database)
        self._audit = Audit(database)
        self._rate_buckets = RateBuckets(database)
        self._statistics = StatisticsUpkeep(database, Retention.of(settings))

    async def run(self) -> None:
        """A round every ten minutes, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.run_once()
            except Unavailable as error:
                _log.info("purge_waits reason=%s", error.log_text)

    async def run_once(self) -> None:
        """One round. Raises Unavailable."""
        now_ms = self._clock.now_ms()
        history_ms = now_ms - int(self._settings.history_hours * 3_600_000)
        await _until_done(lambda: self._history.purge(history_ms, now_ms - _DAY_MS, _ROWS))
        await _until_done(lambda: self._changes.purge(now_ms - _DAY_MS, _ROWS))
        await _until_done(lambda: self._stored_values.purge(now_ms - _HOUR_MS, _ROWS))
        await _until_done(lambda: self._rate_buckets.purge(now_ms * 1000, _ROWS))
        await self._statistics.condense(now_ms)
        await _until_done(lambda: self._statistics.purge(now_ms, _ROWS))
        if self._settings.audit_days:
            await _until_done(lambda: self._audit.purge(self._settings.audit_days, _ROWS))


async def _until_done(purge: Callable[[], Awaitable[bool | int]]) -> None:
    while await purge():
        continue
