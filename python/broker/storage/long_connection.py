"""A connection of its own for work that takes as long as it takes: backups, restores, moves, deletions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from broker.storage.errors import closing, connecting, using

_CONNECT_S = 10.0
_LOCK_WAIT_MS = 60_000
_SETTINGS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": str(_LOCK_WAIT_MS),
}


@asynccontextmanager
async def long_connection(dsn: str, name: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose only time limit is a minute for a lock; the server calls it `name`.

    Raises:
        Unavailable: the server cannot be reached, or goes away, or does not give a lock.
        SettingError: the DSN cannot be read.
    """
    with connecting():
        connection = await asyncpg.connect(
            dsn, timeout=_CONNECT_S, server_settings=_SETTINGS | {"application_name": name}
        )
    try:
        with using(connection):
            yield connection
    finally:
        with closing():
            await connection.close(timeout=_CONNECT_S)


async def column_names(connection: asyncpg.Connection) -> dict[str, list[str]]:
    """The columns of each of our tables, in their order."""
    rows = await connection.fetch(_COLUMNS)
    return {row["table_name"]: row["columns"] for row in rows}


_COLUMNS = """
SELECT c.table_name::text, array_agg(c.column_name::text ORDER BY c.ordinal_position) AS columns
FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'
GROUP BY c.table_name
"""
