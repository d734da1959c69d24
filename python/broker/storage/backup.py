"""Backups of accounts: all that they have, as of one moment, while everything runs.

One transaction (REPEATABLE READ, read only) sees one snapshot, so a backup has every event that was
acknowledged before it began, and of what came later nothing. It takes no lock that anybody waits for.

What is in it is said in `broker.storage.account_tables`, its format in `broker.storage.backup_file`.
"""

from collections.abc import Callable, Sequence
from typing import BinaryIO

import asyncpg

from broker.errors import NotFound
from broker.storage.account_tables import ACCOUNT_TABLES, AccountTable
from broker.storage.backup_file import BackupHeader, BackupWriter, Section
from broker.storage.database import rows_of
from broker.storage.long_connection import column_names, long_connection

RowCounts = dict[str, dict[str, int]]
"""Account → table → rows."""
_NAME = "broker backup"
_ALL = "SELECT name FROM accounts ORDER BY name"
_NOW = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
_SCHEMA = "SELECT max(version) FROM schema_migrations"


async def back_up(
    dsn: str,
    raw: BinaryIO,
    product: str,
    accounts: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _bytes: None,
) -> tuple[RowCounts, int]:
    """Write a backup to an open file, which has part of one if this fails.

    Args:
        product: the version of the broker, for the file's header.
        accounts: the names of those that are wanted; none means all.
        progress: called with the bytes that have been written so far, before compression.

    Returns:
        The rows of each account and table, and the size of the file in bytes.

    Raises:
        NotFound: there is no such account, or none at all.
        Unavailable: the database went away.
        OSError: the file cannot be written.
    """
    writer = BackupWriter(raw)
    try:
        async with (
            long_connection(dsn, _NAME) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            counts = await _write(connection, writer, product, accounts, progress)
        return counts, writer.close()
    finally:
        writer.abandon()


async def _write(
    connection: asyncpg.Connection,
    writer: BackupWriter,
    product: str,
    accounts: Sequence[str],
    progress: Callable[[int], None],
) -> RowCounts:
    known = [row["name"] for row in await connection.fetch(_ALL)]
    for name in accounts:
        if name not in known:
            raise NotFound(f"there is no account {name}")
    if not known:
        raise NotFound("the database has no account; is it the right one?")
    wanted = [name for name in known if not accounts or name in accounts]
    schema = await connection.fetchval(_SCHEMA)
    writer.begin(BackupHeader(schema, product, await connection.fetchval(_NOW), wanted))
    columns = await column_names(connection)
    counts: RowCounts = {}

    async def write(data: bytes) -> None:
        await writer.write(data)
        progress(writer.written_bytes)

    for account in wanted:
        counts[account] = {}
        for table in ACCOUNT_TABLES:
            if table.is_kept:
                writer.open_section(Section(account, table.name, columns[table.name]))
                status = await connection.copy_from_query(
                    _query(table, columns[table.name]), account, output=write, format="text"
                )
                counts[account][table.name] = rows_of(status)
                writer.close_section(counts[account][table.name])
    return counts


def _query(table: AccountTable, columns: Sequence[str]) -> str:
    listed = ", ".join(f't."{column}"' for column in columns)
    return f"SELECT {listed} FROM {table.name} t WHERE {table.rows} AND {table.kept}"  # noqa: S608  # our names
