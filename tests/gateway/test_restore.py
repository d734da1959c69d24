"""An account is replaced by that of a backup while its viewers, producers and voters go on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.storage.backup import back_up
from broker.storage.restore import restore
from tests.gateway.test_calls import fails
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_ASKED = {"title": "Winner", "options": ["a", "b"]}
_TOLD_S = 15.0  # an owner that nobody writes through looks every few seconds


@pytest.fixture
async def world(own_migrated_dsn: str) -> AsyncIterator[World]:
    async with open_world(own_migrated_dsn, ws_messages_per_s=0, responses_rate_per_address=0) as world:
        yield world


async def sign_in_again(world: World) -> None:
    """Give the admin a token of now: those from before a restore are refused."""
    services = world.product.services
    credentials = await services.users.find_credentials("demo", "admin")
    assert credentials is not None
    token = await services.auth.issue("demo", credentials.user, credentials.valid_from_ms)
    world.product.tokens["admin"] = token.text


async def publish(world: World, program: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    (event,) = await world.product.publish(program, {"event": "Score#update", "metadata": metadata or {}})
    return event


async def vote(world: World, program: str, poll: str, visitor: str) -> int:
    """How many votes were counted: one or none."""
    viewer = await world.join()
    named = {"programId": program, "contextId": poll, "measureName": "winner"}
    answer = await viewer.call("respond", **named, measureValue=0, visitorId=visitor)
    return int(answer["accepted"])


async def told_next(viewer: Any) -> dict[str, Any]:
    async with asyncio.timeout(_TOLD_S):
        return dict(await viewer.told.get())


async def test_everybody_is_told_and_goes_on(world: World, own_migrated_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "all.backup"
    show, silent, later = [await world.program() for _ in range(3)]
    poll = await publish(world, show, _ASKED)
    await publish(world, silent)
    assert [await vote(world, show, poll["id"], name) for name in ("one", "two")] == [1, 1]
    async with world.product.door() as door:
        assert (await door.delete(f"/programs/{later}")).is_success
        stored = (await door.get(f"/programs/{show}/events")).json()
    followers = {}
    for program in (show, silent):
        followers[program] = await world.join()
        head = await followers[program].call("subscribe", programId=program)
        assert head["seq"] == 1
    other = await world.join(account="other")
    with path.open("wb") as raw:
        await back_up(own_migrated_dsn, raw, "test")

    lost = await publish(world, show)
    gone = await world.program()
    await publish(world, gone)
    unfortunate = await world.join()
    await unfortunate.call("subscribe", programId=gone)
    assert await vote(world, show, poll["id"], "three") == 1
    assert (await told_next(followers[show]))["params"] == lost | {"seq": 2}
    await restore(own_migrated_dsn, path, ["demo"], replace=True)

    # A write meets the new history at once; nobody writes to the other program.
    async with world.product.door() as door, asyncio.timeout(_TOLD_S):
        while (await door.get("/users")).status_code != 401:
            pass
    await sign_in_again(world)
    fresh = await publish(world, show)
    assert fresh["seq"] == 2
    assert fresh["epoch"] not in (lost["epoch"], poll["epoch"])
    replaced = await told_next(followers[show])
    assert (replaced["method"], replaced["params"]["seq"]) == ("historyReplaced", 1)
    assert (await told_next(followers[show]))["params"]["id"] == fresh["id"]
    replaced = await told_next(followers[silent])
    assert (replaced["method"], replaced["params"]["seq"]) == ("historyReplaced", 1)
    assert (await told_next(unfortunate))["method"] == "programDeleted"
    assert other.told.empty()

    async with world.product.door() as door:
        now = (await door.get(f"/programs/{show}/events")).json()
        assert [event["id"] for event in now] == [*(event["id"] for event in stored), fresh["id"]]
        assert (await door.get(f"/programs/{gone}")).status_code == 404
    back = await world.join()
    cursor = {"epoch": lost["epoch"], "seq": lost["seq"], "id": lost["id"]}
    assert (await back.call("subscribe", programId=show, since=cursor))["recovered"] is False
    # Who had voted has; who voted since has not, which counters notice within seconds, or when others vote.
    assert [await vote(world, show, poll["id"], name) for name in ("one", "two")] == [0, 0]
    async with asyncio.timeout(_TOLD_S):
        while not await vote(world, show, poll["id"], "three"):
            pass
    assert [await vote(world, show, poll["id"], name) for name in ("one", "three", "four")] == [0, 0, 1]


async def test_connections_of_an_api_token_go_on(world: World, own_migrated_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "all.backup"
    program = await world.program(access="private", projectId="own")
    user = await world.join(token=await world.new_user("crew", "user", "own"))
    made = await user.call("createApiToken", name="mixer")
    viewer = await world.join(token=made["token"])
    await viewer.call("subscribe", programId=program)
    with path.open("wb") as raw:
        await back_up(own_migrated_dsn, raw, "test")
    later = await user.call("createApiToken", name="later")
    unlucky = await world.join(token=later["token"])
    await unlucky.call("subscribe", programId=program)
    await restore(own_migrated_dsn, path, ["demo"], replace=True)

    async with asyncio.timeout(_TOLD_S):
        assert (await unlucky.next("unsubscribed"))["programId"] == program
    assert (await fails(user, "getCurrentUser")).code == 401
    assert (await fails(unlucky, "getCurrentUser")).code == 401
    assert (await viewer.call("getCurrentUser"))["username"] == "crew"
    await sign_in_again(world)
    event = await publish(world, program)
    async with asyncio.timeout(_TOLD_S):
        while (await viewer.told.get())["params"].get("id") != event["id"]:
            pass
    again = await world.join(token=made["token"])
    assert (await again.call("getCurrentUser"))["username"] == "crew"
