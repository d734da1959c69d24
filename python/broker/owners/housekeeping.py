"""Periodic work of one owner for the whole product: condensing, and deleting old rows."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from broker.clock import Clock
from broker.concurrency.periodic import repeat
from broker.settings import Settings
from broker.storage.audit import Audit
from broker.storage.database import Database
from broker.storage.event_retention import EventRetention
from broker.storage.former_histories import FormerHistories
from broker.storage.history import History
from broker.storage.program_changes import ProgramOutbox
from broker.storage.rate_buckets import RateBuckets
from broker.storage.statistics_upkeep import Retention, StatisticsUpkeep
from broker.storage.stored_values import StoredValues

_EVERY_S = 600.0
_ROWS = 10_000  # a statement
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000
_RETRIES_S = 300.0  # at least; for so long what a publish left behind is kept, in case it is repeated


class Housekeeping:
    """Run by the owner of slot 0; a second one at the same time does no harm."""

    def __init__(self, settings: Settings, database: Database, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._retries = timedelta(seconds=max(_RETRIES_S, 2 * settings.publish_timeout_s))
        self._history = History(database)
        self._former_histories = FormerHistories(database)
        self._retention = EventRetention(database)
        self._changes = ProgramOutbox(database, clock)
        self._stored_values = StoredValues(database)
        self._audit = Audit(database)
        self._rate_buckets = RateBuckets(database)
        self._statistics = StatisticsUpkeep(database, Retention.of(settings))

    async def run(self) -> None:
        """A round every ten minutes, until cancelled."""
        await repeat("housekeeping", _EVERY_S, self.run_once)

    async def run_once(self) -> None:
        """One round. Raises Unavailable."""
        now_ms = self._clock.now_ms()
        recovery = timedelta(hours=self._settings.history_hours)
        history_ms = now_ms - max(recovery, self._retries) // timedelta(milliseconds=1)
        await self._until_done(lambda: self._history.purge(history_ms, _ROWS))
        await self._until_done(lambda: self._retention.purge(max(recovery, self._retries), _ROWS))
        await self._until_done(lambda: self._former_histories.purge(self._retries, _ROWS))
        await self._until_done(lambda: self._changes.purge(now_ms - _DAY_MS, _ROWS))
        await self._until_done(lambda: self._stored_values.purge(now_ms - _HOUR_MS, _ROWS))
        await self._until_done(lambda: self._rate_buckets.purge(now_ms * 1000, _ROWS))
        await self._statistics.condense(now_ms)
        await self._until_done(lambda: self._statistics.purge(now_ms, _ROWS))
        if self._settings.audit_days:
            await self._until_done(lambda: self._audit.purge(self._settings.audit_days, _ROWS))

    async def _until_done(self, purge: Callable[[], Awaitable[bool | int]]) -> None:
        """Repeat a purge until nothing is left, at half speed: publishers wait for the same server."""
        while True:
            began_s = self._clock.monotonic_s()
            if not await purge():
                return
            await asyncio.sleep(self._clock.monotonic_s() - began_s)
