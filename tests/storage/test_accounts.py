import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.errors import NotFound
from broker.storage.accounts import Accounts
from broker.storage.database import Database
from tests.auth.services import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def test_ensure_in_many_processes_makes_one_account(database: Database) -> None:
    made = await asyncio.gather(*(Accounts(database).ensure("one") for _ in range(6)))
    assert len({account.created_time for account in made}) == 1
    assert [a.name for a in await Accounts(database).list()] == ["demo", "one", "other"]


async def test_unknown_account_is_not_found(database: Database) -> None:
    accounts = Accounts(database)
    assert await accounts.find("missing") is None
    assert await accounts.find("no\x00name") is None
    with pytest.raises(NotFound):
        await accounts.get("missing")
