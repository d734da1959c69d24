"""Audience answers over WebSocket, and the channel `responses:<program>`."""

import asyncio
from typing import Any

import pytest

from broker.domain.audit import Actor
from broker.storage.visitor_rules import StoredRules, VisitorRules
from tests.auth.services import StoppedClock
from tests.auth.visitor_tokens import SECRET, signed
from tests.gateway.test_calls import fails
from tests.gateway.world import Viewer, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ASKED = {"title": "Who wins?", "options": ["Home", "Away"]}
ACCEPTED = {"accepted": 1, "duplicates": 0}
DUPLICATE = {"accepted": 0, "duplicates": 1}


async def asked(world: World, **program: Any) -> dict[str, Any]:
    """A program with an event that asks something: what an answer to it begins with."""
    program_id = await world.program(**program)
    admin = await world.admin()
    event = await admin.call("producer", programId=program_id, event="Vote#ask", metadata=ASKED)
    return {"programId": program_id, "measureName": "whoWins", "contextId": event["id"]}


async def results(world: World, place: dict[str, Any]) -> Any:
    world.product.clock.forward_ms += 1_000
    viewer = await world.join()
    params = {"programId": place["programId"], "contextId": place["contextId"]}
    return (await viewer.call("getResponseResults", accountId="demo", responseName="whoWins", **params))[
        "results"
    ]


async def test_results_by_the_context_alone_list_what_it_declares(world: World) -> None:
    place = await asked(world)
    viewer = await world.join()
    for limits, expected in (
        ({"contextId": place["contextId"]}, {"0": 0, "1": 0}),
        ({"contextId": place["contextId"], "programId": "nothing"}, {}),
        ({"programId": place["programId"]}, {}),
        ({"programId": "nothing"}, {}),
    ):
        told = await viewer.call("getResponseResults", accountId="demo", responseName="whoWins", **limits)
        assert (told["results"], told["total"]) == (expected, 0), limits


async def test_a_connection_is_a_visitor(world: World) -> None:
    place = await asked(world)
    viewers = [await world.join(), await world.join()]
    for viewer in viewers:
        assert await viewer.call("respond", **place, measureValue=1) == ACCEPTED
        assert await viewer.call("respond", **place, measureValue=0) == DUPLICATE
    assert await results(world, place) == {"0": 0, "1": 2}


async def test_a_user_is_one_visitor_on_all_connections(world: World) -> None:
    place = await asked(world)
    for viewer, answer in ((await world.join("user"), ACCEPTED), (await world.join("user"), DUPLICATE)):
        assert await viewer.call("respond", **place, measureValue=1) == answer


async def test_a_visitor_may_be_named(world: World) -> None:
    place = await asked(world) | {"measureValue": [0, 1], "projectId": "undefined", "accountId": "demo"}
    viewer = await world.join()
    for visitor, answer in (("a", ACCEPTED), ("b", ACCEPTED), ("a", DUPLICATE)):
        assert await viewer.call("respond", **place, visitorId=visitor, sessionId="s") == answer
    assert await results(world, place) == {"0": 2, "1": 2}


async def test_polls_that_require_visitors_count_no_others(world: World) -> None:
    """Nor does native code, which counts ordinary polls after the first vote."""
    required = {}
    for visitors in ("issued", "signed"):
        place = await asked(world)
        admin = await world.admin()
        params = {"programId": place["programId"], "event": "Vote#ask"}
        event = await admin.call("producer", **params, metadata=ASKED | {"visitors": visitors})
        required[visitors] = place | {"contextId": event["id"], "measureValue": 1}
    rules = StoredRules([SECRET], None, "any")
    await VisitorRules(world.product.services.database).change("demo", lambda _: rules, Actor.operator())
    world.product.clock.forward_ms += 5_001
    viewer = await world.join("user")
    issued = (await viewer.call("createVisitor"))["visitorId"]
    for place, visitor in ((required["issued"], issued), (required["signed"], signed("ada"))):
        for _ in range(2):
            for wrong in ({}, {"visitorId": "ada"}, {"visitorId": "x" * 129}):
                assert (await fails(viewer, "respond", **place | wrong)).fields == ["visitorId"]
        assert await viewer.call("respond", **place, visitorId=visitor) == ACCEPTED
        await asyncio.sleep(0.1)  # whatever opens polls to native code has had its chance
        assert await viewer.call("respond", **place, visitorId=visitor) == DUPLICATE
        assert (await fails(viewer, "respond", **place, visitorId="ben")).fields == ["visitorId"]
        assert await results(world, place) == {"0": 0, "1": 1}


async def test_impressions_count_each_time(world: World) -> None:
    place = await asked(world, projectId="own")
    viewer = await world.join()
    assert [await viewer.call("impression", **place) for _ in range(2)] == [ACCEPTED, ACCEPTED]
    assert await viewer.call("impression", **place, visitorId="a") == ACCEPTED
    user = await world.join("user")
    named = {"accountId": "demo", "projectId": "own", "programId": place["programId"]}
    (entry,) = (await user.call("getResponseReport", **named))["responses"]
    assert entry["impressions"] == {"measureName": "whoWins", "total": 3, "uniques": 2, "sessions": 1}


async def test_the_whole_is_checked_as_over_http(world: World) -> None:
    place = await asked(world)
    viewer = await world.join()
    wrong = await fails(viewer, "respond", **place, measureValue=2)
    assert (wrong.code, wrong.fields) == (-32602, ["measureValue"])
    assert (await fails(viewer, "respond", **place | {"contextId": "x"}, measureValue=1)).fields == [
        "contextId"
    ]
    for field in ({"accountId": "other"}, {"projectId": "own"}, {"programId": "unknown"}):
        assert (await fails(viewer, "respond", **place | field, measureValue=1)).code == 404
    assert (await fails(viewer, "respond", **place)).fields == ["measureValue"]
    private = await asked(world, access="private")
    assert (await fails(viewer, "respond", **private, measureValue=1)).code == 404


async def test_a_connection_has_its_rate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StoppedClock()
    monkeypatch.setattr(world.product.services.audience.per_connection, "_clock", clock)
    place = await asked(world) | {"measureValue": 1}
    viewer, other = await world.join(), await world.join()
    for _ in range(50):
        await viewer.call("respond", **place)
    refused = await fails(viewer, "respond", **place)
    assert (refused.name, refused.data["retryAfter"]) == ("slow_down", 1)
    assert await other.call("respond", **place) == ACCEPTED
    clock.ms += 100
    assert await viewer.call("respond", **place) == DUPLICATE
    assert (await fails(viewer, "impression", **place | {"measureValue": 1})).code == -32602
    assert (await fails(viewer, "respond", **place)).name == "slow_down"


# -- the channel


async def follow(world: World, place: dict[str, Any], role: str | None = None) -> Viewer:
    viewer = await world.join(role)
    channel = f"responses:{place['programId']}"
    assert await viewer.call("subscribe", channel=channel) == {"channel": channel}
    return viewer


async def told(viewer: Viewer, total: int) -> dict[str, Any]:
    """The first notification whose only results have this total."""
    while True:
        params = await viewer.next("results")
        (result,) = params["results"]
        if result["total"] == total:
            return params


async def test_changed_results_are_told(world: World) -> None:
    place = await asked(world, projectId="own")
    before = await asked(world)
    voter = await world.join()
    await voter.call("respond", **place, visitorId="early", measureValue=0)
    viewers = [await follow(world, place), await follow(world, place, "client")]
    await voter.call("respond", **before, measureValue=0)
    await voter.call("respond", **place, measureValue=1)
    for viewer in viewers:
        assert await viewer.next("results") == {
            "channel": f"responses:{place['programId']}",
            "programId": place["programId"],
            "results": [
                {
                    "accountId": "demo",
                    "projectId": "own",
                    "contextId": place["contextId"],
                    "isDeclared": True,
                    "measureName": "whoWins",
                    "results": {"0": 1, "1": 1},
                    "total": 2,
                }
            ],
        }
    await voter.call("respond", **place, visitorId="late", measureValue=1)
    await told(viewers[0], 3)


async def test_a_storm_of_votes_is_told_seldom(world: World) -> None:
    place = await asked(world)
    viewer, voter = await follow(world, place), await world.join()
    answers = [await voter.send("respond", **place, visitorId=f"v{n}", measureValue=0) for n in range(40)]
    for answer in answers:
        await voter.answer(answer)
    await told(viewer, 40)
    assert viewer.told.empty()


@pytest.mark.parametrize("channel", ["responses:", "responses:unknown", "responses:a/b"])
async def test_an_unknown_program_has_no_channel(world: World, channel: str) -> None:
    assert (await fails(await world.join("admin"), "subscribe", channel=channel)).code == 404


async def test_a_program_that_becomes_private_ends_the_anonymous(world: World) -> None:
    place = await asked(world)
    anybody, user = await follow(world, place), await follow(world, place, "user")
    await world.set_access(place["programId"], "private")
    assert (await anybody.next("unsubscribed"))["channel"] == f"responses:{place['programId']}"
    refused = await fails(await world.join(), "subscribe", channel=f"responses:{place['programId']}")
    assert refused.code == 401
    await user.call("respond", **place, measureValue=1)
    await told(user, 1)


async def test_a_deleted_program_ends_its_channel(world: World) -> None:
    place = await asked(world)
    viewer = await follow(world, place)
    await (await world.admin()).call("admin/deleteProgram", programId=place["programId"])
    assert await viewer.next("programDeleted") == {"programId": place["programId"]}


async def test_live_results_are_not_in_the_channel_of_the_project(world: World) -> None:
    place = await asked(world, projectId="own")
    project = await world.join("user")
    await project.call("subscribe", channel="project:own")
    viewer = await follow(world, place)
    await viewer.call("respond", **place, measureValue=1)
    await told(viewer, 1)
    await project.call("servertime")
    assert project.told.empty()
