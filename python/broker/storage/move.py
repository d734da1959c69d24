"""Copies a whole database of the broker to an empty one, as it is: numbers, epochs, keys and all.

Nothing of the product may run, since what is committed to the old database afterwards would be lost. So a
move is refused while a conductor runs, or owners or counters are connected, and while it copies, a lock
keeps them from committing. The old database stays as it is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

import asyncpg

from broker.errors import Conflict, Unavailable
from broker.settings import SettingError
from broker.setup_error import SetupError
from broker.storage.account_tables import ACCOUNT_TABLES, SHARED
from broker.storage.database import rows_of
from broker.storage.long_connection import column_names, long_connection
from broker.storage.migrations import migrate

OLD, NEW = "database that is moved", "new database"
_NAME = "broker move"
_LEFT = frozenset({"schema_migrations", "gateways", "conductor_lease"})  # of what ran, or made by `migrate`
_TABLES = [*(table.name for table in ACCOUNT_TABLES), *sorted(SHARED - _LEFT)]
_PIECES = 8  # of some ten KB, on the way from one server to the other
# Owners and counters hold their slot in each transaction. Taken before the first look at a table, so that the
# snapshot has all that was committed before.
_LOCK = "LOCK TABLE owner_slots IN EXCLUSIVE MODE"
_CONDUCTED = "SELECT EXISTS (SELECT FROM conductor_lease WHERE ends > clock_timestamp())"
_HOLDERS = """
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN (SELECT 'broker ' || slot FROM owner_slots)
ORDER BY 1
"""
_SEQUENCES = "SELECT sequencename::text FROM pg_sequences WHERE schemaname = 'public'"
_IS_USED = "SELECT EXISTS (SELECT FROM accounts)"


async def move(
    source: str, target: str, progress: Callable[[int], None] = lambda _bytes: None
) -> dict[str, int]:
    """Copy everything from the database `source` to the database `target`, in one transaction.

    Args:
        target: of a database that exists and is empty, or has been migrated only.
        progress: called with the bytes that have been copied.

    Returns:
        The rows of each table.

    Raises:
        Conflict: the product runs on either, or the target has accounts; nothing was copied.
        SetupError: one of the databases cannot be reached or used, with which; nothing was copied.
        Unavailable: a server went away; nothing was copied.
    """
    with reaching(NEW):
        await migrate(target)
    async with AsyncExitStack() as stack:
        with reaching(OLD):
            old = await stack.enter_async_context(long_connection(source, _NAME))
        with reaching(NEW):
            new = await stack.enter_async_context(long_connection(target, _NAME))
        await stack.enter_async_context(old.transaction(isolation="repeatable_read"))
        await stack.enter_async_context(new.transaction())
        for connection, name in ((old, OLD), (new, NEW)):
            await connection.execute(_LOCK)
            await _require_idle(connection, name)
        if await new.fetchval(_IS_USED):
            raise Conflict("the new database has accounts; a move needs an empty one")
        return await _copy_all(old, new, progress)


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Say which of the two databases cannot be reached, and why; the driver's texts have no passwords.

    Raises SetupError.
    """
    try:
        yield
    except Unavailable as error:
        raise SetupError(f"the {name} cannot be reached: {error.log_text or error.message}") from error
    except SettingError as error:
        raise SetupError(f"the {name}: {str(error).removeprefix('BROKER_DATABASE_URL: ')}") from error


async def _require_idle(connection: asyncpg.Connection, name: str) -> None:
    if await connection.fetchval(_CONDUCTED):
        raise Conflict(f"the product runs on the {name}; stop `broker up` (its lease ends after ten seconds)")
    holders = [row[0] for row in await connection.fetch(_HOLDERS)]
    if holders:
        raise Conflict(f"the product runs on the {name}: {', '.join(holders)} is connected")


async def _copy_all(
    old: asyncpg.Connection, new: asyncpg.Connection, progress: Callable[[int], None]
) -> dict[str, int]:
    columns = await column_names(old)
    counts = {}
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        progress(done)

    for table in _TABLES:
        await new.execute(f"DELETE FROM {table}")  # noqa: S608  # our names; `migrate` fills some
        counts[table] = await _copy(old, new, table, columns[table], count)
    for row in await old.fetch(_SEQUENCES):
        last, is_called = await old.fetchrow(f'SELECT last_value, is_called FROM "{row[0]}"')  # noqa: S608  # ours
        await new.execute("SELECT setval($1::text::regclass, $2, $3)", f'"{row[0]}"', last, is_called)
    for table, rows in counts.items():
        found = await new.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608  # our names
        if found != rows:
            raise Conflict(
                f"the new database has {found} rows of {table} instead of {rows}; nothing was kept"
            )
    return counts


async def _copy(
    old: asyncpg.Connection,
    new: asyncpg.Connection,
    table: str,
    columns: Sequence[str],
    count: Callable[[int], None],
) -> int:
    pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES)

    async def read() -> int:
        status = await old.copy_from_table(table, columns=columns, output=pieces.put, format="binary")
        await pieces.put(b"")
        return rows_of(status)

    async def sent() -> AsyncIterator[bytes]:
        while piece := await pieces.get():
            yield piece
            count(len(piece))

    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            tasks.create_task(new.copy_to_table(table, columns=columns, source=sent(), format="binary"))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None  # the other one was cancelled
    return reading.result()
