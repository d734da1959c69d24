"""The permission table is what the server does: every cell of it, through both doors.

The tests are generated from `broker.domain.permission_table`. For every operation, every target of its rule
and every role the operation is really called: what is allowed succeeds, shows what was asked for and, when it
is a change, changes something, with an audit entry if it is administration; what is refused answers
with the table's status and name, tells nothing and changes nothing. What the table itself must say is
tests/domain/test_permission_table.py.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
import orjson
import pytest
from websockets.exceptions import InvalidStatus

from broker.demo.matomo import open_stand_in
from broker.domain.permission_table import PERMISSIONS, ROLES, SUBSCRIPTIONS, Rule, Target, Verdict
from broker.resources.catalogue import build_registry
from tests.analytics.conftest import peer_of
from tests.fetching.upstream import Seen, open_upstream, send
from tests.gateway.world import RpcError, Viewer, World, open_world
from tests.permission_stage import CALLS, Call, Stage
from tests.test_parity import Answer, Door, RestDoor, SocketDoor

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REGISTRY = build_registry()
REFUSALS = {
    Verdict.E401: (401, "invalid_token"),
    Verdict.E403: (403, "insufficient_scope"),
    Verdict.E404: (404, "not_found"),
    Verdict.E409: (409, "conflict"),
}
# POST for other reasons than to change something of the account's.
CHANGES_NOTHING = {"login", "ping", "servertime", "postApplicationRequest"} | {
    "createVisitor",
    "warmImages",
    "putApplicationRequest",
    "deleteApplicationRequest",
    "postAnalyticsReport",
    "putAnalyticsReport",
    "patchAnalyticsReport",
    "deleteAnalyticsReport",
}
# What is administration, and so in the audit log; what becomes of events and stored values is not.
AUDITED = {
    "admin/deleteProgram",
    "createProject",
    "updateProject",
    "deleteProject",
    "createRevision",
    "createProjectRevision",
    "updateRevision",
    "patchRevision",
    "createAnalyticsSite",
    "completeAnalyticsSite",
    "createUser",
    "updateUser",
    "updateCurrentUser",
    "deleteUser",
    "createApiToken",
    "deleteApiToken",
}


@dataclass
class Elsewhere:
    """The world as callers of another account meet it."""

    world: World

    @property
    def product(self) -> "Elsewhere":
        return self

    def door(self, role: str | None) -> httpx.AsyncClient:
        return self.world.product.door(role, account="other")

    async def join(self, role: str | None) -> Viewer:
        return await self.world.join(role, account="other")


@dataclass
class ForeignToken:
    """The HTTP door as callers meet it who bring a token of another account."""

    world: World

    @property
    def product(self) -> "ForeignToken":
        return self

    def door(self, role: str | None) -> httpx.AsyncClient:
        door = self.world.product.door(None)
        door.headers["Authorization"] = f"Bearer {self.world.product.other[role or 'admin']}"
        return door


@dataclass
class Doors:
    """Every way to call an operation, for callers of the account, and for those of another."""

    here: tuple[Door, Door]
    elsewhere: tuple[Door, Door]
    foreign: Door


@pytest.fixture(scope="module")
async def stage(module_dsn: str) -> AsyncIterator[Stage]:
    async def answer(_seen: Seen, writer: Any) -> None:
        await send(writer, 200, b'"from the upstream"', Content_Type="application/json")

    settings: dict[str, Any] = {"ws_messages_per_s": 0}
    settings |= {f"{kind}_rate_per_{of}": 0 for kind in ("storage", "fetch") for of in ("address", "account")}
    settings |= {f"responses_rate_per_{of}": 0 for of in ("address", "connection")}
    async with open_upstream(answer) as upstream:
        settings["fetch_allow_hosts"] = (f"127.0.0.1:{upstream.port}",)
        async with open_stand_in() as matomo:
            settings |= peer_of(matomo).settings
            async with open_world(module_dsn, **settings) as world:
                yield await Stage.open(world, upstream, matomo)


@pytest.fixture
async def doors(stage: Stage) -> AsyncIterator[Doors]:
    elsewhere = cast("World", Elsewhere(stage.world))
    yield Doors(
        (SocketDoor(stage.world), RestDoor(stage.world)),
        (SocketDoor(elsewhere), RestDoor(elsewhere)),
        RestDoor(cast("World", ForeignToken(stage.world))),
    )
    await stage.world.leave()


async def run(door: Door, name: str, role: str | None, call: Call) -> Answer:
    operation = REGISTRY.find(name)
    assert operation is not None
    return await door.run(operation, role, call.params)


def is_routed(name: str) -> bool:
    """Whether both doors have it; the others are WebSocket's alone."""
    return REGISTRY.find(name) in REGISTRY.routed


def text(answer: Answer) -> str:
    return orjson.dumps(answer.error or answer.result).decode()


def check_refused(answer: Answer, verdict: Verdict, call: Call, cell: object) -> None:
    assert (answer.error.get("status"), answer.error.get("error")) == REFUSALS[verdict], (cell, answer)
    assert not call.shows or call.shows not in text(answer), cell


def test_every_operation_is_in_the_table_and_nothing_else() -> None:
    assert {operation.name for operation in REGISTRY.operations} == set(PERMISSIONS)
    assert set(CALLS) == set(PERMISSIONS)


@pytest.mark.parametrize("name", PERMISSIONS)
async def test_another_account(stage: Stage, doors: Doors, name: str) -> None:
    """Its token is none here, and from there what is here is unknown."""
    rule = PERMISSIONS[name]
    for target in rule.rows:
        call = await CALLS[name](stage, target, "admin")
        before = await stage.traces()
        if is_routed(name):
            check_refused(await run(doors.foreign, name, "admin", call), Verdict.E401, call, name)
        for role in ROLES:
            for door in doors.elsewhere if is_routed(name) else doors.elsewhere[:1]:
                cell = f"{name} of {target} by {role} of another account over {type(door).__name__}"
                if Target.UNKNOWN in rule.rows and target is not Target.NEW_VALUE:
                    answer = await run(door, name, role, call)
                    check_refused(answer, rule.verdict(role, Target.UNKNOWN), call, cell)
                elif rule.allows(role, target) and target in (Target.OWN, Target.NO_PROJECT, Target.FOREIGN):
                    answer = await run(door, name, role, call)
                    assert not answer.error, (cell, answer)
                    assert call.shows not in text(answer), cell
        assert await stage.traces() == before, name


async def test_a_token_of_another_account_opens_no_connection(stage: Stage) -> None:
    for token in stage.world.product.other.values():
        with pytest.raises(InvalidStatus) as refused:
            await stage.world.join(token=token)
        assert refused.value.response.status_code == 401


async def test_private_and_unknown_look_alike_without_a_token(stage: Stage) -> None:
    private = await stage.program(Target.PRIVATE_FREE)
    async with stage.world.product.door(None, **{"X-Request-Id": "same"}) as door:
        unknown = "u" * len(private.id)
        answers = [await door.get(f"/programs/{id_}/events") for id_ in (private.id, unknown)]
    assert answers[0].text.replace(private.id, unknown) == answers[1].text
    assert answers[0].headers == answers[1].headers


# -- subscriptions


def rows(name: str) -> list[tuple[Target, str | None]]:
    return [(target, role) for target in SUBSCRIPTIONS[name].rows for role in ROLES]


async def check_subscription(
    stage: Stage, rule: Rule, target: Target, role: str | None, **named: str
) -> Viewer:
    """Subscribe, as the rule lets the caller or not."""
    viewer = await stage.world.join(role)
    verdict = rule.verdict(role, target)
    if verdict not in REFUSALS:
        assert await viewer.call("subscribe", **named)
        return viewer
    with pytest.raises(RpcError) as refused:
        await viewer.call("subscribe", **named)
    assert (refused.value.code, refused.value.name) == REFUSALS[verdict]
    return viewer


async def check_told(viewer: Viewer, method: str, *, is_told: bool) -> None:
    if is_told:
        await viewer.next(method)
    else:
        await viewer.call("servertime")
        assert viewer.told.empty()
    await viewer.close()


@pytest.mark.parametrize(("target", "role"), rows("program"))
async def test_who_follows_a_program(stage: Stage, target: Target, role: str | None) -> None:
    rule, program = SUBSCRIPTIONS["program"], await stage.program(target)
    viewer = await check_subscription(stage, rule, target, role, programId=program.id)
    if target is not Target.UNKNOWN:
        await stage.world.product.publish(program.id, {"event": "A#b"})
        await check_told(viewer, "event", is_told=rule.allows(role, target))


@pytest.mark.parametrize(("target", "role"), rows("programs"))
async def test_who_follows_the_programs(stage: Stage, target: Target, role: str | None) -> None:
    rule, program = SUBSCRIPTIONS["programs"], await stage.program(target, fresh=True)
    viewer = await check_subscription(stage, rule, target, role, channel="programs")
    if rule.verdict(role, target) in REFUSALS:
        return
    await stage.ask("DELETE", f"/programs/{program.id}")
    after = await stage.program(Target.PUBLIC_FREE, fresh=True)
    told: list[str] = []
    while told.count(after.id) < 2:  # created and live; what was told of the other may have been on its way
        told.append((await viewer.next("program"))["program"]["id"])
    assert (program.id in told) is rule.allows(role, target)
    await viewer.call("unsubscribe", channel="programs")
    await stage.program(Target.PUBLIC_FREE, fresh=True)
    await check_told(viewer, "program", is_told=False)


@pytest.mark.parametrize(("target", "role"), rows("project:"))
async def test_who_follows_a_project(stage: Stage, target: Target, role: str | None) -> None:
    rule, is_own = SUBSCRIPTIONS["project:"], target is Target.OWN
    program = await stage.program(Target.PRIVATE_OWN if is_own else Target.PRIVATE_FOREIGN)
    channel = f"project:{'own' if is_own else 'foreign'}"
    viewer = await check_subscription(stage, rule, target, role, channel=channel)
    await stage.world.product.publish(program.id, {"event": "A#b"})
    await check_told(viewer, "event", is_told=rule.allows(role, target))


@pytest.mark.parametrize(("target", "role"), rows("storage:"))
async def test_who_follows_stored_values(stage: Stage, target: Target, role: str | None) -> None:
    rule, is_known = SUBSCRIPTIONS["storage:"], target is Target.STORED_VALUE
    channel = f"storage:{'foreign' if is_known else 'unknown'}"
    viewer = await check_subscription(stage, rule, target, role, channel=channel)
    await stage.ask("POST", "/storage/foreign", {"metadata": {}})
    await check_told(viewer, "stored", is_told=is_known)


@pytest.mark.parametrize("target", SUBSCRIPTIONS["responses:"].rows)
async def test_who_follows_live_results(stage: Stage, target: Target) -> None:
    rule, program = SUBSCRIPTIONS["responses:"], await stage.program(target)
    channel = f"responses:{program.id}"
    viewers = {role: await check_subscription(stage, rule, target, role, channel=channel) for role in ROLES}
    if target is not Target.UNKNOWN:
        call = await CALLS["respond"](stage, target, "admin")
        await (await stage.world.admin()).call("respond", **call.params)
        for role, viewer in viewers.items():
            await check_told(viewer, "results", is_told=rule.allows(role, target))


# -- operations


# An admin that deletes a project of its own loses what it has of rights on open connections: that comes last.
@pytest.mark.parametrize("name", sorted(PERMISSIONS, key=lambda name: name == "deleteProject"))
async def test_every_cell_through_both_doors(stage: Stage, doors: Doors, name: str) -> None:
    operation = REGISTRY.find(name)
    assert operation is not None
    changes = (operation.route is None or operation.route.method != "GET") and name not in CHANGES_NOTHING
    for target in reversed(PERMISSIONS[name].rows):
        for role in ROLES:
            verdict, call = PERMISSIONS[name].verdict(role, target), None
            for door in doors.here if is_routed(name) else doors.here[:1]:
                cell = f"{name} of {target} by {role} over {type(door).__name__}"
                if call is None:
                    call = await CALLS[name](stage, target, role)
                before = await stage.traces()
                answer = await run(door, name, role, call)
                after = await stage.traces()
                has_changed = after != before
                if verdict in REFUSALS:
                    check_refused(answer, verdict, call, cell)
                    assert not has_changed, cell
                    continue
                assert not answer.error, (cell, answer)
                assert (call.shows in text(answer)) is (verdict is Verdict.YES), (cell, answer)
                assert not changes or has_changed, cell
                assert (after["audit"] != before["audit"]) is (name in AUDITED), cell
                call = None if changes else call  # what was changed is used up
