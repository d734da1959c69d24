import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import psutil
import pytest

from broker.errors import OutcomeUnknown, Unavailable
from broker.settings import SettingError
from broker.storage.database import Database
from broker.storage.long_connection import long_connection

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

KILL_OTHERS = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
"""


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    database = await open_within(postgres_dsn, 0.5)
    yield database
    await database.close()


async def open_within(dsn: str, timeout_s: float) -> Database:
    """A database whose statements have little time; to connect may take longer on a busy machine."""
    for _ in range(20):
        with suppress(Unavailable):
            return await Database.open(dsn, size=2, timeout_s=timeout_s)
    raise AssertionError("the database cannot be reached")


async def run(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


async def test_transaction_commits_at_its_end(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("CREATE TABLE t (n integer)")
        await connection.execute("INSERT INTO t VALUES (1)")
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT n FROM t") == 1


async def test_transaction_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(KeyError):
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE t (n integer)")
            raise KeyError
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT to_regclass('t')") is None


async def test_errors_of_the_statement_pass_through(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        async with database.connection() as connection:
            await connection.execute("SELECT * FROM nowhere")


async def test_wait_for_a_connection_is_bounded(database: Database) -> None:
    async with database.connection(), database.connection():
        with pytest.raises(Unavailable) as caught:
            async with database.connection():
                pass
    assert caught.value.retry_after_s == 1


async def test_slow_statement_is_unavailable_and_the_connection_is_usable_again(database: Database) -> None:
    with pytest.raises(Unavailable) as caught:
        async with database.connection() as connection:
            await connection.execute("SELECT pg_sleep(5)")
    assert "57014" in (caught.value.log_text or "")
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_transaction_that_idles_loses_its_locks(database: Database) -> None:
    with pytest.raises(Unavailable):
        async with database.transaction() as connection:
            await connection.execute("SELECT 1")
            await asyncio.sleep(1)
            await connection.execute("SELECT 1")


async def test_pool_heals_after_its_connections_were_cut(database: Database, postgres_dsn: str) -> None:
    with pytest.raises(Unavailable) as caught:
        async with database.transaction() as connection:
            await connection.execute("SELECT 1")
            await run(postgres_dsn, KILL_OTHERS)
            await connection.execute("SELECT 1")
    assert "SELECT" not in caught.value.message
    async with database.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_idle_connections_that_were_cut_are_replaced(database: Database, postgres_dsn: str) -> None:
    async with database.connection(), database.connection():
        pass
    await run(postgres_dsn, KILL_OTHERS)
    await asyncio.sleep(0.05)  # lets the loop read the end of both streams
    async with database.connection() as one, database.connection() as two:
        assert await one.fetchval("SELECT 1") + await two.fetchval("SELECT 1") == 2


async def test_read_only_server_is_unavailable(database: Database) -> None:
    with pytest.raises(Unavailable):
        async with database.transaction() as connection:
            await connection.execute("SET TRANSACTION READ ONLY")
            await connection.execute("CREATE TABLE t (n integer)")


async def test_closed_database_is_unavailable(database: Database) -> None:
    await database.close()
    with pytest.raises(Unavailable):
        async with database.connection():
            pass


async def test_close_does_not_wait_for_ever(
    database: Database, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.storage.database._CLOSE_S", 0.05)
    with pytest.raises(Unavailable):
        async with database.connection() as connection:
            await database.close()
            await connection.execute("SELECT 1")


async def test_long_connection_ends_with_a_server_that_goes_away_at_that_moment(postgres_dsn: str) -> None:
    with pytest.raises(KeyError):
        async with long_connection(postgres_dsn, "tested") as connection:
            end_backend(connection.get_server_pid())
            raise KeyError


def end_backend(process: int) -> None:
    """End a process of the server while this one's loop stands still, so that it learns of it by writing."""
    os.kill(process, signal.SIGTERM)
    while psutil.pid_exists(process):
        pass


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://broker@127.0.0.1:1/x",
        "postgresql://broker@/x?host=/nowhere",
        "postgresql://broker@host.invalid/x",
    ],
)
async def test_server_that_is_not_there_is_unavailable_in_one_line(dsn: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await Database.open(dsn, size=1, timeout_s=2)
    assert caught.value.log_text
    assert "\n" not in caught.value.log_text


async def test_unknown_database_is_unavailable(postgres_server: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await Database.open(f"postgresql://broker@/nowhere?host={postgres_server}", size=1, timeout_s=2)
    assert "nowhere" in (caught.value.log_text or "")


@pytest.mark.parametrize("dsn", ["mysql://x", "postgresql://u:pass/word@host:port/x"])
async def test_dsn_that_cannot_be_read_names_the_setting_and_no_secret(dsn: str) -> None:
    with pytest.raises(SettingError, match="BROKER_DATABASE_URL") as caught:
        await Database.open(dsn, size=1, timeout_s=2)
    assert "word" not in str(caught.value).replace("password", "")


async def test_listener_hears_in_order_and_says_when_it_connected_anew(
    database: Database, postgres_dsn: str
) -> None:
    heard: asyncio.Queue[str | None] = asyncio.Queue()
    listener = asyncio.create_task(database.listen("news", heard.put_nowait))
    assert await asyncio.wait_for(heard.get(), 5) is None
    await run(postgres_dsn, "NOTIFY news, 'one'; NOTIFY news, 'two'")
    assert [await asyncio.wait_for(heard.get(), 5) for _ in range(2)] == ["one", "two"]

    await run(postgres_dsn, KILL_OTHERS)
    assert await asyncio.wait_for(heard.get(), 10) is None
    await run(postgres_dsn, "NOTIFY news, 'three'")
    assert await asyncio.wait_for(heard.get(), 5) == "three"

    listener.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listener


async def test_all_who_listen_share_one_connection(database: Database, postgres_dsn: str) -> None:
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = 'SELECT 1'"
    heard: dict[str, asyncio.Queue[str | None]] = {name: asyncio.Queue() for name in ("news", "weather")}
    listeners = {
        name: asyncio.create_task(database.listen(name, queue.put_nowait)) for name, queue in heard.items()
    }
    for queue in heard.values():
        assert await asyncio.wait_for(queue.get(), 5) is None
    await run(postgres_dsn, "NOTIFY news, 'one'; NOTIFY weather, 'rain'")
    assert await asyncio.wait_for(_text(heard["news"]), 5) == "one"
    assert await asyncio.wait_for(_text(heard["weather"]), 5) == "rain"
    assert await database.fetchval(listening) == 1

    listeners["news"].cancel()
    await asyncio.wait([listeners["news"]])
    await run(postgres_dsn, "NOTIFY news, 'two'; NOTIFY weather, 'sun'")
    assert await asyncio.wait_for(_text(heard["weather"]), 5) == "sun"
    assert heard["news"].empty()

    listeners["weather"].cancel()
    await asyncio.wait([listeners["weather"]])
    async with asyncio.timeout(10):
        while await database.fetchval(listening):  # noqa: ASYNC110 - the server ends it when it notices
            await asyncio.sleep(0.02)


async def _text(heard: asyncio.Queue[str | None]) -> str:
    """What is heard next, but for connects."""
    while True:
        text = await heard.get()
        if text is not None:
            return text


# -- what is known of a change when its connection is lost

_END_ME = "SELECT pg_terminate_backend(pg_backend_pid())"
_END_AT_COMMIT = """
CREATE TABLE t (n integer);
CREATE FUNCTION end_me() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION end_me();
"""


async def test_connection_lost_before_the_commit_has_changed_nothing(database: Database) -> None:
    with pytest.raises(Unavailable) as caught:
        async with database.transaction() as connection:
            await connection.execute(_END_ME)
    assert type(caught.value) is Unavailable


async def test_connection_lost_during_the_commit_may_have_changed_something(
    database: Database, postgres_dsn: str
) -> None:
    await run(postgres_dsn, _END_AT_COMMIT)
    with pytest.raises(OutcomeUnknown) as caught:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO t VALUES (1)")
    assert caught.value.retry_after_s == 1


async def test_connection_lost_during_the_commit_of_a_unit_may_have_changed_something(
    database: Database, postgres_dsn: str
) -> None:
    await run(postgres_dsn, _END_AT_COMMIT)
    with pytest.raises(OutcomeUnknown):
        async with database.unit(), database.transaction() as connection:
            await connection.execute("INSERT INTO t VALUES (1)")


async def test_connection_lost_during_a_statement_that_commits_may_have_changed_something(
    database: Database,
) -> None:
    with pytest.raises(OutcomeUnknown):
        async with database.writing() as connection:
            await connection.execute(_END_ME)
    with pytest.raises(Unavailable) as caught:
        async with database.connection() as connection:
            await connection.execute(_END_ME)
    assert type(caught.value) is Unavailable


async def test_statement_that_the_server_gave_up_has_changed_nothing(database: Database) -> None:
    with pytest.raises(Unavailable) as caught:
        async with database.writing() as connection:
            await connection.execute("SELECT pg_sleep(2)")  # over the time-out of a statement
    assert type(caught.value) is Unavailable


async def test_commit_that_the_server_refuses_is_an_error_of_the_statement(
    database: Database, postgres_dsn: str
) -> None:
    await run(postgres_dsn, "CREATE TABLE t (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO t VALUES (1), (1)")


# -- units


async def test_unit_commits_its_transactions_together(database: Database, postgres_dsn: str) -> None:
    await run(postgres_dsn, "CREATE TABLE t (n integer)")

    async def count() -> int:
        async with database.connection() as connection:
            return int(await connection.fetchval("SELECT count(*) FROM t"))

    async with database.unit():
        assert await count() == 0
        for n in range(2):
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO t VALUES ($1)", n)
        assert await count() == 2
        assert await asyncio.create_task(count()) == 0  # a task of its own is not part of it
    assert await count() == 2


async def test_unit_that_raises_leaves_nothing(database: Database, postgres_dsn: str) -> None:
    await run(postgres_dsn, "CREATE TABLE t (n integer)")
    with pytest.raises(KeyError):
        async with database.unit():
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO t VALUES (1)")
            raise KeyError
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM t") == 0


async def test_first_transaction_of_a_unit_that_raises_holds_nothing(
    database: Database, postgres_dsn: str
) -> None:
    await run(postgres_dsn, "CREATE TABLE t (n integer)")
    async with database.unit():
        with pytest.raises(KeyError):
            async with database.transaction() as connection:
                await connection.execute("LOCK TABLE t")
                raise KeyError
        await asyncio.create_task(_insert(database, 1))
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(KeyError):
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO t VALUES (3)")
                raise KeyError
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT array_agg(n ORDER BY n) FROM t") == [1, 2]


async def test_unit_ends_with_its_last_transaction_when_that_fails(
    database: Database, postgres_dsn: str
) -> None:
    await run(postgres_dsn, "CREATE TABLE t (n integer)")
    for rows in ([1], []):  # with and without a transaction before
        with pytest.raises(KeyError):
            async with database.unit():
                for n in rows:
                    await _insert(database, n)
                async with database.transaction(ends_unit=True) as connection:
                    await connection.execute("INSERT INTO t VALUES (2)")
                    raise KeyError
    async with database.unit(), database.transaction(ends_unit=True) as connection:
        await connection.execute("INSERT INTO t VALUES (3)")
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT array_agg(n) FROM t") == [3]


async def _insert(database: Database, n: int) -> None:
    async with database.transaction() as connection:
        await connection.execute("INSERT INTO t VALUES ($1)", n)
