"""Fixtures that every test may use: a PostgreSQL server for the session, a fresh database for a test."""

import asyncio
import gc
import os
import shutil
import signal
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import hypothesis
import pytest

from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate
from tests.sweep import swept

# Two thirds of the time of a test with a database were waits for the disk. Only a crash of the whole machine
# can tell the difference; tests of what is durable start a server of their own.
_HASTY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@cache
def _read_authorities(
    _named: tuple[str | None, ...], arguments: tuple[tuple[str, Any], ...]
) -> ssl.SSLContext:
    return httpx.create_ssl_context(**dict(arguments))


def _authorities(**arguments: Any) -> ssl.SSLContext:
    """As `httpx.create_ssl_context`, which reads them anew for each client, in 25 ms of processor time."""
    named = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _read_authorities(named, tuple(arguments.items()))


httpx._transports.default.create_ssl_context = _authorities

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


class _Reused:
    """A database for one test after the other, emptied over one connection: each has to learn the tables."""

    def __init__(self, dsn: str, runner: asyncio.Runner) -> None:
        self.dsn = dsn
        self._runner = runner
        self._connection: asyncpg.Connection | None = None
        self._texts = ""

    def empty(self) -> None:
        """Delete all rows."""
        self._runner.run(self._empty())

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._runner.run(self._connection.close())

    async def _empty(self) -> None:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            if self._connection is not None:
                await self._connection.execute(self._texts)
                return
        # There is none yet, or a test has ended it.
        self._connection = await asyncpg.connect(self.dsn)
        rows = await self._connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = [row["tablename"] for row in rows if row["tablename"] != "schema_migrations"]
        # Without foreign keys, so in any order.
        deletions = (f'DELETE FROM "{name}"' for name in names)
        self._texts = ";".join(("SET session_replication_role = replica", *deletions))
        await self._connection.execute(self._texts)


@pytest.fixture(scope="session")
def _reused(postgres_server: str, _template: str) -> Iterator[_Reused]:
    with _database(postgres_server, _template) as dsn, asyncio.Runner() as runner:
        reused = _Reused(dsn, runner)
        yield reused
        reused.close()


@pytest.fixture
def migrated_dsn(_reused: _Reused) -> str:
    """The DSN of a database with our schema and no rows; in a fraction of the time that a new one takes."""
    _reused.empty()
    return _reused.dsn


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

    asyncio.run(
        run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    )  # in a third of the time
    yield f"postgresql://broker@/{name}?host={server}"
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))
