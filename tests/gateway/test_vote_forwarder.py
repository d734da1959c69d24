"""Votes that native code takes by itself: the same counts, answers and errors, and nothing counted twice."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from broker.actors.link import LinkLost
from broker.deployments.health import HealthChecks
from broker.errors import Unavailable
from broker.owners.known_placement import KnownPlacement
from broker.voting.resources.responses import ImpressionParams, RespondParams
from tests.auth.services import PASSWORD
from tests.gateway.test_authentication import LOGIN
from tests.gateway.test_calls import fails
from tests.gateway.test_responses import ACCEPTED, ASKED, DUPLICATE, asked, results
from tests.gateway.world import RpcError, Viewer, World, open_world
from tests.product import CounterLink

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FAST = {"responses_rate_per_connection": 0, "responses_rate_per_address": 0}
SETTINGS = {"ws_messages_per_s": 0, "publish_timeout_s": 0.5, **FAST}


def taken(world: World) -> int:
    """How many votes were taken natively."""
    return int(world.gateway.stats()["votes_native"])


async def opened(world: World, place: dict[str, Any], option: int = 0) -> int:
    """Vote until native code takes it; returns how many votes that took."""
    viewer, before, votes = await world.join(), taken(world), 0
    while taken(world) == before:
        votes += 1
        assert votes < 500
        await viewer.call("respond", **place, visitorId=f"opener {votes}", measureValue=option)
        await asyncio.sleep(0.02)  # under the rate of a connection, however long the opening takes
    return votes


async def by_python(viewer: Viewer, place: dict[str, Any], **params: Any) -> Any:
    """Vote with an escape in the text, which native code does not read."""
    message = orjson.dumps(viewer.build("respond", **place, **params)).decode()
    number = viewer._last_id
    await viewer.socket.send(message.replace('"programId":"p', '"programId":"\\u0070'))
    return await viewer.answer(number)


async def test_votes_of_an_open_poll_are_taken_natively(world: World) -> None:
    place = await asked(world)
    votes, before = await opened(world, place), taken(world)
    viewers = [await world.join() for _ in range(3)]
    for viewer in viewers:
        assert await viewer.call("respond", **place, measureValue=1) == ACCEPTED
        assert await viewer.call("respond", **place, measureValue=0) == DUPLICATE
        assert await viewer.call("respond", **place, measureValue=0, visitorId="a") in (ACCEPTED, DUPLICATE)
    assert taken(world) - before == 9
    assert await results(world, place) == {"0": votes + 1, "1": 3}


async def test_a_connection_is_one_visitor_either_way(world: World) -> None:
    place = await asked(world)
    first = await world.join()
    assert await first.call("respond", **place, measureValue=1) == ACCEPTED
    await opened(world, place)
    before = taken(world)
    assert await first.call("respond", **place, measureValue=1) == DUPLICATE
    second = await world.join()
    assert await second.call("respond", **place, measureValue=1) == ACCEPTED
    assert taken(world) - before == 2
    assert await by_python(second, place, measureValue=1) == DUPLICATE
    assert taken(world) - before == 2


async def test_a_user_without_a_name_is_left_to_python(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    before = taken(world)
    for answer in (ACCEPTED, DUPLICATE):
        assert await (await world.join("user")).call("respond", **place, measureValue=1) == answer
    assert taken(world) == before
    assert (
        await (await world.join("user")).call("respond", **place, measureValue=1, visitorId="named")
        == ACCEPTED
    )
    assert taken(world) - before == 1


async def test_a_vote_behind_a_log_in_is_the_users(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    for answer in (ACCEPTED, DUPLICATE):
        viewer = await world.join()
        login = await viewer.send("login", **LOGIN, username="user", password=PASSWORD)
        vote = await viewer.send("respond", **place, measureValue=1)
        await viewer.answer(login)
        assert await viewer.answer(vote) == answer


async def test_impressions_are_counted_natively(world: World) -> None:
    place = await asked(world, projectId="own")
    await opened(world, place)
    viewer, before = await world.join(), taken(world)
    assert [await viewer.call("impression", **place) for _ in range(2)] == [ACCEPTED, ACCEPTED]
    assert await viewer.call("impression", **place, visitorId="a", sessionId="s") == ACCEPTED
    assert taken(world) - before == 3
    user = await world.join("user")
    named = {"accountId": "demo", "projectId": "own", "programId": place["programId"]}
    (entry,) = (await user.call("getResponseReport", **named))["responses"]
    assert entry["impressions"] == {"measureName": "whoWins", "total": 3, "uniques": 2, "sessions": 2}


async def test_impression_with_a_key_counts_once(world: World) -> None:
    place = await asked(world, projectId="own")
    await opened(world, place)
    before = taken(world)
    for key in ("k", "k", "other"):
        user = await world.join("user")  # a reconnected caller
        answer = await user.call("impression", **place, sessionId="s", idempotencyKey=key)
        assert answer == ACCEPTED
    refused = await fails(user, "impression", **place, sessionId="another", idempotencyKey="k")
    assert (refused.code, refused.name) == (409, "conflict")
    assert taken(world) == before
    named = {"accountId": "demo", "projectId": "own", "programId": place["programId"]}
    (entry,) = (await user.call("getResponseReport", **named))["responses"]
    assert entry["impressions"]["total"] == 2


async def test_batches_and_notifications_count(world: World) -> None:
    place = await asked(world)
    votes, before = await opened(world, place), taken(world)
    viewer = await world.join()
    batch = [viewer.build("respond", **place, visitorId=name, measureValue=1) for name in "aab"]
    silent = viewer.build("respond", **place, visitorId="c", measureValue=1)
    del silent["id"]
    await viewer.socket.send(orjson.dumps([*batch, silent]).decode())
    answers = [await viewer.answer(each["id"]) for each in batch]
    assert answers == [ACCEPTED, DUPLICATE, ACCEPTED]
    await viewer.socket.send(
        orjson.dumps({**silent, "params": {**silent["params"], "visitorId": "d"}}).decode()
    )
    assert await viewer.call("respond", **place, visitorId="d", measureValue=1) == DUPLICATE
    assert taken(world) - before == 6
    assert await results(world, place) == {"0": votes, "1": 4}


async def test_what_is_taken_is_what_python_would_take(world: World) -> None:
    """Params made by chance: the same error, or none, whether native code may take them or not."""
    chance = random.Random(5)
    place = await asked(world, projectId="own")
    await opened(world, place)
    viewer, before = await world.join(), taken(world)
    texts = ["a", "", " ", "~" * 128, "~" * 129, "Zoë", "\x7f", "a\nb", "\u200b", '"', None, 1, ["a"], "own"]
    values = [0, 1, 2, -1, 1.0, True, None, "0", [], [0], [1, 0], [0, 0], [0, 2], [[0]], [None], 999, 70_000]
    odd = {
        "accountId": [*texts, "demo", "other"],
        "projectId": [*texts, "undefined"],
        "visitorId": texts,
        "sessionId": texts,
        "idempotencyKey": texts,
        "contextId": [place["contextId"].upper(), "x"],
        "measureName": [*texts, "whoWins"],
        "programId": [*texts, "unknown"],
    }
    outcomes: Counter[bool] = Counter()
    for _ in range(400):
        method, model = chance.choice((("respond", RespondParams), ("impression", ImpressionParams)))
        params: dict[str, Any] = {**place, "visitorId": str(chance.random())}
        if chance.random() < (0.95 if method == "respond" else 0.1):
            params["measureValue"] = chance.choice(values)
        for name in chance.sample(sorted(odd), chance.choice((0, 1, 1, 2))):
            params[name] = chance.choice(odd[name])
        if chance.random() < 0.05:
            del params[chance.choice(sorted(params))]
        was = taken(world)
        try:
            answer = await viewer.call(method, **params)
        except RpcError:
            answer = None
        if taken(world) > was:
            assert "idempotencyKey" not in params
            model.model_validate(params, by_alias=True, by_name=False)
            assert params.get("accountId") in (None, "demo")
            assert params.get("projectId") in (None, "own")
            assert answer is not None
        try:
            model.model_validate(
                {name: value for name, value in params.items() if name != "idempotencyKey"},
                by_alias=True,
                by_name=False,
            )
        except ValidationError:
            assert answer is None
        outcomes[taken(world) > was] += 1
    assert min(outcomes[False], outcomes[True]) > 50
    assert taken(world) > before


async def test_errors_are_those_of_python(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    viewer, before = await world.join(), taken(world)
    wrong = await fails(viewer, "respond", **place, measureValue=2)
    assert (wrong.code, wrong.fields) == (-32602, ["measureValue"])
    for field in ({"accountId": "other"}, {"projectId": "own"}, {"programId": "unknown"}):
        assert (await fails(viewer, "respond", **place | field, measureValue=1)).code == 404
    assert (await fails(viewer, "respond", **place)).fields == ["measureValue"]
    assert taken(world) == before


async def fails_in_the_end(viewer: Viewer, place: dict[str, Any], within_s: float = 3.0) -> RpcError:
    """The error of the first vote that is refused."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            await viewer.call("respond", **place, measureValue=1)
        except RpcError as error:
            return error
        await asyncio.sleep(0.02)
    raise AssertionError("votes are still taken")


async def test_a_program_that_becomes_private_takes_no_more_votes(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    await world.set_access(place["programId"], "private")
    assert (await fails_in_the_end(await world.join(), place)).code == 404


async def test_a_deleted_program_takes_no_more_votes(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    await (await world.admin()).call("admin/deleteProgram", programId=place["programId"])
    assert (await fails_in_the_end(await world.join(), place)).code == 404


async def test_a_poll_that_is_used_stays_open(world: World) -> None:
    place = await asked(world)
    await opened(world, place)
    viewer, before, votes = await world.join(), taken(world), 0
    until_s = time.monotonic() + 2.0  # longer than a poll is opened for
    while time.monotonic() < until_s:
        await viewer.call("respond", **place, measureValue=1)
        votes += 1
        await asyncio.sleep(0.05)
    assert taken(world) - before == votes


async def vote(viewer: Viewer, place: dict[str, Any], option: int, accepted: Counter[str]) -> RpcError:
    """Vote for visitors by chance, and count what is accepted, until a vote is refused."""
    while True:
        visitor = f"v{random.randrange(2_000)}"
        try:
            answer = await viewer.call("respond", **place, visitorId=visitor, measureValue=option)
        except RpcError as error:
            return error
        accepted[str(option)] += answer["accepted"]


async def test_votes_are_exact_while_the_poll_closes(world: World) -> None:
    """Many connections, repeats and a closing: what was accepted is what is counted."""
    place = await asked(world)
    admin = await world.admin()
    closes = int(time.time() * 1000) + world.product.clock.forward_ms + 1_500
    metadata = ASKED | {"closes": closes}
    event = await admin.call("producer", programId=place["programId"], event="Vote#ask", metadata=metadata)
    place["contextId"] = event["id"]
    accepted: Counter[str] = Counter({"0": await opened(world, place)})
    before = taken(world)

    viewers = [await world.join() for _ in range(20)]
    refused = await asyncio.gather(
        *(vote(viewer, place, n % 2, accepted) for n, viewer in enumerate(viewers))
    )
    assert {(error.code, error.name) for error in refused} == {(409, "conflict")}
    assert taken(world) - before > 100
    assert await results(world, place) == dict(accepted)


@pytest.mark.parametrize("is_heard", [True, False])
async def test_votes_are_exact_while_the_event_closes_its_poll(world: World, is_heard: bool) -> None:
    """The event is changed while many vote: the gateway hears of it, or the way to the owner is cut."""
    place = await asked(world)
    accepted: Counter[str] = Counter({"0": await opened(world, place)})
    before = taken(world)

    admin, viewers = await world.admin(), [await world.join() for _ in range(10)]
    voting = [asyncio.create_task(vote(viewer, place, n % 2, accepted)) for n, viewer in enumerate(viewers)]
    world.link.is_cut = not is_heard
    try:
        while taken(world) - before < 100:  # noqa: ASYNC110 - nothing here says when
            await asyncio.sleep(0.01)
        event = {"programId": place["programId"], "eventId": place["contextId"], "event": "Vote#ask"}
        await admin.call("updateProgramEvent", **event, metadata=ASKED | {"closes": 1})
        async with asyncio.timeout(5):
            refused = await asyncio.gather(*voting)
    finally:
        world.link.is_cut = False
    # On a busy machine a vote may also be refused for now, which counts nothing either.
    assert {(error.code, error.name) for error in refused} <= {(409, "conflict"), (503, "unavailable")}
    assert await results(world, place) == dict(accepted)


async def test_a_counter_that_is_away_is_told_and_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await asked(world)
    votes, before = await opened(world, place), taken(world)
    viewer = await world.join()

    async def lost(*_: object, **__: object) -> None:
        raise LinkLost("submit")

    with monkeypatch.context() as patch:
        patch.setattr(CounterLink, "call", lost)
        numbers = [
            await viewer.send("respond", **place, visitorId=f"v{n}", measureValue=1) for n in range(50)
        ]
        for number in numbers:
            with pytest.raises(RpcError) as refused:
                await viewer.answer(number)
            assert (refused.value.code, refused.value.name) == (503, "outcome_unknown")
            assert refused.value.data["retryAfter"] == 1
    assert taken(world) - before == 50
    answers = [await viewer.call("respond", **place, visitorId=f"v{n}", measureValue=1) for n in range(50)]
    assert answers == [ACCEPTED] * 50
    assert await results(world, place) == {"0": votes, "1": 50}


async def test_one_who_leaves_has_voted(world: World) -> None:
    place = await asked(world)
    votes, before = await opened(world, place), taken(world)
    for number in range(10):
        viewer = await world.join()
        await viewer.send("respond", **place, visitorId=f"v{number}", measureValue=1)
        await viewer.close()
    voter = await world.join()
    answers = [await voter.call("respond", **place, visitorId=f"v{n}", measureValue=0) for n in range(10)]
    assert answers == [DUPLICATE] * 10
    assert taken(world) - before == 20
    assert await results(world, place) == {"0": votes, "1": 10}


async def test_a_pump_that_fails_is_started_again_and_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await asked(world)
    votes = await opened(world, place)
    news: Any = world.product.services.audience.news

    async def fail(*_: str) -> None:
        raise RuntimeError("nobody expects this")

    with monkeypatch.context() as patch:
        patch.setattr(news, "tell", fail)
        viewer = await world.join()
        answers = [await viewer.call("respond", **place, visitorId=name, measureValue=1) for name in "ab"]
    answers.append(await viewer.call("respond", **place, visitorId="c", measureValue=1))
    assert answers == [ACCEPTED] * 3
    assert await results(world, place) == {"0": votes, "1": 3}
    await world.gateway._beat()
    services = world.product.services
    with pytest.raises(Unavailable, match="votes: fails repeatedly"):
        await HealthChecks(services.settings, services.database, KnownPlacement(1))._live_gateways()


# -- worlds of their own


@pytest.fixture
async def own(migrated_dsn: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn, ws_messages_per_s=0, responses_rate_per_connection=0.01) as world:
        yield world


async def test_the_limit_of_a_connection_holds_natively(own: World) -> None:
    place = await asked(own)
    before = await opened(own, place) and taken(own)
    for viewer in (await own.join(), await own.join()):
        for _ in range(50):
            await viewer.call("respond", **place, measureValue=1)
        refused = await fails(viewer, "respond", **place, measureValue=1)
        assert (refused.code, refused.name, refused.data["retryAfter"]) == (429, "slow_down", 100)
        assert (await fails(viewer, "respond", **place, measureValue=7)).name == "slow_down"
    assert taken(own) - before == 100


async def test_votes_under_way_are_answered_before_a_drain_ends(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await asked(own)
    await opened(own, place)
    viewers = [await own.join() for _ in range(20)]
    asks, may_count, count = asyncio.Event(), asyncio.Event(), CounterLink.call

    async def wait(self: CounterLink, *arguments: Any, timeout_s: float) -> Any:
        asks.set()
        await may_count.wait()
        return await count(self, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(CounterLink, "call", wait)
    before = taken(own)
    votes = [await viewer.send("respond", **place, measureValue=1) for viewer in viewers]
    await asks.wait()
    for viewer in viewers:
        await viewer.call("servertime")  # behind the vote, and not behind its answer
    assert taken(own) - before == 20
    draining = asyncio.create_task(own.gateway.drain(0.0))
    for viewer in viewers:
        assert await viewer.next("reconnect") == {"afterMs": 0}
    may_count.set()
    answers = [await viewer.answer(vote) for viewer, vote in zip(viewers, votes, strict=True)]
    assert answers == [ACCEPTED] * 20
    assert {(await viewer.closed())[0] for viewer in viewers} == {1012}
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)


async def test_a_stop_ends_with_votes_under_way(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = await asked(own)
    await opened(own, place)
    viewer, asks = await own.join(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        asks.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CounterLink, "call", never)
    await viewer.send("respond", **place, measureValue=1)
    await asks.wait()
    await own.gateway.stop()
    assert (await viewer.closed())[0] == 1001


async def test_votes_that_cannot_be_counted_before_a_stop_are_answered(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await asked(own)
    await opened(own, place)
    first, second, third, asks = await own.join(), await own.join(), await own.join(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        asks.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CounterLink, "call", never)
    votes = [(first, await first.send("respond", **place, measureValue=1))]
    await asks.wait()
    votes.append((second, await second.send("respond", **place, measureValue=1)))
    await second.call("servertime")
    message = orjson.dumps(third.build("respond", **place, visitorId="Zoë", measureValue=1)).decode()
    await third.socket.send(message)
    votes.append((third, third._last_id))
    stopping = asyncio.create_task(own.gateway.stop())
    errors = []
    for viewer, number in votes:
        with pytest.raises(RpcError) as refused:
            await viewer.answer(number)
        errors.append(refused.value.name)
    assert errors == ["outcome_unknown", "unavailable", "outcome_unknown"]
    await stopping
    assert {(await viewer.closed())[0] for viewer, _ in votes} == {1001}


# -- the last vote stands


async def changing(world: World) -> dict[str, Any]:
    """A poll whose answers may be changed, taken natively."""
    program_id, admin = await world.program(), await world.admin()
    metadata = ASKED | {"allowChange": True}
    event = await admin.call("producer", programId=program_id, event="Vote#ask", metadata=metadata)
    place = {"programId": program_id, "measureName": "whoWins", "contextId": event["id"]}
    await opened(world, place)
    return place


async def send_by_python(viewer: Viewer, place: dict[str, Any], **params: Any) -> int:
    """Send a vote that native code does not read."""
    message = orjson.dumps(viewer.build("respond", **place, **params)).decode()
    await viewer.socket.send(message.replace('"programId":"p', '"programId":"\\u0070'))
    return viewer._last_id


async def test_a_vote_behind_one_of_pythons_way_is_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, viewer = await changing(world), await world.join()
    counters: Any = world.product.services.audience.counters
    submit, count = counters.submit, counters.count
    natively = asyncio.Event()

    async def late(entries: Any, key: Any) -> Any:
        with suppress(TimeoutError):
            await asyncio.wait_for(natively.wait(), 0.5)
        return await submit(entries, key)

    async def counted(groups: Any) -> Any:
        try:
            return await count(groups)
        finally:
            natively.set()

    monkeypatch.setattr(counters, "submit", late)
    monkeypatch.setattr(counters, "count", counted)
    before = await results(world, place)
    votes = [
        await send_by_python(viewer, place, visitorId="changes", measureValue=0),
        await viewer.send("respond", **place, visitorId="changes", measureValue=1),
    ]
    assert [await viewer.answer(vote) for vote in votes] == [ACCEPTED, ACCEPTED]
    assert await results(world, place) == {"0": before["0"], "1": 1}


async def test_a_vote_of_pythons_way_is_the_last_behind_one_that_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, viewer, other = await changing(world), await world.join(), await world.join()
    before = await results(world, place)
    may_count, call, asks = asyncio.Event(), CounterLink.call, asyncio.Event()

    async def wait(self: CounterLink, *arguments: Any, timeout_s: float) -> Any:
        asks.set()
        await may_count.wait()
        return await call(self, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(CounterLink, "call", wait)
    votes = [(other, await other.send("respond", **place, visitorId="other", measureValue=0))]
    await asks.wait()
    votes.append((viewer, await viewer.send("respond", **place, visitorId="changes", measureValue=0)))
    votes.append((viewer, await send_by_python(viewer, place, visitorId="changes", measureValue=1)))
    while not world.gateway.stats()["calls_running"]:
        await viewer.call("servertime")
    may_count.set()
    assert [await each.answer(vote) for each, vote in votes] == [ACCEPTED] * 3
    assert await results(world, place) == {"0": before["0"] + 1, "1": 1}
