"""One product for the tests of a module, which keeps nothing of the requests that it has refused."""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from traceback import walk_tb
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
def leaves_no_errors() -> Iterator[None]:
    """No error is left that holds the frames it went through, and with them all that was sent.

    Where a frame holds the error in turn, both stay until garbage is collected, in a replica for hundreds of
    requests. Where pydantic's error is between them they stay for ever: the collector does not see what that
    one holds.
    """
    gc.collect()
    gc.freeze()  # for good, so that each collection looks at what is new only
    gc.disable()
    yield
    left = Counter(_ends(found) for found in gc.get_objects() if isinstance(found, BaseException))
    gc.enable()
    del left[""]
    assert not left


def _ends(error: BaseException) -> str:
    """What an error is, and the place in the product where it was raised; empty without one."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or not frames[-1].f_code.co_filename.startswith(_PRODUCT):
        return ""
    return f"{type(error).__name__} {frames[-1].f_code.co_filename}:{frames[-1].f_lineno}"


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
