"""Queries of each operation: a stated number at most, and the same with one thing there as with many.

What is counted are statements of the whole process, the owner's too, but for those of tasks that run anyway.
Beginnings and ends of transactions are not counted.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from broker.demo.matomo import open_stand_in
from broker.resources.catalogue import build_registry
from tests.analytics.conftest import peer_of
from tests.product import Product, open_product
from tests.test_parity import RestDoor

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REGISTRY = build_registry()
MANY = 20
PASSWORD = "correct horse"
_BACKGROUND = ("auth.", "watch", "sweep", "purge", "statistics", "tail", "nudge")
# Asked once a connection (asyncpg's own), once a process, or every few seconds.
_ASIDE = (
    "typeinfo_tree",
    "current_setting('jit')",
    "pg_collation",
    "signing_keys",
    "LEFT JOIN revocations",
    "producers_seen",
    "FROM maintenance",
    "image_rules",
    "name, origins, created_time, keep_events_days",
    "metadata #> '{analytics,idSite}'",
)


@dataclass
class Scene:
    """What is there: `count` of everything; ids that the server gave, and names for new things."""

    count: int
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def new(self) -> str:
        return f"new-{self.count}"


Params = Callable[[Scene], dict[str, Any]]


def there(**fields: Any) -> Params:
    return lambda scene: fields


def batch(scene: Scene) -> list[dict[str, Any]]:
    return [{"event": "A#b", "metadata": {"n": number}} for number in range(scene.count)]


def answer(number: int) -> dict[str, Any]:
    return {"measureName": "vote", "contextId": f"c{number}", "measureValue": 1, "visitorId": f"v{number}"}


FREE = {"freeContexts": True}
VOTED = {"accountId": "demo", "projectId": "undefined"}
PROGRAM = there(programId="p")
PROJECT = there(projectId="own")
REVISION = {"projectId": "own", "version": "1"}
SOURCE = there(**REVISION, dataSourceId="s0")
REPORT = there(projectId="own", method="VisitsSummary.get", period="day", date="today")
# The most statements that an operation may take. Those that change programs and events count their owner's.
CASES: dict[str, tuple[int, str | None, Params]] = {
    "login": (
        5, None,  # the failed ones are counted twice: before and after the wait for a turn
        there(grant_type="password", client_id="Test", username="admin", password=PASSWORD),
    ),
    "admin/createProgram": (5, "admin", lambda scene: {"id": scene.new, "name": "n", "metadata": FREE}),
    "getProducerPrograms": (1, "admin", there()),
    "filterPrograms": (1, "admin", there(search="p", limit=100)),
    "getProgram": (1, "admin", PROGRAM),
    "updateProgram": (
        8, "admin",
        there(programId="p", id="p", name="m", scheduledStartTime=None, scheduledEndTime=None),
    ),
    "admin/deleteProgram": (9, "admin", lambda scene: {"programId": scene.ids["program"]}),
    "getLastUpdate": (2, "admin", PROGRAM),
    "getProgramEvents": (2, "admin", PROGRAM),
    "producer": (2, "admin", lambda scene: {"programId": "p", "events": batch(scene)}),
    "deleteAllProgramEvents": (7, "admin", lambda scene: {"programId": "full"}),
    "filterProgramEvents": (2, "admin", there(programId="p", limit=100)),
    "exportProgramEvents": (2, "admin", PROGRAM),
    "getProgramEvent": (2, "admin", lambda scene: {"programId": "p", "eventId": scene.ids["event"]}),
    "updateProgramEvent": (
        8, "admin",
        lambda scene: {"programId": "p", "eventId": scene.ids["event"], "event": "A#c"},
    ),
    "deleteProgramEvent": (8, "admin", lambda scene: {"programId": "p", "eventId": scene.ids["event"]}),
    "importProgramEvents": (12, "admin", lambda scene: {"programId": "full", "events": batch(scene)}),
    "listProjects": (1, "admin", there()),
    "createProject": (3, "admin", lambda scene: {"id": scene.new, "name": "n"}),
    "getProject": (1, "admin", PROJECT),
    "updateProject": (3, "admin", lambda scene: {"projectId": "own", "name": scene.new}),
    "deleteProject": (7, "admin", lambda scene: {"projectId": scene.ids["project"]}),
    "listProjectUsers": (2, "admin", PROJECT),
    "listProjectPrograms": (2, "admin", PROJECT),
    "getPublishedRevision": (1, "admin", PROJECT),
    "getRevisionByStatus": (1, "admin", there(projectId="own", status="published")),
    "getLatestRevision": (1, "admin", PROJECT),
    "getRevisionByVersion": (1, "admin", there(**REVISION)),
    "getLiveRevision": (1, None, there(**REVISION)),
    "listRevisions": (2, "admin", PROJECT),
    "createRevision": (5, "admin", PROJECT),
    "createProjectRevision": (5, "admin", PROJECT),
    "getRevision": (1, "admin", lambda scene: {"projectId": "own", "revisionId": scene.ids["revision"]}),
    "updateRevision": (
        3, "admin",
        lambda scene: {"projectId": "own", "revisionId": scene.ids["revision"], "title": "T"},
    ),
    "patchRevision": (
        3, "admin",
        lambda scene: {
            "projectId": "own",
            "revisionId": scene.ids["revision"],
            "patch": [{"op": "add", "path": f"/content/{n}", "value": n} for n in range(scene.count)],
        },
    ),
    "getStoredValue": (1, None, there(projectId="own", itemId="v0")),
    "storeValue": (1, "admin", there(projectId="own", id="v0", metadata={"a": 1})),
    "deleteStoredValue": (1, "admin", lambda scene: {"projectId": "own", "itemId": scene.ids["value"]}),
    "getApplicationRequest": (2, "admin", SOURCE),
    "postApplicationRequest": (2, "admin", SOURCE),
    "putApplicationRequest": (2, "admin", SOURCE),
    "deleteApplicationRequest": (2, "admin", SOURCE),
    "getAnalyticsSite": (2, "admin", PROJECT),
    "createAnalyticsSite": (84, "admin", lambda scene: {"projectId": f"x{scene.count - 1}"}),
    "completeAnalyticsSite": (8, "admin", PROJECT),
    "getAnalyticsSnippet": (2, "admin", PROJECT),
    "getAnalyticsReport": (2, "admin", REPORT),
    "postAnalyticsReport": (2, "admin", REPORT),
    "putAnalyticsReport": (2, "admin", REPORT),
    "patchAnalyticsReport": (2, "admin", REPORT),
    "deleteAnalyticsReport": (2, "admin", REPORT),
    "getCurrentUser": (1, "admin", there()),
    "updateCurrentUser": (5, "admin", lambda scene: {"name": scene.new}),
    "listUsers": (1, "admin", there()),
    "createUser": (
        4, "admin",
        lambda scene: {"username": scene.new, "password": PASSWORD, "role": "user"},
    ),
    "listRoles": (0, "admin", there()),
    "getUser": (1, "admin", lambda scene: {"userId": scene.ids["user"]}),
    "updateUser": (5, "admin", lambda scene: {"userId": scene.ids["user"], "name": "Vo"}),
    "deleteUser": (6, "admin", lambda scene: {"userId": scene.ids["user"]}),
    "createApiToken": (4, "admin", lambda scene: {"name": scene.new}),
    "listApiTokens": (1, "admin", there()),
    "deleteApiToken": (3, "admin", lambda scene: {"tokenId": scene.ids["token"]}),
    "getVersion": (0, None, there()),
    "getHealth": (0, "admin", there()),  # its checks are not those of a process
    "ping": (0, "client", there()),
    "servertime": (0, None, there(requestTime=5)),
    "getDashboard": (3, "admin", there()),
    "filterStatistics": (1, "admin", there(interval="hour", **{"from": "2020-01-01", "to": "2020-01-02"})),
    "admin/getLivePrograms": (1, "admin", there()),
    "filterImageStatistics": (
        1, "admin", there(interval="hour", **{"from": "2020-01-01", "to": "2020-01-02"}),
    ),
    "purgeImages": (3, "admin", lambda scene: {"url": f"https://a.test/{scene.count}.png"}),
    "warmImages": (1, "admin", there(urls=["https://a.test/a.png"], options=["w=51"])),
    "filterAudit": (1, "admin", there(limit=100)),
    "connect": (1, None, there()),
    "addResponses": (
        12, None,
        lambda scene: VOTED | {"programId": scene.new, "responses": [answer(n) for n in range(scene.count)]},
    ),
    "getResponseReport": (2, "admin", lambda scene: VOTED | {"programId": scene.new}),
    "getResponseIntegrity": (5, "admin", lambda scene: VOTED | {"programId": scene.new}),
    "createVisitor": (3, None, there()),
    "getResponseResults": (
        1, None,
        lambda scene: {"accountId": "demo", "responseName": "vote", "programId": scene.new},
    ),
}  # fmt: skip
# Their address is refused after what is stored has been read.
REFUSED = {name: 403 for name in CASES if name.endswith("ApplicationRequest")}


@pytest.fixture(scope="module")
async def product(module_dsn: str) -> AsyncIterator[Product]:
    async with open_stand_in() as matomo, open_product(module_dsn, **peer_of(matomo).settings) as product:
        yield product


class Statements:
    """Counts statements that asyncpg prepares or copies, by whoever waits for them."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        prepare, copy = asyncpg.Connection._get_statement, asyncpg.Connection._copy_in

        async def get_statement(connection: Any, query: str, *args: Any, **kwargs: Any) -> Any:
            self._note(query)
            return await prepare(connection, query, *args, **kwargs)

        async def copy_in(connection: Any, query: str, *args: Any, **kwargs: Any) -> Any:
            self._note(query)
            return await copy(connection, query, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.Connection, "_get_statement", get_statement)
            patch.setattr(asyncpg.Connection, "_copy_in", copy_in)
            yield

    def _note(self, query: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not task.get_name().startswith(_BACKGROUND) and not any(part in query for part in _ASIDE):
            self.texts.append(" ".join(query.split())[:100])


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == {operation.name for operation in REGISTRY.routed}


async def grow(product: Product, count: int) -> Scene:
    """`count` of everything, and one of each kind to be changed and deleted."""
    scene = Scene(count)
    async with product.door("admin") as door:

        async def make(path: str, **body: Any) -> dict[str, Any]:
            answer = await door.post(path, json=body)
            assert answer.is_success, answer.text
            return dict(answer.json())

        for number in range(0 if count == 1 else 1, count):
            program = f"p{number}" if number else "p"
            await make("/programs", id=program, name="n", projectId="own")
            if not number:
                await make("/projects", id="own", name="n")
                await make("/programs", id="full", name="n", metadata=FREE)
                await make("/projects/own/analytics/site")
            await make("/projects", id=f"x{number}", name="n")
            await make("/users", username=f"u{number}", password=PASSWORD, role="user", projectIds=["own"])
            await make("/users/me/tokens", name=f"t{number}")
            await make("/storage/own", id=f"v{number}", metadata={"a": number})
            sources = [{"id": f"s{n}", "type": "api", "url": "http://127.0.0.1:9/"} for n in range(MANY)]
            content = {"dataSources": sources}
            await make("/projects/own/application/revisions", status="published", content=content)
        # A counter reads what it needs once.
        await make("/responses/demo/undefined/full", responses=[answer(count)])
        for number in range(count):
            await make("/projects/own/application/revisions", version=f"draft-{count}-{number}")
            await make("/programs/full/events", event="A#b")
        gone = f"gone-{count}"
        await make("/projects", id=gone, name="n")
        for number in range(count):
            await make("/programs", id=f"{gone}-{number}", name="n")
            await make(f"/programs/{gone}-0/events", event="A#b")
            await make(f"/storage/{gone}", id=f"v{number}", metadata={"a": 1})
        scene.ids["project"], scene.ids["program"] = gone, f"{gone}-0"
        scene.ids["event"] = (await make("/programs/p/events", event="A#b"))["id"]
        scene.ids["revision"] = (await make("/projects/own/application/revisions"))["id"]
        scene.ids["value"] = (await make("/storage/own", metadata={}))["id"]
        scene.ids["token"] = (await make("/users/me/tokens", name=gone))["id"]
        user = await make("/users", username=gone, password=PASSWORD, role="user", projectIds=["own"])
        scene.ids["user"] = user["id"]
    return scene


async def measure(product: Product, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Operation → its statements, with everything that is remembered between calls in memory."""
    door = RestDoor(SimpleNamespace(product=product))  # type: ignore[arg-type]
    found = {}
    for operation in REGISTRY.routed:
        _, role, params = CASES[operation.name]
        for caller in {role, "admin"}:
            await door.run(REGISTRY.find("listRoles"), caller, {})
            await product.services.presence.note(await principal(product, caller))
        if operation.tag == "Responses":
            product.clock.forward_ms += 2_000  # what is remembered for a second is read again
        statements = Statements()
        with statements.counted(monkeypatch):
            answer = await door.run(operation, role, params(scene))
        status = answer.error.get("status", 200)
        assert status == REFUSED.get(operation.name, 200), (operation.name, answer)
        found[operation.name] = statements.texts
    return found


async def principal(product: Product, role: str | None) -> Any:
    from broker.domain.users import Principal

    if role is None:
        return Principal("demo")
    return await product.services.auth.authenticate("demo", product.tokens[role])


async def test_no_operation_asks_more_when_there_is_more(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await measure(product, await grow(product, 1), monkeypatch)
    many = await measure(product, await grow(product, MANY), monkeypatch)
    many["listRevisions"] = list(dict.fromkeys(many["listRevisions"]))  # a query for every sixteen
    # Gateways are read once in a second, whoever asks.
    assert max(len(asked.pop("connect")) for asked in (one, many)) <= 1
    one["createVisitor"].pop(0)  # the account's first visitor makes its secret
    grown = {name: (one[name], many[name]) for name in one if len(one[name]) != len(many[name])}
    assert not grown
    counts = {name: len(statements) for name, statements in one.items()}
    assert {name: count for name, count in counts.items() if count > CASES[name][0]} == {}
