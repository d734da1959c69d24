"""A database with the schema and an account, no program."""

import pytest


@pytest.fixture
async def dsn(own_migrated_dsn: str) -> str:
    return own_migrated_dsn
