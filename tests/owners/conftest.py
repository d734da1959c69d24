"""A database with the schema, an account and a program `p`; an owner of it."""

from collections.abc import AsyncIterator

import pytest

from broker.owners.owner import Owner
from broker.settings import Settings
from broker.storage.migrations import migrate
from tests.owners.support import create_programs

SETTINGS = Settings(database_pool=4, database_timeout_s=5.0)


@pytest.fixture
async def dsn(postgres_dsn: str) -> str:
    await migrate(postgres_dsn)
    await create_programs(postgres_dsn, ["p", "q"])
    return postgres_dsn


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[Owner]:
    owner = await Owner.start(SETTINGS, dsn, 0)
    yield owner
    await owner.close()
