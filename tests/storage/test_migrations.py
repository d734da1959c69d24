import asyncio
from pathlib import Path

import asyncpg
import pytest

from broker.storage.database import Database
from broker.storage.errors import SchemaError
from broker.storage.migrations import DIRECTORY, load, migrate, pending

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "0001_one.sql").write_text("CREATE TABLE one (n integer);")
    (tmp_path / "0002_two.sql").write_text("CREATE TABLE two (n integer); CREATE INDEX ON two (n);")
    return tmp_path


async def fetch_tables(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    finally:
        await connection.close()
    return {row["tablename"] for row in rows}


async def fetch_pending(dsn: str, directory: Path) -> list[str]:
    database = await Database.open(dsn, size=1, timeout_s=5)
    try:
        return await pending(database, directory)
    finally:
        await database.close()


def test_every_number_has_its_file_but_those_that_were_given_up() -> None:
    versions = [migration.version for migration in load(DIRECTORY)]
    absent = set(range(1, versions[-1])) - set(versions)
    assert (sorted(absent), len(versions)) == ([9, 14], versions[-1] - 2)


async def test_our_own_schema_applies_once(postgres_dsn: str) -> None:
    names = [migration.name for migration in load(DIRECTORY)]
    assert await fetch_pending(postgres_dsn, DIRECTORY) == names
    assert await migrate(postgres_dsn) == names
    assert await migrate(postgres_dsn) == []
    assert await fetch_pending(postgres_dsn, DIRECTORY) == []


async def test_only_what_is_missing_is_applied(postgres_dsn: str, directory: Path) -> None:
    assert await migrate(postgres_dsn, directory) == ["0001_one", "0002_two"]
    (directory / "0003_three.sql").write_text("CREATE TABLE three (n integer)")
    assert await fetch_pending(postgres_dsn, directory) == ["0003_three"]
    assert await migrate(postgres_dsn, directory) == ["0003_three"]


async def test_processes_that_migrate_together_apply_each_file_once(
    postgres_dsn: str, directory: Path
) -> None:
    done = await asyncio.gather(*(migrate(postgres_dsn, directory) for _ in range(4)))
    assert sorted(done) == [[], [], [], ["0001_one", "0002_two"]]


async def test_file_that_fails_leaves_nothing_and_keeps_the_earlier_ones(
    postgres_dsn: str, directory: Path
) -> None:
    (directory / "0002_two.sql").write_text("CREATE TABLE two (n integer); SELECT 1 / 0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(postgres_dsn, directory)
    assert await fetch_tables(postgres_dsn) == {"one", "schema_migrations"}
    assert await fetch_pending(postgres_dsn, directory) == ["0002_two"]


async def test_schema_newer_than_the_code_is_refused(postgres_dsn: str, directory: Path) -> None:
    await migrate(postgres_dsn, directory)
    (directory / "0002_two.sql").unlink()
    with pytest.raises(SchemaError, match="0002_two"):
        await migrate(postgres_dsn, directory)
    with pytest.raises(SchemaError, match="0002_two"):
        await fetch_pending(postgres_dsn, directory)


async def test_changed_file_is_refused(postgres_dsn: str, directory: Path) -> None:
    await migrate(postgres_dsn, directory)
    (directory / "0001_one.sql").write_text("CREATE TABLE one (n bigint);")
    with pytest.raises(SchemaError, match="0001_one was changed"):
        await migrate(postgres_dsn, directory)


async def test_file_that_appears_before_an_applied_one_is_refused(postgres_dsn: str, directory: Path) -> None:
    (directory / "0001_one.sql").rename(directory / "0000_away.txt")
    await migrate(postgres_dsn, directory)
    (directory / "0000_away.txt").rename(directory / "0001_one.sql")
    with pytest.raises(SchemaError, match="0001_one"):
        await migrate(postgres_dsn, directory)
