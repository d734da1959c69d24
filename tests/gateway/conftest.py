"""One gateway for the tests of a module; each test uses programs of its own."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from broker.storage.migrations import migrate
from tests.gateway.world import World, open_world


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Fixtures of a module need a backend of a module."""
    return "asyncio"


@pytest.fixture(scope="module")
def module_dsn(postgres_server: str) -> Iterator[str]:
    """The DSN of a database for the tests of a module."""
    name = f"test_{uuid.uuid4().hex}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(host=postgres_server, user="broker", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    dsn = f"postgresql://broker@/{name}?host={postgres_server}"
    asyncio.run(run(f"CREATE DATABASE {name}"))
    asyncio.run(migrate(dsn))
    yield dsn
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
async def shared_world(module_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The module's gateway, with the module's `SETTINGS`."""
    settings: dict[str, Any] = getattr(request.module, "SETTINGS", {"ws_messages_per_s": 0})
    async with open_world(module_dsn, **settings) as world:
        yield world


@pytest.fixture
async def world(shared_world: World) -> AsyncIterator[World]:
    """The module's gateway, without clients of other tests."""
    yield shared_world
    await shared_world.leave()
