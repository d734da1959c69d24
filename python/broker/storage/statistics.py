"""Statistics in PostgreSQL: adding to minutes, and reading series and the dashboard.

Minutes that are over are condensed by `broker.storage.statistics_upkeep`; marks say up to where. A series of
hours reads hours up to the mark and minutes after it, so it is complete at every moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from broker.clock import to_datetime
from broker.domain.permissions import PUBLISHERS
from broker.domain.programs import Program
from broker.domain.statistics import (
    FIGURES,
    Amount,
    Figures,
    Interval,
    IntervalFigures,
    OnlineProducerResource,
    StatisticsScope,
    TopProgramResource,
)
from broker.storage.database import Repository
from broker.storage.program_rows import PROGRAM_COLUMNS, program_of

ONLINE_S = 120.0  # two of the recommended pings; who is silent for longer is not online
TOP_PROGRAMS = 10
_HOUR = timedelta(hours=1)
_PUBLISHERS = sorted(PUBLISHERS)
_MINUTE = timedelta(minutes=1)

_COLUMNS = ", ".join(FIGURES)
_CLAIM = """
INSERT INTO statistics_writers AS w (writer, batch, time) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, time = excluded.time
    WHERE w.batch < excluded.batch
RETURNING 1
"""
_ADD = f"""
INSERT INTO statistics AS s (account, span, time, program_id, project_id, {_COLUMNS})
SELECT n.account, 'minute', timestamptz 'epoch' + n.time_ms * interval '1 millisecond', n.program_id,
    n.project_id, {", ".join(f"n.{name}" for name in FIGURES)}
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[],
    {", ".join(f"${place}::bigint[]" for place in range(5, 5 + len(FIGURES)))})
    WITH ORDINALITY AS n(account, time_ms, program_id, project_id, {_COLUMNS}, place)
JOIN accounts a ON a.name = n.account
ORDER BY n.place
ON CONFLICT (account, span, program_id, time, project_id) DO UPDATE SET
    {", ".join(f"{name} = s.{name} + excluded.{name}" for name in FIGURES)}
"""  # noqa: S608  # constants

# Rows of the scope ($4 projects or NULL, $5 program or NULL); connections are the account's own in any scope.
_IN_SCOPE = """
(CASE WHEN $5::text IS NOT NULL
    THEN s.program_id = $5 AND ($4::text[] IS NULL OR s.project_id = ANY($4))
    WHEN $4::text[] IS NULL THEN s.program_id = ''
    ELSE s.program_id <> '' AND s.project_id = ANY($4) END)
"""
_PIECES = {
    Interval.MINUTE: "s.span = 'minute'",
    Interval.HOUR: "(s.span = 'hour' AND s.time < m.hour OR s.span = 'minute' AND s.time >= m.hour)",
    Interval.DAY: (
        "(s.span = 'day' AND s.time < m.day OR s.span = 'hour' AND s.time >= m.day AND s.time < m.hour"
        " OR s.span = 'minute' AND s.time >= m.hour)"
    ),
}
_SERIES = """
WITH marks AS (
    SELECT coalesce(max(time) FILTER (WHERE span = 'hour'), '-infinity') AS hour,
        coalesce(max(time) FILTER (WHERE span = 'day'), '-infinity') AS day
    FROM statistics_marks
), moments AS (
    SELECT s.time,
        coalesce(sum(s.connections) FILTER (WHERE s.program_id = ''), 0)::bigint AS connections,
        {sums}
    FROM statistics s, marks m
    WHERE s.account = $1 AND s.time >= $2 AND s.time < $3 AND {pieces}
        AND (s.program_id = '' OR {scope})
    GROUP BY s.span, s.time
)
SELECT date_trunc('{unit}', time, 'UTC') AS slot, max(connections) AS connections,
    max(subscribers) AS subscribers, {totals}
FROM moments GROUP BY slot ORDER BY slot
"""
_TOP = """
SELECT s.program_id, coalesce(max(s.subscribers) FILTER (WHERE s.time >= $3), 0) AS subscribers,
    sum(s.events)::bigint AS events
FROM statistics s JOIN programs p ON p.account = s.account AND p.id = s.program_id
WHERE s.account = $1 AND s.span = 'minute' AND s.time >= $2 AND s.program_id <> ''
    AND ($4::text[] IS NULL OR s.project_id = ANY($4))
GROUP BY s.program_id
ORDER BY coalesce(max(s.subscribers) FILTER (WHERE s.time >= $3), 0) DESC, sum(s.events) DESC, s.program_id
LIMIT $5
"""
_LIVE = """
p.account = $1 AND p.scheduled_start <= $2 AND p.scheduled_end > $2
    AND ($3::text[] IS NULL OR coalesce(p.project_id, '') = ANY($3))
"""
_COUNT_LIVE = f"SELECT count(*) FROM programs p WHERE {_LIVE}"  # noqa: S608  # constants
_LIST_LIVE = f"""
SELECT {PROGRAM_COLUMNS} FROM programs p WHERE {_LIVE}
ORDER BY p.scheduled_start DESC, p.uid DESC LIMIT $4
"""  # noqa: S608  # constants
_SEE = """
INSERT INTO producers_seen AS s (account, user_id, seen) VALUES ($1, $2, $3)
ON CONFLICT (account, user_id) DO UPDATE SET seen = greatest(s.seen, excluded.seen)
"""
# Who is of no project shares none; $3 is NULL for who sees everybody, $4 sees itself, and $5 may publish.
_ONLINE = """
SELECT u.id AS user_id, u.username, s.seen AS last_seen
FROM producers_seen s JOIN users u ON u.account = s.account AND u.id = s.user_id
WHERE s.account = $1 AND s.seen > $2 AND u.role = ANY($5)
    AND ($3::text[] IS NULL OR u.project_ids && $3 OR u.id = $4)
ORDER BY s.seen DESC, u.id LIMIT 1000
"""


@dataclass(frozen=True, slots=True)
class DashboardFigures:
    """What a dashboard is made of; `minutes` are those of the last hour, ascending, without empty ones."""

    minutes: list[IntervalFigures]
    programs_live: int
    top: list[TopProgramResource]
    online: list[OnlineProducerResource]


class Statistics(Repository):
    """The statistics' repository. Every method raises `Unavailable` while the database is unavailable."""

    async def add(self, writer: str, batch: int, amounts: Sequence[Amount]) -> None:
        """Add to minutes, all or nothing, and once however often a batch is given.

        Args:
            writer: names the process; its batches count upwards.
        """
        columns = [
            [amount.subject.account for amount in amounts],
            [amount.minute_ms for amount in amounts],
            [amount.subject.program_id for amount in amounts],
            [amount.subject.project_id for amount in amounts],
            *([getattr(amount.figures, name) for amount in amounts] for name in FIGURES),
        ]
        async with self._database.transaction() as connection:
            if await connection.fetchval(_CLAIM, writer, batch):
                await connection.execute(_ADD, *columns)

    async def series(
        self, account: str, start: datetime, end: datetime, interval: Interval, scope: StatisticsScope
    ) -> list[IntervalFigures]:
        """The intervals from `start` (inclusive) to `end` (exclusive) that have figures, ascending.

        Of intervals longer than a minute, subscribers are the highest of their parts. For projects the parts
        are condensed program by program, so there it is the sum of each program's highest.
        """
        async with self._database.connection() as connection:
            return await _read_series(connection, account, start, end, interval, scope)

    async def dashboard(
        self, account: str, now_ms: int, recent_ms: int, scope: StatisticsScope, viewer: str
    ) -> DashboardFigures:
        """What a dashboard shows of `scope`.

        Args:
            recent_ms: from where on minutes count as now.
            viewer: the user who looks, and always sees itself online; the others by common projects.
        """
        now, projects = to_datetime(now_ms), _projects(scope)
        hour_ago = Interval.MINUTE.floor(now) + _MINUTE - _HOUR
        online_since = to_datetime(now_ms - int(ONLINE_S * 1_000))
        async with self._database.connection() as connection:
            minutes = await _read_series(connection, account, hour_ago, now, Interval.MINUTE, scope)
            live = await connection.fetchval(_COUNT_LIVE, account, now, projects)
            top = await connection.fetch(
                _TOP, account, hour_ago, to_datetime(recent_ms), projects, TOP_PROGRAMS
            )
            shared = None if projects is None else [project for project in projects if project]
            online = await connection.fetch(_ONLINE, account, online_since, shared, viewer, _PUBLISHERS)
        return DashboardFigures(
            minutes,
            live,
            [TopProgramResource.model_construct(**row) for row in top],
            [OnlineProducerResource.model_construct(**row) for row in online],
        )

    async def list_live(self, account: str, now_ms: int, scope: StatisticsScope, limit: int) -> list[Program]:
        """At most `limit` programs of the scope that are live now, the latest started first."""
        rows = await self._database.fetch(_LIST_LIVE, account, to_datetime(now_ms), _projects(scope), limit)
        return [program_of(row) for row in rows]

    async def see_producer(self, account: str, user_id: str, now_ms: int) -> None:
        """Record that a producer is active."""
        await self._database.execute(_SEE, account, user_id, to_datetime(now_ms))


async def _read_series(
    connection: asyncpg.Connection,
    account: str,
    start: datetime,
    end: datetime,
    interval: Interval,
    scope: StatisticsScope,
) -> list[IntervalFigures]:
    rows = await connection.fetch(
        _STATEMENTS[interval], account, start, end, _projects(scope), scope.program_id
    )
    return [IntervalFigures(row["slot"], Figures(**{name: row[name] for name in FIGURES})) for row in rows]


def _projects(scope: StatisticsScope) -> list[str] | None:
    return None if scope.projects is None else sorted(scope.projects)


def _series_statement(interval: Interval) -> str:
    sums = ", ".join(
        f"coalesce(sum(s.{name}) FILTER (WHERE {_IN_SCOPE}), 0)::bigint AS {name}" for name in FIGURES[1:]
    )
    totals = ", ".join(f"sum({name})::bigint AS {name}" for name in FIGURES[2:])
    return _SERIES.format(
        sums=sums, pieces=_PIECES[interval], scope=_IN_SCOPE, unit=interval.value, totals=totals
    )


_STATEMENTS = {interval: _series_statement(interval) for interval in Interval}
