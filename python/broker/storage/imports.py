"""Imports in progress: their events are copied into a separate history, which an owner then adopts.

An event keeps the id that it was given, unless the id belongs to an event of another program of the account,
or to an import into one that is under way. So that two imports never both keep an id, those of an account
stage their rows one after the other. What other accounts have is not looked at.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import asyncpg

from broker.clock import to_datetime
from broker.storage.database import Repository

# An import that has not been adopted by then belongs to a process that is gone.
STALE = timedelta(hours=1)

_COLUMNS = (
    "history", "seq", "id", "created_time", "timestamp", "timecode", "event", "metadata", "imported",
)  # fmt: skip
_LOCK = "pg_advisory_xact_lock(hashtextextended('imports/' || $4, 0))"
# The row stays locked while its events are copied, so nobody adopts or drops a part of them.
_COUNT = f"""
WITH turn AS MATERIALIZED (SELECT {_LOCK})
INSERT INTO staged_imports AS s (import_id, row_count, created_time, account, program_id)
SELECT $1, $2, $3, $4, $5 FROM turn
ON CONFLICT (import_id) DO UPDATE SET row_count = s.row_count + excluded.row_count RETURNING history
"""  # noqa: S608  # a constant
# Each id is looked up by itself: a join may be planned as a walk through all events.
_TAKEN = """
WITH found AS MATERIALIZED (
    SELECT wanted.id, e.history FROM unnest($1::uuid[]) AS wanted(id) CROSS JOIN LATERAL (
        SELECT history FROM events WHERE id = wanted.id AND NOT deleted OFFSET 0
    ) e
), others AS (
    SELECT h.history FROM (SELECT DISTINCT history FROM found) f
    JOIN program_heads h ON h.history = f.history JOIN programs p ON p.uid = h.program_uid
    WHERE p.account = $2 AND p.id <> $3
    UNION ALL
    SELECT history FROM staged_imports WHERE account = $2 AND program_id <> $3
)
SELECT id::text FROM found WHERE history IN (SELECT history FROM others)
"""
_STAGED_IDS = """
SELECT e.id::text FROM staged_imports s JOIN events e ON e.history = s.history
WHERE s.import_id = $1 AND e.id = ANY ($2::uuid[])
"""
_LEAVE = """
WITH dropped AS (DELETE FROM staged_imports WHERE {} RETURNING history)
INSERT INTO former_histories (history) SELECT history FROM dropped
"""
_DROP = _LEAVE.format("import_id = $1")
_PURGE = _LEAVE.format("created_time <= $1")


class ImportRow(NamedTuple):
    """One event to import; `metadata` is compact JSON, times are milliseconds since the epoch.

    `seq` counts 1, 2, 3 … over the whole import. `is_given` says that the sender has chosen `id`, a UUIDv7 in
    the form in which the server writes it.
    """

    seq: int
    id: str
    created_time: datetime
    timestamp: int
    timecode: int
    event: str
    metadata: str
    is_given: bool = False


class ImportTarget(NamedTuple):
    """An import under way, and the program whose events it will replace."""

    import_id: str
    account: str
    program_id: str


class RepeatedId(Exception):
    """The event at `seq` has the id of an earlier one of its import."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"the event at {seq} has the id of an earlier one")
        self.seq = seq


class Imports(Repository):
    """The staged events' repository."""

    async def stage(
        self, target: ImportTarget, rows: Sequence[ImportRow], replace: Callable[[str], str]
    ) -> None:
        """Add rows, at least one, to an import.

        Args:
            replace: gives the new id of an event whose given one belongs to another program; of equal ids the
                same.

        Raises:
            RepeatedId: two events of the import have one id.
            Unavailable: the database cannot be reached.
        """
        given = [row.id for row in rows if row.is_given]
        try:
            async with self._database.transaction() as connection:
                history = await connection.fetchval(
                    _COUNT, target.import_id, len(rows), rows[0].created_time, *target[1:]
                )
                if given:
                    taken = await connection.fetch(_TAKEN, given, *target[1:])
                    rows = _replaced(rows, {row[0] for row in taken}, replace)
                records = [(history, *row[:-1], True) for row in rows]
                await connection.copy_records_to_table("events", records=records, columns=_COLUMNS)
        except asyncpg.UniqueViolationError as error:
            raise RepeatedId(await self._first_repeated(target.import_id, rows)) from error

    async def _first_repeated(self, import_id: str, rows: Sequence[ImportRow]) -> int:
        """The `seq` of the first row that has the id of a staged row or of an earlier one of `rows`."""
        staged = await self._database.fetch(_STAGED_IDS, import_id, [row.id for row in rows])
        ids = {row[0] for row in staged}
        for row in rows:
            if row.id in ids:
                return row.seq
            ids.add(row.id)
        raise AssertionError("ids of imported events are unique in their history only")

    async def drop(self, import_id: str) -> None:
        """Forget an import that will not be adopted."""
        await self._database.execute(_DROP, import_id)

    async def purge(self, now_ms: int) -> None:
        """Forget imports that nobody can be waiting for any more."""
        await self._database.execute(_PURGE, to_datetime(now_ms) - STALE)


def _replaced(
    rows: Sequence[ImportRow], taken: Collection[str], replace: Callable[[str], str]
) -> Sequence[ImportRow]:
    """The rows with new ids for those that are taken."""
    if not taken:
        return rows
    return [row._replace(id=replace(row.id)) if row.id in taken else row for row in rows]
