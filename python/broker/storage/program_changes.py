"""The outbox of the `programs` channel: one row for every notification about an account's programs.

Whoever writes a row holds the account's lock to the end of its transaction, so ids become visible in the
order of their numbers: a reader that has seen row n never finds a smaller one later.
"""

from datetime import datetime
from typing import NamedTuple

import asyncpg

from broker.clock import Clock, to_datetime, to_ms
from broker.domain.programs import Program
from broker.storage.database import Database
from broker.storage.program_rows import PROGRAM_COLUMNS, program_of

_CATCH_UP_MS = 3_600_000  # an hour: boundaries that passed longer ago, while nobody looked, are not told

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('program_changes/' || $1, 0))"
_APPEND = "INSERT INTO program_changes (account, change, program, time) VALUES ($1, $2, $3, $4)"
_RECENT = """
SELECT id, change, program::text, time FROM program_changes
WHERE account = $1 ORDER BY id DESC LIMIT $2
"""
_AFTER = """
SELECT id, change, program::text, time FROM program_changes
WHERE account = $1 AND id > $2 ORDER BY id LIMIT $3
"""
_READ_MARK = "SELECT time FROM schedule_marks WHERE account = $1 FOR UPDATE"
_BEGIN_MARK = """
INSERT INTO schedule_marks (account, time) VALUES ($1, $2) ON CONFLICT (account) DO NOTHING
"""
_MOVE_MARK = "UPDATE schedule_marks SET time = $2 WHERE account = $1"
# A program whose end is not after its start is never live; ends come before starts of the same moment.
_BOUNDARIES = f"""
SELECT boundary, change, {PROGRAM_COLUMNS} FROM (
    SELECT scheduled_start AS boundary, 'live' AS change, * FROM programs
    WHERE account = $1 AND scheduled_start > $2 AND scheduled_start <= $3
        AND scheduled_end > scheduled_start
    UNION ALL
    SELECT scheduled_end AS boundary, 'ended' AS change, * FROM programs
    WHERE account = $1 AND scheduled_end > $2 AND scheduled_end <= $3 AND scheduled_start IS NOT NULL
) AS passed ORDER BY boundary, change, uid
"""  # noqa: S608  # the columns are a constant
# Not joined in SQL: the planner would compare each boundary with each row.
_TOLD = """
SELECT program->>'id', max(time) FROM program_changes
WHERE account = $1 AND change IN ('live', 'ended') AND time > $2 GROUP BY 1
"""
_NEXT_BOUNDARY = """
SELECT min(boundary) FROM (
    SELECT min(scheduled_start) AS boundary FROM programs
    WHERE account = $1 AND scheduled_start > $2 AND scheduled_end IS NOT NULL
    UNION ALL
    SELECT min(scheduled_end) FROM programs
    WHERE account = $1 AND scheduled_end > $2 AND scheduled_start IS NOT NULL
) AS next
"""
_PURGE = """
DELETE FROM program_changes WHERE id IN (SELECT id FROM program_changes WHERE time < $1 LIMIT $2)
"""


class ProgramChangeRow(NamedTuple):
    """One thing to tell. `program` is JSON, as the program was then; `time_ms` is when it became so."""

    id: int
    change: str
    program: bytes
    time_ms: int


async def append_change(
    connection: asyncpg.Connection, account: str, change: str, program: Program, time: datetime
) -> None:
    """Add a row in the caller's transaction, and hold the account's lock until that ends."""
    await connection.execute(_LOCK, account)
    await connection.execute(_APPEND, account, change, program.model_dump_json(), time)


class ProgramOutbox:
    """Reads the outbox, and writes what the clock alone brings about."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def recent(self, account: str, limit: int) -> list[ProgramChangeRow]:
        """The account's newest `limit` rows, oldest first. Raises Unavailable."""
        rows = await self._database.fetch(_RECENT, account, limit)
        return [_row(row) for row in reversed(rows)]

    async def after(self, account: str, id_: int, limit: int) -> list[ProgramChangeRow]:
        """At most `limit` rows after `id_`, oldest first. Raises Unavailable."""
        rows = await self._database.fetch(_AFTER, account, id_, limit)
        return [_row(row) for row in rows]

    async def next_boundary_ms(self, account: str, after_ms: int) -> int | None:
        """When the next program of the account goes live or ends. Raises Unavailable."""
        boundary = await self._database.fetchval(_NEXT_BOUNDARY, account, to_datetime(after_ms))
        return None if boundary is None else to_ms(boundary)

    async def pass_boundaries(self, account: str, since_ms: int | None = None) -> int:
        """Write a row for each start and end up to now that has none; returns how many.

        The rows and the mark of how far they go are one transaction, so each boundary is told exactly once,
        whoever calls this, and however often. In an account without a mark they begin after `since_ms`, or
        now.
        """
        now_ms = self._clock.now_ms()
        begin_ms = now_ms if since_ms is None else since_ms
        async with self._database.transaction() as connection:
            await connection.execute(_BEGIN_MARK, account, to_datetime(begin_ms))
            mark = await connection.fetchval(_READ_MARK, account)
            if to_ms(mark) >= now_ms:
                return 0
            since = max(mark, to_datetime(now_ms - _CATCH_UP_MS))
            passed = await connection.fetch(_BOUNDARIES, account, since, to_datetime(now_ms))
            # What a change brought about was told with it, and is newer than the boundaries before it.
            told = dict(await connection.fetch(_TOLD, account, since)) if passed else {}
            untold = [row for row in passed if told.get(row["id"], since) < row["boundary"]]
            for row in untold:
                await append_change(connection, account, row["change"], program_of(row), row["boundary"])
            await connection.execute(_MOVE_MARK, account, to_datetime(now_ms))
            return len(untold)

    async def purge(self, before_ms: int, limit: int) -> int:
        """Drop at most `limit` rows older than `before_ms`; returns how many."""
        return await self._database.execute(_PURGE, to_datetime(before_ms), limit)


def _row(row: asyncpg.Record) -> ProgramChangeRow:
    return ProgramChangeRow(row[0], row[1], row[2].encode(), to_ms(row[3]))
