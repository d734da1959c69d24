"""One product for the tests of a module, which keeps nothing of the requests that it has refused."""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import asyncpg
import pytest

import broker
from broker.demo.matomo import open_stand_in
from tests.analytics.conftest import peer_of
from tests.bad_input.stage import Stage
from tests.gateway.world import open_world

_PRODUCT = str(Path(broker.__file__).parent)


@pytest.fixture
def leaves_no_circles() -> Iterator[None]:
    """No error holds, by a circle, the frames that it went through, and with them all that was sent.

    Such a circle lasts until the collector of garbage runs, which in a replica takes hundreds of requests.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    places = Counter(
        f"{found.f_code.co_filename}:{found.f_lineno}"
        for found in gc.garbage
        if isinstance(found, FrameType) and found.f_code.co_filename.startswith(_PRODUCT)
    )
    gc.garbage.clear()
    gc.enable()
    gc.unfreeze()
    assert not places


@pytest.fixture(scope="module")
async def stage(module_dsn: str) -> AsyncIterator[Stage]:
    settings: dict[str, Any] = {"ws_messages_per_s": 0, "login_tries_per_user": 10**6}
    async with (
        open_stand_in() as matomo,
        open_world(module_dsn, **settings, **peer_of(matomo).settings) as world,
    ):
        admin = await world.admin()
        await admin.call("createProject", id="own", name="n")
        await admin.call("admin/createProgram", id="there", name="n")
        await admin.call("admin/createProgram", id="imports", name="n")
        event = await admin.call("producer", programId="there", event="A#b")
        sources = [{"id": "a", "type": "api", "url": "http://127.0.0.1:1/"}]
        revision = await admin.call(
            "createRevision", projectId="own", version="1", content={"dataSources": sources}
        )
        await admin.call("storeValue", projectId="own", id="v", metadata={"old": 1})
        users = await admin.call("listUsers")
        names = {"event": event["id"], "revision": revision["id"]}
        names["user"] = next(user["id"] for user in users if user["username"] == "user")
        connection = await asyncpg.connect(module_dsn)
        yield Stage(world, admin, connection, names)
        await connection.close()
