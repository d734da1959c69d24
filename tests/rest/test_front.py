"""The HTTP door behind the server that it runs in: requests that no client library would send."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn

from tests.deployments.hostile import assert_refused
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def url(product: Product) -> AsyncIterator[str]:
    config = uvicorn.Config(
        product.app, host="127.0.0.1", port=0, http="h11", log_level="critical", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it tells by nothing else
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


async def test_hostile_requests_are_refused_and_others_served(url: str) -> None:
    await asyncio.to_thread(assert_refused, url)
