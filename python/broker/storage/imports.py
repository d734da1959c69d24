"""The waiting room of imports: rows are staged here by COPY until the program's owner adopts them at once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from broker.clock import to_datetime
from broker.storage.database import Database

# An import that has not been adopted by then belongs to a process that is gone.
STALE = timedelta(hours=1)

_COLUMNS = ("import_id", "seq", "id", "created_time", "timestamp", "timecode", "event", "metadata")
_DROP = "DELETE FROM import_rows WHERE import_id = $1"
_PURGE = "DELETE FROM import_rows WHERE created_time <= $1"


class ImportRow(NamedTuple):
    """One event to import; `metadata` is compact JSON, times are milliseconds since the epoch."""

    seq: int
    id: str
    created_time: datetime
    timestamp: int
    timecode: int
    event: str
    metadata: str


class Imports:
    """The staged rows' repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stage(self, import_id: str, rows: Sequence[ImportRow]) -> None:
        """Add rows to an import. Raises Unavailable."""
        records = [(import_id, *row) for row in rows]
        async with self._database.connection() as connection:
            await connection.copy_records_to_table("import_rows", records=records, columns=_COLUMNS)

    async def drop(self, import_id: str) -> None:
        """Forget an import that will not be adopted."""
        async with self._database.connection() as connection:
            await connection.execute(_DROP, import_id)

    async def purge(self, now_ms: int) -> None:
        """Forget imports that nobody can be waiting for any more."""
        async with self._database.connection() as connection:
            await connection.execute(_PURGE, to_datetime(now_ms) - STALE)
