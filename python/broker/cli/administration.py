"""Access of commands to accounts and users in the database, whether `broker up` runs or not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from broker.auth.administration import Administration
from broker.deployments.data_dir import has_database, open_data_dir
from broker.ids import IdSource
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock
from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate, pending

T = TypeVar("T")

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="As for `broker up`.  [env var: BROKER_DATA_DIR]")
]
DatabaseUrl = Annotated[
    str | None, typer.Option("--database-url", help="As for `broker up`.  [env var: BROKER_DATABASE_URL]")
]


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseOptions:
    """The options that say which database a command works on."""

    data_dir: DataDir = None
    database_url: DatabaseUrl = None

    def settings(self, **others: Any) -> Settings:
        """The settings of the environment, with these options over them. Raises SettingError."""
        return Settings.load(data_dir=self.data_dir, database_url=self.database_url, **others)

    def administer(self, work: Callable[[Administration], Awaitable[T]]) -> T:
        """Do `work` on this database; see `administer`."""
        return administer(self.settings(), work)


def administer(settings: Settings, work: Callable[[Administration], Awaitable[T]]) -> T:
    """Do `work` on the database that `settings` names, from outside an event loop; see `administer_async`."""
    return asyncio.run(administer_async(settings, work))


async def administer_async(
    settings: Settings, work: Callable[[Administration], Awaitable[T]], *, makes_database: bool = False
) -> T:
    """Do `work` on the database that `settings` names.

    Args:
        makes_database: where there is no embedded one yet.

    Raises:
        SetupError: the database cannot be used as it is, or there is none.
        BrokerError: what `work` raises.
    """
    async with open_database(settings, makes_database=makes_database) as database:
        lifetime_s = settings.token_lifetime_s
        clock = await DatabaseClock.open(database)
        administration = Administration(database, clock, IdSource(clock), token_lifetime_s=lifetime_s)
        try:
            return await work(administration)
        finally:
            administration.close()


@asynccontextmanager
async def open_database(settings: Settings, *, makes_database: bool = False) -> AsyncIterator[Database]:
    """The database that `settings` names, with the schema of this version. Raises SetupError."""
    async with (
        server_dsn(settings, makes_database=makes_database) as dsn,
        _open(settings, dsn) as database,
    ):
        yield database


@asynccontextmanager
async def open_dsn(settings: Settings, *, makes_database: bool = False) -> AsyncIterator[str]:
    """The DSN of the database that `settings` names, with the schema of this version.

    Args:
        makes_database: where there is no embedded one yet.

    Raises:
        SetupError: the database cannot be used as it is, or there is none.
    """
    async with server_dsn(settings, makes_database=makes_database) as dsn:
        async with _open(settings, dsn):
            pass
        yield dsn


@asynccontextmanager
async def server_dsn(settings: Settings, *, makes_database: bool = False) -> AsyncIterator[str]:
    """The DSN of the database that `settings` names; an embedded server runs meanwhile.

    Raises SetupError. `makes_database` as for `open_dsn`.
    """
    if settings.database_url:
        yield settings.database_url
        return
    if not makes_database:
        require_database(settings)
    server = EmbeddedPostgres(open_data_dir(settings.data_dir) / "postgres", binaries=settings.postgres_bin)
    try:
        yield await server.start()
    finally:
        await server.stop()


def require_database(settings: Settings) -> None:
    """Raise SetupError where the embedded database would have to be made.

    Whoever is in the wrong directory would work on an empty one, and read of a backup that it succeeded.
    """
    if not settings.database_url and not has_database(settings.data_dir):
        raise SetupError(
            f"there is no database in {settings.data_dir.absolute()}; `broker up` makes it at its first"
            " start; --data-dir or --database-url names another one"
        )


@asynccontextmanager
async def _open(settings: Settings, dsn: str) -> AsyncIterator[Database]:
    database = await Database.open(dsn, size=2, timeout_s=settings.database_timeout_s)
    try:
        await _check_schema(database, dsn, is_ours=not settings.database_url)
        yield database
    finally:
        await database.close()


async def _check_schema(database: Database, dsn: str, *, is_ours: bool) -> None:
    """Bring a database of our own up to date; ask before touching another's."""
    missing = await pending(database)
    if missing and is_ours:
        await migrate(dsn)
    elif missing:
        raise SetupError(f"the database lacks {len(missing)} migrations; run `broker migrate`")
