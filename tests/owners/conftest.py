"""A database with the schema, an account and a program `p`; an owner of it."""

from collections.abc import AsyncIterator

import pytest

from broker.owners.owner import Owner
from broker.settings import Settings
from tests.owners.support import create_programs

SETTINGS = Settings(database_pool=4, database_timeout_s=5.0)


@pytest.fixture
async def dsn(own_migrated_dsn: str) -> str:
    await create_programs(own_migrated_dsn, ["p", "q"])
    return own_migrated_dsn


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[Owner]:
    owner = await Owner.start(SETTINGS, dsn, 0)
    yield owner
    await owner.close()
