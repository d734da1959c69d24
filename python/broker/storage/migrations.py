"""Updates a database's schema: plain SQL files, forward only.

The files `migrations/NNNN_name.sql` run in the order of their numbers, each in a transaction together with
its row in `schema_migrations`, so that a start that is killed goes on where it stood. An advisory lock
lets one process migrate at a time; others wait and then find nothing to do. A file that has run must not
change any more: its SHA-256 is kept and compared.

Numbers are given out when work on a change begins. 9 and 14 belong to changes that were given up before any
release; no file will ever have them, so that a number means one thing in every database.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from broker.storage.database import Database, require_version
from broker.storage.errors import SchemaError, closing, connecting, using

DIRECTORY = Path(__file__).with_suffix("")

_LOCK = 0x62726F6B  # "brok", the key of the advisory lock
_LOCK_WAIT_MS = 60_000  # for the lock above and for tables that are in use; a migration itself may take long
_CONNECT_S = 10.0

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version      integer PRIMARY KEY,
    name         text NOT NULL,
    checksum     text NOT NULL,
    applied_time timestamptz NOT NULL DEFAULT now()
)
"""
_HAS_TABLE = "SELECT to_regclass('schema_migrations') IS NOT NULL"
_APPLIED = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
_RECORD = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name without the suffix, the hex SHA-256 of its bytes, and its SQL."""

    version: int
    name: str
    checksum: str
    sql: str


async def migrate(dsn: str, directory: Path = DIRECTORY) -> list[str]:
    """Apply what is missing and return the names of what was applied, in order.

    Raises:
        SchemaError: the schema is newer than this code, or a file that has run was changed.
        Unavailable: the server cannot be reached, or another process holds the lock for a minute.
        SettingError: the DSN cannot be read, or the server is too old.
    """
    with connecting():
        connection = await asyncpg.connect(
            dsn,
            timeout=_CONNECT_S,
            server_settings={"application_name": "broker migrate", "lock_timeout": str(_LOCK_WAIT_MS)},
        )
    try:
        require_version(connection)
        with using(connection):
            await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
            await connection.execute(_CREATE_TABLE)
            missing = _missing(load(directory), await connection.fetch(_APPLIED))
            for migration in missing:
                await _apply(connection, migration)
        return [migration.name for migration in missing]
    finally:
        # Ends the session, and with it the lock.
        with closing():
            await connection.close(timeout=_CONNECT_S)


async def pending(database: Database, directory: Path = DIRECTORY) -> list[str]:
    """The names of the migrations that `migrate` would apply, in order.

    Raises:
        SchemaError: as in `migrate`.
        Unavailable: the server cannot be reached.
    """
    async with database.connection() as connection:
        has_table = await connection.fetchval(_HAS_TABLE)
        applied = await connection.fetch(_APPLIED) if has_table else []
    return [migration.name for migration in _missing(load(directory), applied)]


def load(directory: Path) -> list[Migration]:
    """The migrations in `directory`, by number, ascending."""
    migrations = []
    for path in sorted(directory.glob("*.sql")):
        text = path.read_bytes()
        version = int(path.stem.partition("_")[0])
        migrations.append(Migration(version, path.stem, hashlib.sha256(text).hexdigest(), text.decode()))
    assert len({m.version for m in migrations}) == len(migrations), "two migrations have one number"
    return migrations


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(migration.sql)
        await connection.execute(_RECORD, migration.version, migration.name, migration.checksum)


def _missing(known: Sequence[Migration], applied: Sequence[asyncpg.Record]) -> list[Migration]:
    """What of `known` is not in `applied`; `SchemaError` when `applied` is not a beginning of `known`."""
    by_version = {migration.version: migration for migration in known}
    newest = max(by_version, default=0)
    for row in applied:
        migration = by_version.get(row["version"])
        if migration is None:
            raise SchemaError(
                f"the database has migration {row['name']}, this version knows them up to {newest:04};"
                " run a newer version of the broker"
            )
        if migration.checksum != row["checksum"]:
            raise SchemaError(f"migration {row['name']} was changed after the database had applied it")
    done = {row["version"] for row in applied}
    missing = [migration for migration in known if migration.version not in done]
    if missing and done and missing[0].version < max(done):
        raise SchemaError(f"migration {missing[0].name} is older than one that the database has applied")
    return missing
