"""One running product for each module of tests; its tests name their programs differently."""

from collections.abc import AsyncIterator

import pytest

from tests.product import Product, open_product


@pytest.fixture(scope="module")
async def product(module_dsn: str, anyio_backend: str) -> AsyncIterator[Product]:
    # Longer than any test moves the clock.
    async with open_product(module_dsn, token_lifetime_s=30_000_000) as product:
        yield product
