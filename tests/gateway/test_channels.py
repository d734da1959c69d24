from typing import Any

import pytest

from broker.actors.placement import slot_name
from broker.owners.placement import OWNER
from broker.storage.fence import connection_name
from tests.gateway.test_calls import fails
from tests.gateway.world import Viewer, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_OTHERS = "UPDATE program_changes SET change = CASE change WHEN 'live' THEN 'ended' ELSE 'live' END"
_END_OWNER = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1
"""
_CREATE_UNTOLD = """
INSERT INTO programs (account, id, name, access, project_id, created_time, updated_time)
VALUES ('demo', $1, $1, 'public', 'own', now(), now()) RETURNING uid
"""
_BEGIN_HEAD = "INSERT INTO program_heads (program_uid, epoch, epoch_reason) VALUES ($1, 'untold', 'created')"


async def exchange_program_changes(world: World) -> None:
    """The database of the owner is one that has other rows in place of all those that were told."""
    database = world.product.services.database
    await database.execute(_OTHERS)
    await database.fetch(_END_OWNER, connection_name(slot_name(OWNER, 0)))


@pytest.mark.parametrize("channel", ["programs", "project:own"])
async def test_who_may_follow_a_channel(world: World, channel: str) -> None:
    assert (await fails(await world.join(), "subscribe", channel=channel)).code == 401
    assert (await fails(await world.join("client"), "subscribe", channel=channel)).code == 403
    for role in ("user", "producer", "admin"):
        viewer = await world.join(role)
        assert await viewer.call("subscribe", channel=channel) == {"channel": channel}


async def test_channel_of_a_project_of_others_is_not_found(world: World) -> None:
    assert (await fails(await world.join("user"), "subscribe", channel="project:others")).code == 404
    admin = await world.join("admin")
    assert await admin.call("subscribe", channel="project:others") == {"channel": "project:others"}


@pytest.mark.parametrize("channel", ["nothing", "project:", "project:no/id", "Programs"])
async def test_unknown_channel_is_not_found(world: World, channel: str) -> None:
    assert (await fails(await world.join("admin"), "subscribe", channel=channel)).code == 404


async def test_programs_channel_tells_of_programs(world: World) -> None:
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="programs")
    program = await world.program(projectId="own")
    created = await viewer.next("program")
    assert (created["channel"], created["change"], created["program"]["id"]) == (
        "programs",
        "created",
        program,
    )
    await world.set_access(program, "private", "own")
    updated = await viewer.next("program")
    assert (updated["change"], updated["program"]["access"]) == ("updated", "private")
    await (await world.admin()).call("admin/deleteProgram", programId=program)
    assert (await viewer.next("program"))["change"] == "deleted"


@pytest.mark.parametrize("role", ["user", "admin"])
async def test_readers_of_any_project_hear_that_changes_may_be_missing(world: World, role: str) -> None:
    viewer = await world.join(role)
    await viewer.call("subscribe", channel="programs")
    await world.program(projectId="own")
    assert (await viewer.next("program"))["change"] == "created"
    await exchange_program_changes(world)
    assert await viewer.next("resumed") == {"channel": "programs"}
    program = await world.program(projectId="own")
    assert (await viewer.next("program"))["program"]["id"] == program


async def test_program_whose_news_are_missing_joins_its_project(world: World) -> None:
    viewer = await world.join("admin")
    await viewer.call("subscribe", channel="project:own")
    known = await world.program(projectId="own")
    await world.publish(known)
    assert (await viewer.next("event"))["programId"] == known
    (uid,) = await world.product.services.database.fetchrow(_CREATE_UNTOLD, "untold")
    await world.product.services.database.execute(_BEGIN_HEAD, uid)
    await exchange_program_changes(world)
    await world.publish("untold", 2)
    told = [await viewer.next("event") for _ in range(2)]
    assert [(each["programId"], each["seq"]) for each in told] == [("untold", 1), ("untold", 2)]


async def test_readers_of_other_projects_hear_of_other_programs(world: World) -> None:
    token = await world.new_user("outsider", "user", "elsewhere")
    insider, outsider, admin = (
        await world.join("user"),
        await world.join(token=token),
        await world.join("admin"),
    )
    for viewer in (insider, outsider, admin):
        assert await viewer.call("subscribe", channel="programs") == {"channel": "programs"}
    mine = await world.program(access="private", projectId="own")
    theirs = await world.program(access="private", projectId="elsewhere")
    public = await world.program(projectId="own")
    for viewer, expected in (
        (insider, [mine, public]),
        (outsider, [theirs, public]),
        (admin, [mine, theirs, public]),
    ):
        assert [(await viewer.next("program"))["program"]["id"] for _ in expected] == expected


async def test_a_program_that_moves_to_others_falls_silent(world: World) -> None:
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="programs")
    program = await world.program(access="private", projectId="own")
    await world.set_access(program, "private", "elsewhere")
    await world.set_access(program, "public", "elsewhere")
    told = await programs_until(viewer, program, access="public")
    assert [each["projectId"] for each in told if each["id"] == program] == ["own", "elsewhere"]


async def programs_until(viewer: Viewer, program: str, **fields: str) -> list[dict[str, Any]]:
    """The programs that a viewer of `programs` is told of, up to this one as it shall be."""
    told: list[dict[str, Any]] = []
    while not told or told[-1] | {"id": program} | fields != told[-1]:
        message = await viewer.next()
        if message["method"] == "program":
            told.append(message["params"]["program"])
    return told


async def test_a_view_of_the_programs_is_not_found_by_its_name(world: World) -> None:
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="programs")
    outsider = await world.join(token=await world.new_user("spy", "user", "elsewhere"))
    for number in range(1, 9):
        assert (await fails(outsider, "subscribe", channel=f"programs?{number}")).code == 404


async def test_another_log_in_ends_a_view_that_is_not_its_own(world: World) -> None:
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="programs")
    await world.new_user("newcomer", "user", "elsewhere")
    credentials = {"username": "newcomer", "password": "correct horse"}
    await viewer.call("login", grant_type="password", client_id="Test", **credentials)
    await viewer.call("subscribe", channel="programs")
    mine = await world.program(access="private", projectId="own")
    theirs = await world.program(access="private", projectId="elsewhere")
    assert mine not in [program["id"] for program in await programs_until(viewer, theirs)]


async def test_programs_channel_is_of_one_account(world: World) -> None:
    viewer = await world.join("admin", account="other")
    await viewer.call("subscribe", channel="programs")
    await world.program()
    mine = await world.program(account="other")
    assert (await viewer.next("program"))["program"]["id"] == mine


async def test_project_channel_has_the_events_of_its_programs(world: World) -> None:
    first, second, foreign = (
        await world.program(projectId="own"),
        await world.program(projectId="own", access="private"),
        await world.program(projectId="elsewhere"),
    )
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="project:own")
    for program in (first, foreign, second):
        await world.publish(program)
    for program in (first, second):
        event = await viewer.next("event")
        assert (event["programId"], event["channel"], event["seq"]) == (program, "project:own", 1)


async def test_program_created_later_joins_the_channel_from_its_first_event(world: World) -> None:
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="project:own")
    program = await world.program(projectId="own")
    await world.publish(program, 3)
    assert [(await viewer.next("event"))["seq"] for _ in range(3)] == [1, 2, 3]
    await (await world.admin()).call("admin/deleteProgram", programId=program)
    deleted = await viewer.next("programDeleted")
    assert (deleted["programId"], deleted["channel"]) == (program, "project:own")
    # The channel goes on.
    await world.publish(await world.program(projectId="own"))
    assert (await viewer.next("event"))["seq"] == 1


async def test_program_that_moves_out_is_heard_no_more(world: World) -> None:
    moving, staying = await world.program(projectId="own"), await world.program(projectId="own")
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="project:own")
    await world.publish(moving)
    assert (await viewer.next("event"))["programId"] == moving
    await world.set_access(moving, "public", "elsewhere")
    await world.publish(moving)
    await world.publish(staying)
    assert (await viewer.next("event"))["programId"] == staying


async def test_program_and_channel_each_deliver(world: World) -> None:
    program = await world.program(projectId="own")
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="project:own")
    await viewer.call("subscribe", programId=program)
    await world.publish(program)
    events = [await viewer.next("event"), await viewer.next("event")]
    assert sorted("channel" in event for event in events) == [False, True]


async def test_unsubscribe_from_a_channel(world: World) -> None:
    program = await world.program(projectId="own")
    viewer = await world.join("user")
    await viewer.call("subscribe", channel="project:own")
    assert await viewer.call("unsubscribe", channel="project:own") == {"channel": "project:own"}
    await world.publish(program)
    assert await viewer.call("servertime")
    assert viewer.told.empty()
