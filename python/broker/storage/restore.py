"""Restores accounts from a backup, also while everything runs: one transaction, all or nothing.

What is long comes first and disturbs nobody: the rows are copied to temporary tables, and events into
histories that no program has yet. Then the heads of the account's programs are held, so that their owners
wait, and everything is exchanged.

A program that exists keeps its number (`uid`), gets the restored history, and begins an epoch of its own
(reason `restored`), so that no epoch and seq ever name two events. Its owner meets the new epoch when it
writes, and else within seconds, since it looks at the number in `restores`; it then tells all followers
`historyReplaced`. Counters notice in the same way as when the database has lost votes.

A restore revives no right that was withdrawn: tokens from before are refused, and an API token
that was revoked since the backup stays revoked. The audit log of an account that exists stays as it is.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import asyncpg

from broker.errors import Conflict, NotFound
from broker.storage.account_tables import ACCOUNT_TABLES
from broker.storage.backup import RowCounts
from broker.storage.backup_file import BackupError, BackupHeader, BackupReader, Section, verify
from broker.storage.database import rows_of
from broker.storage.long_connection import column_names, long_connection
from broker.storage.migrations import DIRECTORY, load
from broker.storage.restored_account import RestoredAccount, staging_table
from broker.storage.revocations import wake_listeners

OLDEST_SCHEMA = 29
"""The first schema of which there are backups; later ones only add to it."""
_NAME = "broker restore"
_KEPT = [table.name for table in ACCOUNT_TABLES if table.is_kept]
# What PostgreSQL says of rows that it cannot read, or that are too large.
_NO_ROWS = (asyncpg.DataError, asyncpg.NotNullViolationError, asyncpg.ProgramLimitExceededError)
_COUNT_RESTORE = """
INSERT INTO restores AS r (number) VALUES (1) ON CONFLICT (only_row) DO UPDATE SET number = r.number + 1
"""


async def restore(
    dsn: str,
    path: Path,
    accounts: Sequence[str] = (),
    *,
    replace: bool = False,
    progress: Callable[[int], None] = lambda _bytes: None,
) -> RowCounts:
    """Restore accounts from a backup that has been read once to its end before.

    Args:
        accounts: the names of those that are wanted; none means all in the backup.
        replace: put them in the place of accounts of their names; all that those have is lost.
        progress: called with the bytes of the file that have been taken.

    Returns:
        The rows of each account and table that are restored.

    Raises:
        BackupError: the file is no backup, was changed, ends early, or is of a schema that is not ours.
        NotFound: the backup has no such account, or none at all.
        Conflict: an account exists, or was changed meanwhile; nothing was restored.
        Unavailable: the database went away, or others hold the programs; nothing was restored.
        OSError: the file cannot be read.
    """
    with path.open("rb") as raw:
        header = verify(path, raw)
        _check_schema(path, header)
        for name in accounts:
            if name not in header.accounts:
                raise NotFound(f"{path} has no account {name}")
        if not header.accounts:
            raise NotFound(f"{path} has no account")
        wanted = [name for name in header.accounts if not accounts or name in accounts]
        raw.seek(0)
        async with long_connection(dsn, _NAME) as connection:
            try:
                async with connection.transaction():
                    return await _restore_all(connection, path, raw, wanted, replace, progress)
            except asyncpg.UniqueViolationError as error:
                raise Conflict(
                    f"something that the backup has was made meanwhile ({error.constraint_name}); try again"
                ) from error


async def _restore_all(
    connection: asyncpg.Connection,
    path: Path,
    raw: BinaryIO,
    wanted: Sequence[str],
    replace: bool,
    progress: Callable[[int], None],
) -> RowCounts:
    present = {row["name"] for row in await connection.fetch("SELECT name FROM accounts")}
    taken = [name for name in wanted if name in present]
    if taken and not replace:
        raise Conflict(f"the account {taken[0]} exists; --replace puts that of the backup in its place")
    columns = await column_names(connection)
    reader = BackupReader(path, raw)
    counts: RowCounts = {name: {} for name in wanted}

    async def put(account: str) -> None:
        for table in _KEPT:
            if table not in counts[account]:  # the schema of the backup had no such table
                await _make_staging(connection, table)
                counts[account][table] = 0
        exchange = RestoredAccount(connection, account, columns, is_there=account in taken)
        await exchange.put(reader.header.created)

    newest = ""
    for section in reader.sections():
        if section.account not in counts:
            _skip(reader.blocks())
            reader.rows()
            continue
        if newest and section.account != newest:
            await put(newest)
        newest = section.account
        _check_section(path, section, columns, counts[newest])
        try:
            staged = await _stage(connection, section, reader.blocks(), lambda: progress(raw.tell()))
        except _NO_ROWS as error:
            raise BackupError(
                f"{path} was changed: {section.table} has a row that does not fit ({error})"
            ) from error
        if staged != reader.rows():
            raise BackupError(f"{path} was changed: {section.table} has {staged} rows")
        counts[newest][section.table] = staged
    if newest:
        await put(newest)
    await connection.execute(_COUNT_RESTORE)
    await wake_listeners(connection)
    return counts


async def _make_staging(connection: asyncpg.Connection, table: str) -> None:
    """An empty temporary table like `table`, which is its own: without its keys."""
    await connection.execute(
        f"CREATE TEMP TABLE {staging_table(table)} (LIKE public.{table} INCLUDING DEFAULTS) ON COMMIT DROP"
    )


async def _stage(
    connection: asyncpg.Connection, section: Section, blocks: Iterable[bytes], progress: Callable[[], None]
) -> int:
    async def pieces() -> AsyncIterator[bytes]:
        for block in blocks:
            yield block
            progress()

    await _make_staging(connection, section.table)
    status = await connection.copy_to_table(
        staging_table(section.table), source=pieces(), columns=section.columns, format="text"
    )
    await connection.execute(f"ANALYZE {staging_table(section.table)}")
    return rows_of(status)


def _skip(blocks: Iterable[bytes]) -> None:
    for _ in blocks:
        pass


def _check_schema(path: Path, header: BackupHeader) -> None:
    newest = load(DIRECTORY)[-1].version
    if not OLDEST_SCHEMA <= header.schema <= newest:
        raise BackupError(
            f"{path} is of schema {header.schema} (broker {header.product});"
            f" this version reads {OLDEST_SCHEMA} to {newest}"
        )


def _check_section(
    path: Path, section: Section, columns: Mapping[str, Sequence[str]], staged: Mapping[str, int]
) -> None:
    if section.table not in _KEPT or section.table in staged:
        raise BackupError(f"{path} was changed: it has no place for a table {section.table}")
    for column in section.columns:
        if column not in columns[section.table]:
            raise BackupError(f"{path} was changed: {section.table} has no column {column}")
