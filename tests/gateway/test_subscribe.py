import asyncio

import pytest

from broker.gateway.backfill import PAGE_ENTRIES
from tests.gateway.test_calls import fails
from tests.gateway.world import World, seqs

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def test_cursor_with_another_message_at_its_seq_is_not_recovered(world: World) -> None:
    """Its seq exists again, after a database that was restored: what it has seen there is gone."""
    program = await world.program()
    await world.publish(program, 5)
    events = await (await world.admin()).call("getProgramEvents", programId=program)
    ids = [event["id"] for event in events]
    for seq, seen, missed in ((3, 2, 2), (3, 1, None), (5, 4, 0), (5, 0, None), (0, 0, 5)):
        since = {"epoch": events[0]["epoch"], "seq": seq, "id": ids[seen]}
        answer = await (await world.join()).call("subscribe", programId=program, since=since)
        assert answer["recovered"] is (missed is not None)
        assert [event["id"] for event in answer["events"]] == (ids[5 - missed :] if missed else [])
        assert (answer["seq"], answer["id"]) == (5, ids[4])


async def test_subscriber_gets_what_is_published(world: World) -> None:
    program = await world.program()
    await world.publish(program, 2)
    viewer = await world.join()
    answer = await viewer.call("subscribe", programId=program)
    assert list(answer) == ["programId", "epoch", "seq", "id", "recovered", "events"]
    assert (answer["programId"], answer["seq"], answer["recovered"], answer["events"]) == (
        program,
        2,
        True,
        [],
    )
    await world.publish(program, 1)
    event = await viewer.next("event")
    assert (event["seq"], event["epoch"], event["programId"]) == (3, answer["epoch"], program)


async def test_subscribing_twice_delivers_once(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    first = await viewer.call("subscribe", programId=program)
    assert (await viewer.call("subscribe", programId=program))["epoch"] == first["epoch"]
    await world.publish(program, 2)
    assert await viewer.pushes(2) == [1, 2]
    assert await viewer.call("servertime")
    assert viewer.told.empty()


async def test_subscribing_twice_says_whether_all_since_a_position_was_delivered(world: World) -> None:
    program = await world.program()
    await world.publish(program, 3)
    viewer = await world.join()
    opened = await viewer.call("subscribe", programId=program)
    epoch = opened["epoch"]
    for since, recovered in (
        ({"epoch": epoch, "seq": 3}, True),
        ({"epoch": epoch, "seq": 1}, False),
        ({"epoch": "gone", "seq": 3}, False),
    ):
        again = await viewer.call("subscribe", programId=program, since=since)
        assert (again["seq"], again["recovered"], again["events"]) == (3, recovered, []), since
    assert (await viewer.call("subscribe", programId=program))["recovered"] is True


async def test_unsubscribe_ends_the_pushes(world: World) -> None:
    program, other = await world.program(), await world.program()
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    await viewer.call("subscribe", programId=other)
    assert await viewer.call("unsubscribe", programId=program) == {"programId": program}
    assert await viewer.call("unsubscribe", programId=program) == {"programId": program}
    await world.publish(program)
    await world.publish(other)
    assert (await viewer.next("event"))["programId"] == other


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "programId"),
        ({"programId": "a", "channel": "programs"}, "programId"),
        ({"programId": "no/id"}, "programId"),
        ({"programId": "a", "since": {"epoch": "e"}}, "since.seq"),
        ({"programId": "a", "history": -1}, "history"),
        ({"channel": "programs", "history": 1}, "history"),
        ({"programId": "a", "more": 1}, "more"),
    ],
)
async def test_fault_names_its_field(world: World, params: dict[str, object], field: str) -> None:
    viewer = await world.join("admin")
    error = await fails(viewer, "subscribe", **params)
    assert error.code == -32602
    assert field in error.fields


@pytest.mark.parametrize(
    ("params", "field"), [({}, "programId"), ({"programId": "a", "history": 1}, "history")]
)
async def test_fault_of_unsubscribe_names_its_field(
    world: World, params: dict[str, object], field: str
) -> None:
    assert field in (await fails(await world.join(), "unsubscribe", **params)).fields


async def test_who_may_subscribe(world: World) -> None:
    private = await world.program(access="private", projectId="own")
    cases = {None: 401, "client": 403, "user": 0, "producer": 0, "admin": 0}
    for role, code in cases.items():
        viewer = await world.join(role)
        if code:
            assert (await fails(viewer, "subscribe", programId=private)).code == code, role
        else:
            assert (await viewer.call("subscribe", programId=private))["seq"] == 0
    outsider = await world.join(token=await world.new_user("outsider", "user", "elsewhere"))
    assert (await fails(outsider, "subscribe", programId=private)).code == 404


async def test_unknown_program(world: World) -> None:
    assert (await fails(await world.join(), "subscribe", programId="never")).code == 401
    assert (await fails(await world.join("client"), "subscribe", programId="never")).code == 404


async def test_program_of_another_account_is_unknown(world: World) -> None:
    program = await world.program()
    other = await world.join("admin", account="other")
    assert (await fails(other, "subscribe", programId=program)).code == 404


async def test_since_brings_what_was_missed(world: World) -> None:
    program = await world.program()
    epoch = (await (await world.join()).call("subscribe", programId=program))["epoch"]
    await world.publish(program, 5)
    viewer = await world.join()
    answer = await viewer.call("subscribe", programId=program, since={"epoch": epoch, "seq": 2})
    assert (answer["recovered"], seqs(answer["events"]), answer["seq"]) == (True, [3, 4, 5], 5)
    await world.publish(program, 1)
    assert await viewer.pushes(1) == [6]


async def test_since_reaches_before_what_the_gateway_has(world: World) -> None:
    program = await world.program()
    count = PAGE_ENTRIES + 300
    await world.publish(program, count)  # before anybody subscribed: the log begins after them
    epoch = (await (await world.join()).call("subscribe", programId=program))["epoch"]
    viewer = await world.join()
    answer = await viewer.call("subscribe", programId=program, since={"epoch": epoch, "seq": 0})
    assert answer["recovered"]
    assert seqs(answer["events"]) == list(range(1, count + 1))


async def test_what_is_over_the_answer_comes_as_pushes(world: World) -> None:
    program = await world.program()
    await world.publish(program, 1_200)
    epoch = (await (await world.join()).call("subscribe", programId=program))["epoch"]
    viewer = await world.join()
    answer = await viewer.call("subscribe", programId=program, since={"epoch": epoch, "seq": 100})
    assert seqs(answer["events"]) == list(range(101, 1_101))
    assert answer["seq"] == 1_100
    await world.publish(program, 1)
    assert await viewer.pushes(101) == list(range(1_101, 1_202))


@pytest.mark.parametrize("since", [{"epoch": "gone", "seq": 1}, {"epoch": None, "seq": 9}])
async def test_position_that_is_lost_is_said_so(world: World, since: dict[str, object]) -> None:
    program = await world.program()
    await world.publish(program, 3)
    viewer = await world.join()
    epoch = (await (await world.join()).call("subscribe", programId=program))["epoch"]
    answer = await viewer.call(
        "subscribe", programId=program, since={**since, "epoch": since["epoch"] or epoch}
    )
    assert (answer["recovered"], answer["seq"], answer["events"]) == (False, 3, [])
    await world.publish(program, 1)
    assert await viewer.pushes(1) == [4]


@pytest.mark.parametrize(
    ("history", "expected"), [(0, []), (2, [4, 5]), (5, [1, 2, 3, 4, 5]), (10_000, [1, 2, 3, 4, 5])]
)
async def test_history_brings_the_last_pushes(world: World, history: int, expected: list[int]) -> None:
    program = await world.program()
    await world.publish(program, 5)
    answer = await (await world.join()).call("subscribe", programId=program, history=history)
    assert seqs(answer["events"]) == expected
    assert answer["seq"] == 5


async def test_changes_and_deletions_are_pushed_and_recovered(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    epoch = (await viewer.call("subscribe", programId=program))["epoch"]
    admin = await world.admin()
    event = await admin.call("producer", programId=program, event="Score#update")
    await admin.call("updateProgramEvent", programId=program, eventId=event["id"], event="Score#final")
    await admin.call("deleteProgramEvent", programId=program, eventId=event["id"])
    assert (await viewer.next("event"))["seq"] == 1
    updated = await viewer.next("eventUpdated")
    assert (updated["seq"], updated["event"]) == (2, "Score#final")
    deleted = await viewer.next("eventDeleted")
    assert deleted == {"seq": 3, "epoch": epoch, "programId": program, "id": event["id"]}
    late = await world.join()
    answer = await late.call("subscribe", programId=program, since={"epoch": epoch, "seq": 0})
    # Nothing of the event is left.
    assert answer["events"] == [deleted | {"method": "eventDeleted", "seq": seq} for seq in (1, 2, 3)]


async def test_new_epochs_are_told(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    first = await viewer.call("subscribe", programId=program)
    await world.publish(program, 2)
    assert await viewer.pushes(2) == [1, 2]
    admin = await world.admin()
    await admin.call("importProgramEvents", programId=program, events=[{"event": "A#b"}] * 3)
    replaced = await viewer.next("historyReplaced")
    assert replaced["seq"] == 3
    assert replaced["epoch"] != first["epoch"]
    await world.publish(program, 1)
    event = await viewer.next("event")
    assert (event["seq"], event["epoch"]) == (4, replaced["epoch"])
    await admin.call("deleteAllProgramEvents", programId=program)
    erased = await viewer.next("eventsDeleted")
    assert (erased["deleted"], erased["seq"]) == (4, 0)
    late = await (await world.join()).call(
        "subscribe", programId=program, since={"epoch": first["epoch"], "seq": 2}
    )
    assert late["recovered"] is False


async def test_history_after_an_import_has_the_imported_events_too(world: World) -> None:
    program = await world.program()
    admin = await world.admin()
    await admin.call("importProgramEvents", programId=program, events=[{"event": "A#b"}] * 3)
    await world.publish(program, 2)
    answer = await (await world.join()).call("subscribe", programId=program, history=100)
    assert (seqs(answer["events"]), answer["seq"]) == ([1, 2, 3, 4, 5], 5)


async def test_deleted_program_ends_its_subscriptions(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    first = await viewer.call("subscribe", programId=program)
    admin = await world.admin()
    await admin.call("admin/deleteProgram", programId=program)
    assert await viewer.next("programDeleted") == {"programId": program}
    assert (await fails(await world.join("client"), "subscribe", programId=program)).code == 404
    await admin.call("admin/createProgram", id=program, name="again")
    again = await viewer.call("subscribe", programId=program)
    assert again["epoch"] != first["epoch"]
    await world.publish(program)
    assert (await viewer.next("event"))["seq"] == 1


async def test_program_made_private_ends_anonymous_subscriptions(world: World) -> None:
    program = await world.program(projectId="own")
    anonymous, client, user = await world.join(), await world.join("client"), await world.join("user")
    for viewer in (anonymous, client, user):
        await viewer.call("subscribe", programId=program)
    await world.set_access(program, "private", "own")
    for viewer in (anonymous, client):
        ended = await viewer.next("unsubscribed")
        assert ended["programId"] == program
        assert ended["reason"]
    await world.publish(program)
    assert await user.pushes(1) == [1]
    assert (await fails(anonymous, "subscribe", programId=program)).code == 401
    assert (await fails(client, "subscribe", programId=program)).code == 403
    await world.set_access(program, "public", "own")
    async with asyncio.timeout(5):
        while True:
            try:
                assert (await anonymous.call("subscribe", programId=program))["seq"] == 1
                break
            except Exception:
                await asyncio.sleep(0.05)


async def test_private_program_that_moves_ends_those_of_the_former_project(world: World) -> None:
    program = await world.program(access="private", projectId="own")
    user, admin = await world.join("user"), await world.join("admin")
    await user.call("subscribe", programId=program)
    await admin.call("subscribe", programId=program)
    await world.set_access(program, "private", "elsewhere")
    assert (await user.next("unsubscribed"))["programId"] == program
    await world.publish(program)
    assert await admin.pushes(1) == [1]


async def test_followed_program_takes_viewers_without_its_owner(world: World) -> None:
    program, unknown = await world.program(), await world.program()
    await (await world.join()).call("subscribe", programId=program)
    world.link.is_cut = True
    try:
        viewer = await world.join()
        assert (await viewer.call("subscribe", programId=program))["seq"] == 0
        waiting = await viewer.send("subscribe", programId=unknown)
        assert await viewer.call("servertime")
    finally:
        world.link.is_cut = False
    assert (await viewer.answer(waiting))["seq"] == 0


async def test_owner_that_was_away_leaves_no_gap(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    world.link.is_cut = True
    await world.publish(program, 3)
    world.link.is_cut = False
    await world.publish(program, 2)
    assert await viewer.pushes(5) == [1, 2, 3, 4, 5]


async def test_batch_of_subscribes(world: World) -> None:
    programs = [await world.program() for _ in range(3)]
    viewer = await world.join()
    answers = await asyncio.gather(*(viewer.call("subscribe", programId=program) for program in programs))
    assert [answer["programId"] for answer in answers] == programs
