"""One running product for each module of tests; its tests name their programs differently."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from tests.product import Product, open_product


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def module_dsn(postgres_server: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(host=postgres_server, user="broker", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"CREATE DATABASE {name}"))
    yield f"postgresql://broker@/{name}?host={postgres_server}"
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
async def product(module_dsn: str, anyio_backend: str) -> AsyncIterator[Product]:
    # Longer than any test moves the clock.
    async with open_product(module_dsn, token_lifetime_s=30_000_000) as product:
        yield product
