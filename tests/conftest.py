"""Fixtures that every test may use: a PostgreSQL server for the session, a fresh database for a test."""

import asyncio
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Processes of the tests hear SIGINT, also where a shell in the background has them ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The socket directory of a running PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="broker-pg-") as name:
        server = EmbeddedPostgres(Path(name))
        asyncio.run(server.start())
        try:
            yield str(server.socket_directory)
        finally:
            asyncio.run(server.stop())


@pytest.fixture
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """The DSN of an empty database that is dropped after the test."""
    with _database(postgres_server) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_dsn(postgres_server: str) -> Iterator[str]:
    """The DSN of an empty database for all tests of a module."""
    with _database(postgres_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _migrated_database(postgres_server: str) -> Iterator[str]:
    with _database(postgres_server) as dsn:
        asyncio.run(migrate(dsn))
        yield dsn


@pytest.fixture
def migrated_dsn(_migrated_database: str) -> str:
    """The DSN of a database with our schema and no rows; a tenth of the time of one made for the test."""

    async def empty() -> None:
        connection = await asyncpg.connect(_migrated_database)
        await connection.execute("SET session_replication_role = replica")  # no foreign keys, so in any order
        for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
            if row["tablename"] != "schema_migrations":
                await connection.execute(f'DELETE FROM "{row["tablename"]}"')
        await connection.close()

    asyncio.run(empty())
    return _migrated_database


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests carry `pytest.mark.anyio` and run on asyncio; fixtures of any scope may be async."""
    return "asyncio"


@contextmanager
def _database(server: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(host=server, user="broker", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"CREATE DATABASE {name}"))
    yield f"postgresql://broker@/{name}?host={server}"
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))
