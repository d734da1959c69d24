import asyncio

import asyncpg
import pytest

from broker.deployments.first_start import prepare
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError
from broker.storage.migrations import migrate

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def read_hash(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval("SELECT password_hash FROM users WHERE username = 'admin'"))
    finally:
        await connection.close()


async def test_first_start_makes_account_and_admin_and_the_second_changes_nothing(postgres_dsn: str) -> None:
    settings = Settings(admin_password="correct-horse")
    first = await prepare(settings, postgres_dsn)
    assert first.applied[0] == "0001_initial"
    assert first.account == "demo, made with the user admin"
    assert [risk.partition(":")[0] for risk in first.risks][:1] == ["fsync is off"], (
        "the tests' server is hasty"
    )
    kept = await read_hash(postgres_dsn)
    second = await prepare(Settings(admin_password="another-one"), postgres_dsn)
    assert (second.applied, second.account) == ([], "demo")
    assert await read_hash(postgres_dsn) == kept


async def test_password_that_was_not_given_is_made_up_and_told_once(postgres_dsn: str) -> None:
    first = await prepare(Settings(), postgres_dsn)
    assert len(first.account.partition(", password ")[2]) >= 32
    assert "password" not in (await prepare(Settings(), postgres_dsn)).account


async def test_password_that_cannot_be_is_refused_by_the_name_of_its_setting(postgres_dsn: str) -> None:
    with pytest.raises(SettingError, match="BROKER_ADMIN_PASSWORD"):
        await prepare(Settings(admin_password="short"), postgres_dsn)


async def test_database_that_is_not_there_is_one_line() -> None:
    with pytest.raises(SetupError) as caught:
        await prepare(Settings(), "postgresql://broker@127.0.0.1:1/x")
    assert "\n" not in str(caught.value)


async def test_of_many_first_starts_one_makes_the_admin(postgres_dsn: str) -> None:
    await migrate(postgres_dsn)
    starts = await asyncio.gather(*(prepare(Settings(), postgres_dsn) for _ in range(4)))
    told = [start.account for start in starts if "password" in start.account]
    assert len(told) == 1
