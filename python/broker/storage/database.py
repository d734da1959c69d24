"""The connection pool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar, Token
from typing import Any, TypeVar

import asyncpg

from broker.concurrency.batching import Batcher
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import SettingError
from broker.storage import OLDEST_VERSION
from broker.storage.errors import closing, committing, connecting, unavailable, using
from broker.storage.listeners import Listeners

K = TypeVar("K")
V = TypeVar("V")

_CLOSE_S = 5.0
_QUERIES_PER_CONNECTION = 1_000_000  # asyncpg's 50,000 is a few seconds of a busy owner


class Database:
    """A bounded pool of connections to one PostgreSQL; heals by itself when the server comes back.

    `connection` and `transaction` raise `Unavailable` (with `retry_after_s`) when no connection is available
    within the timeout, when the server goes away while one is in use, and when a statement or an idle
    transaction takes longer than the timeout: then nothing was changed. Where the connection is lost during
    COMMIT, or during a statement on a connection of `writing`, they raise `OutcomeUnknown`: the change is
    wholly there or wholly absent, and only a look at the tables tells. Other errors of asyncpg pass through,
    so that a repository can catch the constraint it expects.

    A connection carries nothing from one use to the next because nothing is reset in between, which saves
    a round trip: use `SET LOCAL` and transaction-level advisory locks only, and `listen` of this class.
    """

    def __init__(self, dsn: str, pool: asyncpg.Pool, timeout_s: float, losses: "_Losses") -> None:
        self._dsn = dsn
        self._pool = pool
        self._losses = losses
        self._timeout_s = timeout_s
        self._closed = False
        self._waiting = 0  # for a connection
        self._groups: list[Batcher[Any, Any]] = []
        self._listeners = Listeners(dsn, timeout_s)

    @classmethod
    async def open(cls, dsn: str, *, size: int, timeout_s: float, name: str = "broker") -> "Database":
        """Connect once; more connections, up to `size`, are made when they are needed.

        Args:
            timeout_s: of the wait for a connection, of a statement, and of a transaction that idles.
            name: what the server calls the connections (`application_name`).

        Raises:
            Unavailable: the server cannot be reached; the driver's text is in `log_text`.
            SettingError: the DSN cannot be read, or the server is older than version 14.
        """
        losses = _Losses()
        with connecting():
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size,
                max_queries=_QUERIES_PER_CONNECTION,
                init=losses.watch,
                reset=_keep,
                timeout=timeout_s,
                # The server cancels a slow statement itself; ours is for a server that does not answer.
                command_timeout=timeout_s + 1,
                server_settings=_session_settings(timeout_s, name),
            )
        database = cls(dsn, pool, timeout_s, losses)
        try:
            async with database.connection() as connection:
                require_version(connection)
        except BaseException:
            await database.close()
            raise
        return database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend one connection in autocommit mode, to read; within a `unit` that has begun, its own."""
        unit = self._unit()
        if unit is not None and unit.connection is not None:
            with using(unit.connection):
                yield unit.connection
            return
        connection = await self._acquire()
        try:
            with using(connection):
                yield connection
        finally:
            # One that cannot be released is closed by the pool; what was done with it stays done.
            with closing():
                await self._pool.release(connection, timeout=self._timeout_s)

    # One statement on a connection of its own, or on that of a `unit` that has begun; as asyncpg's methods.

    async def fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        """All rows of one statement."""
        async with self.connection() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *values)
        return rows

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        """The first row of one statement; None when there is none."""
        async with self.connection() as connection:
            return await connection.fetchrow(statement, *values)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        """The first value of the first row of one statement; None when there is no row."""
        async with self.connection() as connection:
            return await connection.fetchval(statement, *values)

    async def execute(self, statement: str, *values: Any) -> int:
        """Run one INSERT, UPDATE or DELETE; returns how many rows it concerned."""
        async with self.connection() as connection:
            return rows_of(await connection.execute(statement, *values))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend one connection for statements that each commit by themselves."""
        async with self.connection() as connection:
            with committing(connection):
                yield connection

    def transaction(self, *, ends_unit: bool = False) -> AbstractAsyncContextManager[asyncpg.Connection]:
        """Lend one connection inside a transaction (READ COMMITTED) that ends with the block.

        Within a `unit` it ends with that, unless the block fails.

        Args:
            ends_unit: the block is the last of its unit, which fails with it. Saves a savepoint: two round
                trips.
        """
        unit = self._unit()
        if unit is None:
            return self._transaction()
        if ends_unit and unit.connection is not None:
            return self.connection()
        return unit.transaction()

    def unit(self) -> AbstractAsyncContextManager[None]:
        """Make one transaction of all those that the block's own task runs; it commits at the end.

        It begins with the first of them; what was read before was read outside. One that fails as the first
        is undone at once and holds nothing; later ones are savepoints. Tasks that the block starts are not
        part of it.
        """
        return _Unit(self, self._transaction)

    def _unit(self) -> "_Unit | None":
        unit = _UNIT.get()
        return unit if unit is not None and unit.is_of(self) else None

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[asyncpg.Connection]:
        async with self.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
            except BaseException:
                await transaction.rollback()
                raise
            with committing(connection):
                await transaction.commit()

    def batcher(
        self,
        work: Callable[[asyncpg.Connection, Sequence[K]], Awaitable[Mapping[K, V]]],
        most: int,
        *,
        writes: bool = False,
    ) -> Batcher[K, V]:
        """Calls of `work` in groups of at most `most` keys, which end with this."""
        groups = Batcher(work, most, self.writing if writes else self.connection, writes=writes)
        self._groups.append(groups)
        return groups

    async def listen(self, channel: str, callback: Callable[[str | None], None]) -> None:
        """Hear a notification channel until cancelled, on the one connection that all who listen share.

        `callback` is called with each payload, in order, on the event loop; it must not block. It is called
        with None after each connect, to begin with and whenever the connection was another one: notifications
        sent before may have been missed, so read the tables again.
        """
        await self._listeners.hear(channel, callback)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a connection of the pool has ended: the next one may be to another server.

        A server that was restored, or promoted in the place of one that died, may lack what was committed.
        """
        self._losses.callback = callback

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the pool has made a connection, before anything is read over it.

        It may be to another server than the others, which may not have noticed yet that theirs is gone.
        """
        self._losses.on_connect = callback

    def figures(self) -> Iterator[Sample]:
        """How the pool is used now."""
        idle = self._pool.get_idle_size()
        yield Sample(catalogue.DATABASE.name, ("idle",), idle)
        yield Sample(catalogue.DATABASE.name, ("used",), self._pool.get_size() - idle)
        yield Sample(catalogue.DATABASE_MAX.name, (), self._pool.get_max_size())
        yield Sample(catalogue.QUEUE.name, ("database",), self._waiting)

    async def close(self) -> None:
        """Close all connections; those in use get some seconds to come back. Idempotent."""
        self._closed = True
        for groups in self._groups:
            await groups.close()
        with closing():
            await asyncio.wait_for(self._pool.close(), _CLOSE_S)
        self._pool.terminate()  # what is left

    async def _acquire(self) -> asyncpg.Connection:
        if self._closed:
            raise unavailable(asyncpg.InterfaceError("the pool is closed"))
        self._waiting += 1
        try:
            with connecting():
                return await self._pool.acquire(timeout=self._timeout_s)
        finally:
            self._waiting -= 1


def rows_of(tag: str) -> int:
    """The number of rows in what the server says of a command, such as `COPY 5` or `INSERT 0 5`."""
    return int(tag.rpartition(" ")[2])


class Repository:
    """What reads and writes the tables of one kind of resource. Any number of calls may run at once."""

    def __init__(self, database: Database) -> None:
        self._database = database


class _Losses:
    """Tells when a connection was made or has ended. See `Database.on_loss` and `Database.on_connect`."""

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None
        self.on_connect: Callable[[], None] | None = None

    async def watch(self, connection: asyncpg.Connection) -> None:
        """Begin to watch a connection that was made."""
        connection.add_termination_listener(self._end)
        if self.on_connect is not None:
            self.on_connect()

    def _end(self, _connection: asyncpg.Connection) -> None:
        if self.callback is not None:
            self.callback()


class _Unit(AbstractAsyncContextManager[None]):
    """The transaction of `Database.unit`. `connection` is None before it begins."""

    def __init__(
        self, database: Database, begin: Callable[[], AbstractAsyncContextManager[asyncpg.Connection]]
    ) -> None:
        self.connection: asyncpg.Connection | None = None
        self._begin = begin
        self._begun: AbstractAsyncContextManager[asyncpg.Connection] | None = None
        self._database = database
        self._task = asyncio.current_task()
        self._token: Token[_Unit | None] | None = None

    async def __aenter__(self) -> None:
        self._token = _UNIT.set(self)

    async def __aexit__(self, *raised: Any) -> bool | None:
        assert self._token is not None, "what is left has been entered"
        try:
            return None if self._begun is None else await self._begun.__aexit__(*raised)
        finally:
            _UNIT.reset(self._token)

    def is_of(self, database: Database) -> bool:
        """Whether it is that of the caller's task, over this database."""
        return self._database is database and self._task is asyncio.current_task()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """The unit's transaction, begun if need be."""
        if self.connection is not None:
            with using(self.connection):
                async with self.connection.transaction():
                    yield self.connection
            return
        begun = self._begin()
        connection = self.connection = await begun.__aenter__()
        try:
            yield connection
        except BaseException as error:
            self.connection = None
            await begun.__aexit__(type(error), error, error.__traceback__)
            raise
        self._begun = begun


_UNIT: ContextVar[_Unit | None] = ContextVar("unit", default=None)


def require_version(connection: asyncpg.Connection) -> None:
    """Raise `SettingError` when the server is older than the oldest version that we work on."""
    version = connection.get_server_version()
    if version.major < OLDEST_VERSION:
        raise SettingError(
            f"BROKER_DATABASE_URL: the server is PostgreSQL {version.major};"
            f" {OLDEST_VERSION} or newer is needed"
        )


async def _keep(_connection: asyncpg.Connection) -> None:
    """Nothing to reset: see the class."""


def _session_settings(timeout_s: float, name: str) -> dict[str, str]:
    timeout_ms = str(int(timeout_s * 1000))
    return {
        "application_name": name,
        "statement_timeout": timeout_ms,
        # A process that hangs inside a transaction must not keep its locks: they fence its successor.
        "idle_in_transaction_session_timeout": timeout_ms,
        # The same for a node that vanished. Without effect on a socket file.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
    }
