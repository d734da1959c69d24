"""Maintenance at the WebSocket door: viewers stay and go on, votes are refused and never counted."""

from typing import Any

import pytest

from tests.auth.services import PASSWORD
from tests.gateway.test_authentication import LOGIN
from tests.gateway.test_responses import ACCEPTED, asked, results
from tests.gateway.test_vote_forwarder import FAST, opened, taken
from tests.gateway.world import RpcError, Viewer, World
from tests.maintenance import MESSAGE, RETRY_AFTER_S, maintained

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {"ws_messages_per_s": 0, **FAST}
REFUSED = {
    "error": "maintenance",
    "error_description": MESSAGE,
    "status": 503,
    "retryAfter": RETRY_AFTER_S,
}


async def refused(viewer: Viewer, method: str, **params: Any) -> None:
    with pytest.raises(RpcError) as raised:
        await viewer.call(method, **params)
    assert (raised.value.code, raised.value.name) == (503, "maintenance")
    assert raised.value.data == REFUSED


async def test_viewers_stay_join_and_recover_while_changes_are_refused(world: World) -> None:
    program_id = await world.program()
    await world.publish(program_id, 2)
    before = await world.join()
    await before.call("subscribe", programId=program_id)
    async with maintained(world.product.services):
        await refused(await world.admin(), "producer", programId=program_id, event="Score#update")
        joined = await world.join()
        told = await joined.call("subscribe", programId=program_id, history=2)
        assert len(told["events"]) == 2
        login = await joined.call("login", **LOGIN, username="admin", password=PASSWORD)
        assert login["access_token"]
    await world.publish(program_id)
    for viewer in (before, joined):
        assert (await viewer.next("event"))["seq"] == 3


async def test_votes_by_the_ordinary_path_are_refused_and_not_counted(world: World) -> None:
    place = await asked(world)
    viewer = await world.join()
    async with maintained(world.product.services):
        await refused(viewer, "respond", **place, measureValue=1)
        await refused(viewer, "impression", **place)
    assert await viewer.call("respond", **place, measureValue=1) == ACCEPTED
    assert await results(world, place) == {"0": 0, "1": 1}


async def test_votes_that_native_code_takes_are_refused_and_not_counted(world: World) -> None:
    place = await asked(world)
    votes, before = await opened(world, place), taken(world)
    viewer = await world.join()
    assert await viewer.call("respond", **place, measureValue=1, visitorId="before") == ACCEPTED
    assert taken(world) == before + 1
    async with maintained(world.product.services):
        for number in range(20):
            await refused(viewer, "respond", **place, measureValue=1, visitorId=f"during {number}")
        assert taken(world) == before + 1
        assert await results(world, place) == {"0": votes, "1": 1}
    assert await viewer.call("respond", **place, measureValue=1, visitorId="during 0") == ACCEPTED
    more = await opened(world, place)
    assert await results(world, place) == {"0": max(votes, more), "1": 2}
