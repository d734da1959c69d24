"""Imports in progress: their events are copied into a separate history, which an owner then adopts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from broker.clock import to_datetime
from broker.storage.database import Database

# An import that has not been adopted by then belongs to a process that is gone.
STALE = timedelta(hours=1)

_COLUMNS = (
    "history", "seq", "id", "created_time", "timestamp", "timecode", "event", "metadata", "imported",
)  # fmt: skip
# The row stays locked while its events are copied, so nobody adopts or drops a part of them.
_COUNT = """
INSERT INTO staged_imports AS s (import_id, row_count, created_time) VALUES ($1, $2, $3)
ON CONFLICT (import_id) DO UPDATE SET row_count = s.row_count + excluded.row_count RETURNING history
"""
_LEAVE = """
WITH dropped AS (DELETE FROM staged_imports WHERE {} RETURNING history)
INSERT INTO former_histories (history) SELECT history FROM dropped
"""
_DROP = _LEAVE.format("import_id = $1")
_PURGE = _LEAVE.format("created_time <= $1")


class ImportRow(NamedTuple):
    """One event to import; `metadata` is compact JSON, times are milliseconds since the epoch.

    `seq` counts 1, 2, 3 … over the whole import.
    """

    seq: int
    id: str
    created_time: datetime
    timestamp: int
    timecode: int
    event: str
    metadata: str


class Imports:
    """The staged events' repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stage(self, import_id: str, rows: Sequence[ImportRow]) -> None:
        """Add rows, at least one, to an import. Raises Unavailable."""
        async with self._database.transaction() as connection:
            history = await connection.fetchval(_COUNT, import_id, len(rows), rows[0].created_time)
            records = [(history, *row, True) for row in rows]
            await connection.copy_records_to_table("events", records=records, columns=_COLUMNS)

    async def drop(self, import_id: str) -> None:
        """Forget an import that will not be adopted."""
        async with self._database.connection() as connection:
            await connection.execute(_DROP, import_id)

    async def purge(self, now_ms: int) -> None:
        """Forget imports that nobody can be waiting for any more."""
        async with self._database.connection() as connection:
            await connection.execute(_PURGE, to_datetime(now_ms) - STALE)
