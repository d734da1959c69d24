"""The channel `storage:<project>`."""

import asyncio

import pytest

from tests.gateway.test_calls import fails
from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_projects = 0


async def make_project(world: World, account: str = "demo") -> str:
    global _projects
    _projects += 1
    project_id = f"store{_projects}"
    await (await world.admin(account)).call("createProject", id=project_id, name="n")
    return project_id


@pytest.mark.parametrize("role", [None, "client", "user", "producer", "admin"])
async def test_everybody_follows(world: World, role: str | None) -> None:
    project_id = await make_project(world)
    viewer = await world.join(role)
    channel = f"storage:{project_id}"
    assert await viewer.call("subscribe", channel=channel) == {"channel": channel}
    stored = await (await world.join()).call("storeValue", projectId=project_id, metadata={"x": 1})
    told = await viewer.next("stored")
    assert told == {"channel": channel, "projectId": project_id, "value": stored}


@pytest.mark.parametrize("channel", ["storage:", "storage:unknown", "storage:a/b", "storage:filter"])
async def test_an_unknown_project_has_no_channel(world: World, channel: str) -> None:
    for role in (None, "admin"):
        assert (await fails(await world.join(role), "subscribe", channel=channel)).code == 404


async def test_every_storing_is_told_once_and_in_order(world: World) -> None:
    project_id = await make_project(world)
    viewers = [await world.join(), await world.join("client")]
    for viewer in viewers:
        await viewer.call("subscribe", channel=f"storage:{project_id}")
    writer = await world.join("user")
    for number in range(30):
        await writer.call("storeValue", projectId=project_id, id=f"v{number % 3}", metadata={"n": number})
    for viewer in viewers:
        told = [(await viewer.next("stored"))["value"]["metadata"]["n"] for _ in range(30)]
        assert told == list(range(30))


async def test_what_was_refused_is_not_told(world: World) -> None:
    project_id = await make_project(world)
    viewer = await world.join()
    await viewer.call("subscribe", channel=f"storage:{project_id}")
    anybody = await world.join()
    await anybody.call("storeValue", projectId=project_id, id="x", metadata={"n": 1})
    assert (await fails(anybody, "storeValue", projectId=project_id, id="x", metadata={"n": 2})).code == 409
    await anybody.call("storeValue", projectId=project_id, id="y", metadata={"n": 3})
    assert [(await viewer.next("stored"))["value"]["metadata"]["n"] for _ in range(2)] == [1, 3]


async def test_channels_are_of_one_project_and_account(world: World) -> None:
    mine, other = await make_project(world), await make_project(world)
    await (await world.admin("other")).call("createProject", id=mine, name="n")
    viewer = await world.join()
    await viewer.call("subscribe", channel=f"storage:{mine}")
    await (await world.admin("other")).call("storeValue", projectId=mine, metadata={"n": "account"})
    admin = await world.admin()
    await admin.call("storeValue", projectId=other, metadata={"n": "project"})
    await admin.call("storeValue", projectId=mine, metadata={"n": "mine"})
    assert (await viewer.next("stored"))["value"]["metadata"] == {"n": "mine"}


async def test_large_values_are_told_whole(world: World) -> None:
    project_id = await make_project(world)
    viewer = await world.join(max_size=None)
    await viewer.call("subscribe", channel=f"storage:{project_id}")
    admin = await world.admin()
    for number in range(6):
        await admin.call("storeValue", projectId=project_id, metadata={"n": number, "x": "y" * 200_000})
    told = [(await viewer.next("stored"))["value"]["metadata"] for _ in range(6)]
    assert [(one["n"], len(one["x"])) for one in told] == [(number, 200_000) for number in range(6)]


async def test_a_lost_nudge_costs_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    project_id = await make_project(world)
    viewer = await world.join()
    await viewer.call("subscribe", channel=f"storage:{project_id}")
    monkeypatch.setattr(world.product.owners, "value_stored", lambda *_: asyncio.sleep(0))
    await (await world.admin()).call("storeValue", projectId=project_id, metadata={"n": 1})
    assert (await viewer.next("stored"))["value"]["metadata"] == {"n": 1}


async def test_unsubscribe_ends_it(world: World) -> None:
    project_id = await make_project(world)
    viewer = await world.join()
    channel = f"storage:{project_id}"
    await viewer.call("subscribe", channel=channel)
    assert await viewer.call("unsubscribe", channel=channel) == {"channel": channel}
    await viewer.call("storeValue", projectId=project_id, metadata={})
    await viewer.call("subscribe", channel=f"storage:{await make_project(world)}")
    assert viewer.told.empty()
