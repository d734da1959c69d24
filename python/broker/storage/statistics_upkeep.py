"""Condenses statistics to hours and days, and deletes those past their retention.

An hour is condensed once, `_SETTLED` after its end, when no process adds to its minutes any more; so it does
not matter how often or by how many processes this is run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from broker.clock import to_datetime
from broker.domain.statistics import FIGURES, Interval
from broker.settings import Settings
from broker.storage.database import Database, rows_of

# Longer than the ten minutes after which a recorder gives up amounts that it could not write.
_SETTLED = timedelta(minutes=15)

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('statistics', 0))"
_MARK = "SELECT time FROM statistics_marks WHERE span = $1"
_MOVE = """
INSERT INTO statistics_marks (span, time) VALUES ($1, $2)
ON CONFLICT (span) DO UPDATE SET time = excluded.time
"""
_COUNTERS = ", ".join(f"sum({name})" for name in FIGURES[2:])
# Amounts that came too late for their hour stay in their minutes.
_CONDENSE = f"""
INSERT INTO statistics (account, span, time, program_id, project_id, {", ".join(FIGURES)})
SELECT account, $1, date_trunc($1, time, 'UTC') AS slot, program_id, project_id,
    max(connections), max(subscribers), {_COUNTERS}
FROM statistics WHERE span = $2 AND time >= $3 AND time < $4
GROUP BY account, slot, program_id, project_id
ON CONFLICT DO NOTHING
"""  # noqa: S608  # constants
# For minutes and hours that came from a backup after the mark had passed them.
_CONDENSE_ACCOUNT = _CONDENSE.replace("GROUP BY", "AND account = $5\nGROUP BY")
_PURGE = """
DELETE FROM statistics WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM statistics WHERE span = $1 AND time < $2 LIMIT $3))
"""
_PURGE_WRITERS = "DELETE FROM statistics_writers WHERE time < clock_timestamp() - interval '1 day'"
_PURGE_SEEN = "DELETE FROM producers_seen WHERE seen < clock_timestamp() - interval '1 day'"
_BEGINNING = datetime(1970, 1, 1, tzinfo=to_datetime(0).tzinfo)


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days each kind of row is kept."""

    minute_days: int
    hour_days: int
    day_days: int

    @classmethod
    def of(cls, settings: Settings) -> "Retention":
        """As the settings say."""
        return cls(
            settings.statistics_minute_days, settings.statistics_hour_days, settings.statistics_day_days
        )


class StatisticsUpkeep:
    """Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention

    async def condense(self, now_ms: int) -> None:
        """Write the hours and days that have ended since the last time."""
        hour_end = Interval.HOUR.floor(to_datetime(now_ms) - _SETTLED)
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK)
            await _condense(connection, Interval.HOUR, Interval.MINUTE, hour_end)
            await _condense(connection, Interval.DAY, Interval.HOUR, Interval.DAY.floor(hour_end))

    async def purge(self, now_ms: int, limit: int) -> bool:
        """Delete at most `limit` rows of each kind that are too old; true when there may be more.

        Rows that are not condensed yet stay.
        """
        now, kept = to_datetime(now_ms), self._retention
        deleted = 0
        async with self._database.connection() as connection:
            hour_mark = await connection.fetchval(_MARK, Interval.HOUR) or _BEGINNING
            day_mark = await connection.fetchval(_MARK, Interval.DAY) or _BEGINNING
            ends = {
                Interval.MINUTE: min(hour_mark, now - timedelta(days=kept.minute_days)),
                Interval.HOUR: min(day_mark, now - timedelta(days=kept.hour_days)),
                Interval.DAY: now - timedelta(days=kept.day_days),
            }
            for span, end in ends.items():
                tag = await connection.execute(_PURGE, span, end, limit)
                deleted = max(deleted, rows_of(tag))
            await connection.execute(_PURGE_WRITERS)
            await connection.execute(_PURGE_SEEN)
        return deleted >= limit


async def _condense(connection: asyncpg.Connection, to: Interval, of: Interval, end: datetime) -> None:
    mark = await connection.fetchval(_MARK, to) or _BEGINNING
    if end > mark:
        await connection.execute(_CONDENSE, to, of, mark, end)
        await connection.execute(_MOVE, to, end)


async def condense_account(connection: asyncpg.Connection, account: str) -> None:
    """Condense rows that an account got after their time was condensed, in the caller's transaction."""
    await connection.execute(_LOCK)
    for to, of in ((Interval.HOUR, Interval.MINUTE), (Interval.DAY, Interval.HOUR)):
        mark = await connection.fetchval(_MARK, to) or _BEGINNING
        await connection.execute(_CONDENSE_ACCOUNT, to, of, _BEGINNING, mark, account)
