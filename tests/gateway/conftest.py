"""One gateway for the tests of a module; each test uses programs of its own."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.world import World, open_world


@pytest.fixture(scope="module")
async def shared_world(module_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The module's gateway, with the module's `SETTINGS`; behind a relay where the module `IS_RELAYED`."""
    settings: dict[str, Any] = getattr(request.module, "SETTINGS", {"ws_messages_per_s": 0})
    is_relayed: bool = getattr(request.module, "IS_RELAYED", False)
    async with open_world(module_dsn, is_relayed=is_relayed, **settings) as world:
        yield world


@pytest.fixture
async def world(shared_world: World) -> AsyncIterator[World]:
    """The module's gateway, without clients of other tests."""
    yield shared_world
    await shared_world.leave()
