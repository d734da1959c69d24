"""Fixtures that every test may use: a PostgreSQL server for the session, a fresh database for a test."""

import asyncio
import gc
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg
import hypothesis
import pytest

from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate
from tests.sweep import swept

# Two thirds of the time of a test with a database were waits for the disk. Only a crash of the whole machine
# can tell the difference; tests of what is durable start a server of their own.
_HASTY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# On a busy machine any example may take longer than Hypothesis allows by itself.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_sessionstart() -> None:
    """No garbage collection while tests are collected: little is freed, for a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so the garbage collector need not look at it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Fixtures end what they started, also when the run is interrupted or terminated.

    Processes of the tests hear SIGINT, also where a shell in the background has them ignore it.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_server_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test's PostgreSQL outlives the run, also when the run is killed."""
    with swept(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket directory of a running PostgreSQL."""
    directory = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(directory, settings=_HASTY)
    asyncio.run(server.start())
    try:
        yield str(server.socket_directory)
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(directory)  # pytest would keep it


@pytest.fixture
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """The DSN of an empty database that is dropped after the test."""
    with _database(postgres_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _template(postgres_server: str) -> Iterator[str]:
    """The name of a database with our schema and no rows that nobody is connected to."""
    with _database(postgres_server) as dsn:
        asyncio.run(migrate(dsn))
        yield urlsplit(dsn).path[1:]


@pytest.fixture(scope="module")
def module_dsn(postgres_server: str, _template: str) -> Iterator[str]:
    """The DSN of a database with our schema and no rows for all tests of a module."""
    with _database(postgres_server, _template) as dsn:
        yield dsn


@pytest.fixture
def own_migrated_dsn(postgres_server: str, _template: str) -> Iterator[str]:
    """As `migrated_dsn`, for a test that changes the schema or leaves work undone; it is dropped then."""
    with _database(postgres_server, _template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _migrated_database(postgres_server: str, _template: str) -> Iterator[str]:
    with _database(postgres_server, _template) as dsn:
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
def _database(server: str, template: str = "template1") -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(host=server, user="broker", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield f"postgresql://broker@/{name}?host={server}"
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))
