import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from broker.errors import Unavailable
from broker.settings import SettingError
from broker.storage.database import Database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

KILL_OTHERS = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
"""


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    database = await Database.open(postgres_dsn, size=2, timeout_s=0.5)
    yield database
    await database.close()


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
