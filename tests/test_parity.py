"""Both doors do the same: every operation, by REST and by WebSocket, with the same result or the same error.

Each step of the story is run through both doors against twin programs, one for each door; what must differ
(ids that the server gives, times) is levelled before the two answers are compared.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import orjson
import pytest

from broker.operations.registry import Operation
from broker.resources.catalogue import build_registry
from broker.rest.openapi import openapi_document
from broker.rest.openapi_replies import HEADERS
from broker.settings import Settings
from tests.gateway.world import RpcError, Viewer, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REGISTRY = build_registry()
DOCUMENT = openapi_document(REGISTRY, Settings())
ROLES = (None, "client", "user", "producer", "admin")
EVENT = "01234567-89ab-7def-8123-456789abcdef"


@dataclass
class Answer:
    """What a door said: a result, or the body of an error."""

    result: Any = None
    etag: str | None = None
    error: dict[str, Any] = field(default_factory=dict)


class Door(Protocol):
    """One way to run an operation."""

    async def run(self, operation: Operation, role: str | None, params: dict[str, Any]) -> Answer: ...


class RestDoor:
    """Over HTTP: path, query and body are filled from the params as a client would."""

    def __init__(self, world: World) -> None:
        self._product = world.product

    async def run(self, operation: Operation, role: str | None, params: dict[str, Any]) -> Answer:
        params = dict(params)
        headers = {}
        if "idempotencyKey" in params:
            headers["Idempotency-Key"] = params.pop("idempotencyKey")
        path = re.sub(r"\{(\w+)\}", lambda match: str(params.pop(match[1])), operation.route.path)
        async with self._product.door(role) as door:
            whole = operation.route.whole_body
            if whole is not None:
                is_list = isinstance(params.get(whole), list)
                headers["Content-Type"] = operation.route.consumes[0 if is_list else -1]
                content = orjson.dumps(params.get(whole))
                answer = await door.request(operation.route.method, path, content=content, headers=headers)
            elif operation.route.method in ("POST", "PUT"):
                answer = await door.request(operation.route.method, path, json=params, headers=headers)
            else:
                query = _as_query(params)
                answer = await door.request(operation.route.method, path, params=query, headers=headers)
        _check_headers(operation, answer)
        return _rest_answer(answer)


def _as_query(params: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in params.items()
    }


def _check_headers(operation: Operation, answer: httpx.Response) -> None:
    """The document tells of every header that came, and what it says that comes came."""
    replies = DOCUMENT["paths"][operation.route.path][operation.route.method.lower()]["responses"]
    told = replies[str(answer.status_code)]
    if "$ref" in told:
        told = DOCUMENT["components"]["responses"][told["$ref"].rpartition("/")[2]]
    came = {name for name in HEADERS if name in answer.headers}
    always = {name for name in told["headers"] if HEADERS[name].get("required")}
    assert always <= came <= told["headers"].keys(), operation.name
    assert ("ETag" in came) == (operation.has_etag and answer.is_success), operation.name


def _rest_answer(answer: httpx.Response) -> Answer:
    if answer.headers.get("Content-Type", "").startswith("text/"):
        return Answer(result=answer.text)
    body = orjson.loads(answer.content) if answer.content else None
    if answer.status_code >= 400:
        return Answer(error=body)
    return Answer(result=body, etag=answer.headers.get("ETag"))


class SocketDoor:
    """Over WebSocket: one connection for each role."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._viewers: dict[str | None, Viewer] = {}

    async def run(self, operation: Operation, role: str | None, params: dict[str, Any]) -> Answer:
        viewer = self._viewers.get(role)
        if viewer is None or operation.name == "login":  # which changes whose connection it is
            viewer = await self._world.join(role)
        if operation.name != "login":
            self._viewers[role] = viewer
        if operation.has_etag:
            params = params | {"withEtag": True}
        try:
            result = await viewer.call(operation.name, **params)
            return Answer(result=result, etag=result.pop("etag") if operation.has_etag else None)
        except RpcError as refused:
            error = refused
        assert error.code == (-32602 if error.name == "invalid_request" else error.data["status"])
        assert error.name == error.data["error"]
        return Answer(error=error.data)


@pytest.fixture(scope="module")
async def world(module_dsn: str) -> AsyncIterator[World]:
    async with open_world(module_dsn, ws_messages_per_s=0) as world:
        yield world


@pytest.fixture(scope="module")
async def doors(world: World) -> dict[str, Door]:
    """The doors by name; the names are those of the twin programs."""
    rest = RestDoor(world)
    create = operation_of("admin/createProgram")
    for name in ("rest", "sock"):
        for access in ("public", "private"):
            body = {"id": f"{name}-{access}", "name": "twin", "access": access, "projectId": "own"}
            assert not (await rest.run(create, "admin", body)).error
    return {"rest": rest, "sock": SocketDoor(world)}


def operation_of(name: str) -> Operation:
    operation = REGISTRY.find(name)
    assert operation is not None
    return operation


def levelled(value: Any, twin: str) -> Any:
    """A value without what differs between the twins."""
    text = orjson.dumps(value).decode().replace(f"{twin}-", "twin-")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    text = re.sub(r'"epoch":"\w+"', '"epoch":"EPOCH"', text)
    text = re.sub(
        r'("(?:timestamp|timecode|serverTime|current_time|iat|exp|expires|retryAfterMs)":)\d{5,}',
        r"\1MS",
        text,
    )
    text = re.sub(r'"visitorId":"[\w-]{44}"', '"visitorId":"HANDED OUT"', text)
    return re.sub(r'"(access_token|token)":"[^"]+"', r'"\1":"TOKEN"', text)


async def both(doors: dict[str, Door], name: str, role: str | None, /, **params: Any) -> Answer:
    """Run an operation through both doors and compare; `{twin}` in a param is the door's own twin.

    Entity tags are of what differs between the twins, so that they are there or not is compared.
    """
    answers = {}
    for twin, door in doors.items():
        filled = orjson.loads(orjson.dumps(params).replace(b"{twin}", twin.encode()))
        answers[twin] = await door.run(operation_of(name), role, filled)
    rest, sock = answers["rest"], answers["sock"]
    assert levelled(rest.error, "rest") == levelled(sock.error, "sock"), name
    assert levelled(rest.result, "rest") == levelled(sock.result, "sock"), name
    assert (rest.etag is None) == (sock.etag is None), name
    return rest


VOTED = {"accountId": "demo", "projectId": "undefined", "programId": "{twin}-story"}
ANSWER = {"measureName": "vote", "contextId": "one", "measureValue": [3, 1], "visitorId": "v"}
SHOWN = {"measureName": "vote", "contextId": "one", "visitorId": "v", "sessionId": "s"}
# One faultless call of every operation, in the order of a program's life.
STORY: list[tuple[str, str | None, dict[str, Any]]] = [
    ("getVersion", None, {}),
    ("getHealth", "admin", {}),
    ("servertime", None, {"requestTime": 5}),
    ("ping", "client", {}),
    (
        "login",
        None,
        {"grant_type": "password", "client_id": "Test", "username": "admin", "password": "correct horse"},
    ),
    (
        "admin/createProgram",
        "producer",
        {"id": "{twin}-story", "name": "n", "metadata": {"freeContexts": True}},
    ),
    ("getProgram", "client", {"programId": "{twin}-story"}),
    (
        "updateProgram",
        "producer",
        {
            "programId": "{twin}-story",
            "id": "{twin}-story",
            "name": "m",
            "scheduledStartTime": "2026-01-01",
            "scheduledEndTime": None,
        },
    ),
    ("filterPrograms", "producer", {"search": "{twin}-story", "limit": 5, "live": False, "sort": "name"}),
    ("producer", "producer", {"programId": "{twin}-story", "event": "A#b", "metadata": {"n": 1}}),
    ("producer", "admin", {"programId": "{twin}-story", "events": [{"event": "A#c", "timecode": 9}]}),
    ("getProgramEvents", None, {"programId": "{twin}-story"}),
    ("getProgramEvents", None, {"programId": "{twin}-story", "from": 0, "to": 9, "includeCreated": True}),
    ("filterProgramEvents", "client", {"programId": "{twin}-story", "ids": EVENT, "status": "published"}),
    ("filterProgramEvents", "client", {"programId": "{twin}-story", "search": "a#B"}),
    ("getLastUpdate", "user", {"programId": "{twin}-story"}),
    ("exportProgramEvents", "client", {"programId": "{twin}-story"}),
    ("importProgramEvents", "producer", {"programId": "{twin}-story", "events": [{"event": "A#b"}]}),
    ("deleteAllProgramEvents", "producer", {"programId": "{twin}-story"}),
    ("addResponses", None, VOTED | {"responses": [ANSWER, ANSWER], "impressions": [SHOWN]}),
    ("getResponseReport", "user", VOTED),
    ("getResponseIntegrity", "user", VOTED),
    ("createVisitor", None, {}),
    ("getResponseResults", None, {"accountId": "demo", "responseName": "vote", "programId": "{twin}-story"}),
    ("admin/deleteProgram", "producer", {"programId": "{twin}-story"}),
    ("createProject", "admin", {"id": "{twin}-project", "name": "P", "metadata": {"a": 1}}),
    ("getProject", "admin", {"projectId": "{twin}-project"}),
    ("updateProject", "admin", {"projectId": "{twin}-project", "description": "d", "metadata": None}),
    ("listProjectUsers", "admin", {"projectId": "{twin}-project"}),
    ("listProjectPrograms", "admin", {"projectId": "{twin}-project"}),
    ("listProjects", "user", {}),
    ("storeValue", None, {"projectId": "{twin}-project", "id": "v", "metadata": {"a": 1}}),
    ("storeValue", "client", {"projectId": "{twin}-project", "id": "v", "metadata": {"a": 2}}),
    ("getStoredValue", None, {"projectId": "{twin}-project", "itemId": "v"}),
    ("deleteStoredValue", "admin", {"projectId": "{twin}-project", "itemId": "v"}),
    ("createRevision", "admin", {"projectId": "{twin}-project", "title": "T", "content": {"token": 1}}),
    ("createProjectRevision", "admin", {"projectId": "{twin}-project", "status": "published"}),
    ("getPublishedRevision", "admin", {"projectId": "{twin}-project"}),
    ("getRevisionByStatus", "admin", {"projectId": "{twin}-project", "status": "draft"}),
    ("getLatestRevision", "admin", {"projectId": "{twin}-project"}),
    ("getRevisionByVersion", "admin", {"projectId": "{twin}-project", "version": "1"}),
    ("getLiveRevision", None, {"projectId": "{twin}-project", "version": "2"}),
    ("listRevisions", "admin", {"projectId": "{twin}-project", "status": "draft"}),
    ("deleteProject", "admin", {"projectId": "{twin}-project", "cascade": True}),
    ("admin/getLivePrograms", "user", {}),
    ("filterStatistics", "user", {"from": "2020-01-01", "to": "2020-01-02", "interval": "hour"}),
    ("filterStatistics", "admin", {"programId": "{twin}-public", "projectId": "own", "to": "2020-01-01"}),
    ("filterImageStatistics", "user", {"from": "2020-01-01", "to": "2020-01-02", "interval": "hour"}),
    ("purgeImages", "admin", {"url": "https://cdn.example.com/{twin}.png"}),
    ("purgeImages", "admin", {"all": True}),
    ("warmImages", "producer", {"urls": ["https://cdn.example.com/a.png"], "options": ["w=51"]}),
    ("filterAudit", "admin", {"from": "2020-01-01", "to": "2020-01-02", "action": "a.b,c.d", "limit": 5}),
    ("getCurrentUser", "user", {}),
    ("updateCurrentUser", "user", {"name": "Kim"}),
    ("listUsers", "admin", {}),
    ("listRoles", "client", {}),
    ("createApiToken", "user", {"name": "{twin}-token", "expires": "2100-01-01"}),
    ("listApiTokens", "producer", {}),
    (
        "createUser",
        "admin",
        {"username": "{twin}-user", "password": "correct horse", "role": "user", "email": "a@example.com"},
    ),
]
# Operations on something whose id the server gives: told of something unknown.
UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("getProgramEvent", {"programId": "{twin}-public", "eventId": EVENT}),
    ("updateProgramEvent", {"programId": "{twin}-public", "eventId": EVENT, "event": "A#b"}),
    ("deleteProgramEvent", {"programId": "{twin}-public", "eventId": EVENT}),
    ("getUser", {"userId": "nobody"}),
    ("updateUser", {"userId": "nobody", "name": "n"}),
    ("deleteUser", {"userId": "nobody"}),
    ("deleteApiToken", {"tokenId": "nothing"}),
    ("getApplicationRequest", {"projectId": "nothing", "version": "1", "dataSourceId": "a"}),
    ("postApplicationRequest", {"projectId": "nothing", "version": "1", "dataSourceId": "a"}),
    ("putApplicationRequest", {"projectId": "nothing", "version": "1", "dataSourceId": "a"}),
    ("deleteApplicationRequest", {"projectId": "nothing", "version": "1", "dataSourceId": "a"}),
    ("getAnalyticsSite", {"projectId": "nothing"}),
    ("createAnalyticsSite", {"projectId": "nothing"}),
    ("completeAnalyticsSite", {"projectId": "nothing"}),
    ("getAnalyticsSnippet", {"projectId": "nothing"}),
    ("getAnalyticsReport", {"projectId": "nothing", "method": "VisitsSummary.get"}),
    ("postAnalyticsReport", {"projectId": "nothing", "method": "VisitsSummary.get"}),
    ("putAnalyticsReport", {"projectId": "nothing", "method": "VisitsSummary.get"}),
    ("patchAnalyticsReport", {"projectId": "nothing", "method": "VisitsSummary.get"}),
    ("deleteAnalyticsReport", {"projectId": "nothing", "method": "VisitsSummary.get"}),
    ("getProject", {"projectId": "nothing"}),
    ("getStoredValue", {"projectId": "nothing", "itemId": "v"}),
    ("getRevision", {"projectId": "nothing", "revisionId": "x"}),
    ("updateRevision", {"projectId": "nothing", "revisionId": "x", "title": "T"}),
    ("patchRevision", {"projectId": "nothing", "revisionId": "x", "patch": []}),
    ("patchRevision", {"projectId": "nothing", "revisionId": "x", "patch": {"title": "T"}}),
    ("createRevision", {"projectId": "nothing"}),
    ("listRevisions", {"projectId": "nothing"}),
    ("getLiveRevision", {"projectId": "nothing", "version": "1"}),
    ("storeValue", {"projectId": "nothing", "metadata": {}}),
    ("updateProject", {"projectId": "nothing", "name": "n"}),
    ("deleteProject", {"projectId": "nothing"}),
    ("listProjectUsers", {"projectId": "nothing"}),
    ("listProjectPrograms", {"projectId": "nothing"}),
]


def test_every_operation_is_covered() -> None:
    covered = {name for name, _, _ in STORY} | {name for name, _ in UNKNOWN}
    covered |= {"connect", "getProducerPrograms", "getDashboard"}
    assert covered >= {operation.name for operation in REGISTRY.routed}
    # The others are parts of one that both doors have: tests/gateway/test_responses.py.
    alone = {operation.name for operation in REGISTRY.operations} - {o.name for o in REGISTRY.routed}
    assert alone == {"respond", "impression"}


async def test_the_story(doors: dict[str, Door]) -> None:
    for name, role, params in STORY:
        answer = await both(doors, name, role, **params)
        assert not answer.error, (name, answer.error)


async def test_lists_of_everything_are_the_same(doors: dict[str, Door]) -> None:
    operation = operation_of("getProducerPrograms")
    answers = [await door.run(operation, "producer", {}) for door in doors.values()]
    assert answers[0].result == answers[1].result
    assert len(answers[0].result) >= 4


async def test_the_dashboard_is_the_same_but_for_its_figures(doors: dict[str, Door]) -> None:
    operation = operation_of("getDashboard")
    answers = [await door.run(operation, "user", {}) for door in doors.values()]
    assert answers[0].result.keys() == answers[1].result.keys()
    assert answers[0].result["programsLive"] == answers[1].result["programsLive"]


async def test_where_to_connect_is_the_same_but_for_who_was_sent_there(doors: dict[str, Door]) -> None:
    operation = operation_of("connect")
    answers = [(await door.run(operation, None, {})).result for door in doors.values()]
    for answer in answers:
        for server in answer["servers"]:
            server["connections"] = 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("name", "params"), UNKNOWN)
async def test_what_is_unknown(doors: dict[str, Door], name: str, params: dict[str, Any]) -> None:
    answer = await both(doors, name, "admin", **params)
    assert answer.error["status"] == 404


async def test_one_event_is_read_changed_and_deleted(doors: dict[str, Door]) -> None:
    for twin, door in doors.items():
        program = {"programId": f"{twin}-public"}
        made = (await door.run(operation_of("producer"), "producer", program | {"event": "A#b"})).result
        event = program | {"eventId": made["id"]}
        assert (await door.run(operation_of("getProgramEvent"), "client", event)).result == made
        changed = await door.run(operation_of("updateProgramEvent"), "producer", event | {"event": "A#c"})
        assert changed.result == made | {"event": "A#c", "seq": 2}  # as it is pushed
        stored = (await door.run(operation_of("getProgramEvent"), "client", event)).result
        assert stored == made | {"event": "A#c"}
        assert (await door.run(operation_of("deleteProgramEvent"), "producer", event)).result is None
        assert (await door.run(operation_of("getProgramEvent"), "client", event)).error["status"] == 404


async def test_one_revision_is_read_changed_and_patched(doors: dict[str, Door]) -> None:
    for twin, door in doors.items():
        project = {"projectId": f"{twin}-revised"}
        made = await door.run(
            operation_of("createProject"), "admin", {"id": project["projectId"], "name": "P"}
        )
        assert made.etag
        made = await door.run(operation_of("createRevision"), "admin", project)
        revision = project | {"revisionId": made.result["id"]}
        read = await door.run(operation_of("getRevision"), "admin", revision)
        assert (read.result, read.etag) == (made.result, made.etag)
        updated = await door.run(operation_of("updateRevision"), "admin", revision | {"title": "T"})
        patched = await door.run(operation_of("patchRevision"), "admin", revision | {"patch": {"title": "U"}})
        assert len({read.etag, updated.etag, patched.etag}) == 3


async def test_a_key_counts_through_both_doors(doors: dict[str, Door]) -> None:
    """Sent by REST, repeated by WebSocket: one event."""
    await doors["rest"].run(operation_of("admin/createProgram"), "admin", {"id": "keyed", "name": "n"})
    params = {"programId": "keyed", "event": "A#key", "idempotencyKey": "parity"}
    answers = [await door.run(operation_of("producer"), "producer", params) for door in doors.values()]
    assert answers[0].result["id"] == answers[1].result["id"]
    other = params | {"event": "A#other"}
    for door in doors.values():
        assert (await door.run(operation_of("producer"), "producer", other)).error["status"] == 409


@pytest.mark.parametrize(
    ("name", "params"),
    [
        (
            "updateProgram",
            {"id": "{n}", "name": "N", "scheduledStartTime": None, "scheduledEndTime": None},
        ),
        ("importProgramEvents", {"events": [{"event": "A#b", "timestamp": 1}]}),
        ("producer", {"events": [{"event": "A#b"}]}),
        ("deleteAllProgramEvents", {}),
        ("admin/deleteProgram", {}),
    ],
)
async def test_a_change_is_repeated_by_either_door(
    doors: dict[str, Door], name: str, params: dict[str, Any]
) -> None:
    program = f"repeated-{name.replace('/', '-')}"
    await doors["rest"].run(operation_of("admin/createProgram"), "admin", {"id": program, "name": "n"})
    sent = {field: program if value == "{n}" else value for field, value in params.items()}
    sent |= {"programId": program, "idempotencyKey": program}
    answers = [await door.run(operation_of(name), "producer", dict(sent)) for door in doors.values()]
    assert not answers[0].error
    assert answers[0] == answers[1]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("access", ["public", "private"])
async def test_permissions(doors: dict[str, Door], role: str | None, access: str) -> None:
    program = {"programId": f"{{twin}}-{access}"}
    for name, params in (
        ("getProgram", program),
        ("getLastUpdate", program),
        ("getProgramEvents", program | {"to": 5}),
        ("filterProgramEvents", program | {"limit": 1, "ids": EVENT}),
        ("getProgramEvent", program | {"eventId": EVENT}),
        ("updateProgramEvent", program | {"eventId": EVENT, "event": "A#b"}),
        ("deleteProgramEvent", program | {"eventId": EVENT}),
        ("getProgram", {"programId": "unknown"}),
        ("getProgramEvents", {"programId": "unknown"}),
        ("producer", {"programId": "unknown", "event": "A#b"}),
        ("admin/deleteProgram", {"programId": "unknown"}),
        ("importProgramEvents", {"programId": "unknown", "events": []}),
        ("filterPrograms", {"ids": "none"}),
        ("getUser", {"userId": "nobody"}),
        ("listRoles", {}),
        ("ping", {}),
        ("getProject", {"projectId": "unknown"}),
        ("listProjectUsers", {"projectId": "unknown"}),
        ("listProjectPrograms", {"projectId": "unknown"}),
        ("updateProject", {"projectId": "unknown"}),
        ("deleteProject", {"projectId": "unknown"}),
        ("createProject", {"name": ""}),
        ("createRevision", {"projectId": "unknown"}),
        ("patchRevision", {"projectId": "unknown", "revisionId": "x", "patch": []}),
        ("listRevisions", {"projectId": "unknown"}),
        ("getLiveRevision", {"projectId": "unknown", "version": "1"}),
        ("getStoredValue", {"projectId": "unknown", "itemId": "x"}),
        ("storeValue", {"projectId": "unknown", "metadata": {}}),
        ("addResponses", program | {"accountId": "demo", "projectId": "own", "responses": [ANSWER]}),
        ("addResponses", VOTED | {"programId": "unknown"}),
        ("getResponseReport", program | {"accountId": "demo", "projectId": "own"}),
        ("getResponseIntegrity", program | {"accountId": "demo", "projectId": "own"}),
        ("getResponseReport", program | {"accountId": "other", "projectId": "own"}),
        ("filterStatistics", program | {"to": "2020-01-01"}),
        ("filterStatistics", {"projectId": "foreign", "to": "2020-01-01"}),
        ("filterStatistics", {"programId": "unknown"}),
        ("admin/getLivePrograms", {}),
        ("filterAudit", {"to": "2020-01-01"}),
        ("getHealth", {}),
        ("filterImageStatistics", {"to": "2020-01-01"}),
        ("purgeImages", {"url": "https://cdn.example.com/a.png"}),
        ("warmImages", {"urls": ["ftp://a.test"]}),
    ):
        await both(doors, name, role, **params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("admin/createProgram", {}),
        ("admin/createProgram", {"id": "a b", "name": "", "bogus": 1}),
        ("admin/createProgram", {"id": "filter", "name": "x" * 1001}),
        ("admin/createProgram", {"id": "x", "name": "n", "access": "secret"}),
        ("admin/createProgram", {"id": "x", "name": "n", "metadata": {"n": 2**53 + 1}}),
        ("admin/createProgram", {"id": "{twin}-public", "name": "n"}),
        (
            "admin/createProgram",
            {"id": "x", "name": "n", "scheduledStartTime": "2026-01-02", "scheduledEndTime": "2026-01-01"},
        ),
        ("updateProgram", {"programId": "{twin}-public", "id": "{twin}-public", "name": "n"}),
        ("producer", {"programId": "{twin}-public"}),
        ("producer", {"programId": "{twin}-public", "event": "bad"}),
        ("producer", {"programId": "{twin}-public", "event": "A#b", "timestamp": 2**53 + 1}),
        ("producer", {"programId": "{twin}-public", "event": "A#b", "events": []}),
        ("producer", {"programId": "{twin}-public", "events": [{"event": "A#b"}, {"event": 5}]}),
        ("producer", {"programId": "{twin}-public", "event": "A#b", "metadata": {"x": "y" * 65536}}),
        ("producer", {"programId": "{twin}-public", "events": [{"event": "A#b"}] * 1001}),
        ("producer", {"programId": "a b", "event": "A#b"}),
        ("importProgramEvents", {"programId": "{twin}-public"}),
        ("importProgramEvents", {"programId": "{twin}-public", "events": [{"event": "A#b"}, {"event": "x"}]}),
        ("importProgramEvents", {"programId": "{twin}-public", "events": [{"event": "A#b", "bogus": 1}]}),
        ("filterPrograms", {"limit": 0}),
        ("filterPrograms", {"limit": 1001}),
        ("filterPrograms", {"sort": "metadata", "order": "up", "status": "gone"}),
        ("filterPrograms", {"from": "2026-01-02", "to": "2026-01-01"}),
        ("getProgramEvents", {"programId": "{twin}-public", "from": 2, "to": 1}),
        ("getProgramEvents", {"programId": "{twin}-public", "from": 2**53 + 1}),
        ("filterProgramEvents", {"programId": "{twin}-public", "ids": "x"}),
        ("filterStatistics", {"from": "2020-01-02", "to": "2020-01-01"}),
        ("filterStatistics", {"from": "2020-01-01", "to": "2020-01-03"}),
        ("filterStatistics", {"interval": "week"}),
        ("filterStatistics", {"to": "9999-12-31T23:59:59Z", "interval": "day"}),
        ("filterImageStatistics", {"from": "2020-01-02", "to": "2020-01-01"}),
        ("purgeImages", {}),
        ("purgeImages", {"all": False}),
        ("purgeImages", {"url": "https://a.test/", "all": True}),
        ("purgeImages", {"url": "ftp://a.test/"}),
        ("warmImages", {"urls": []}),
        ("warmImages", {"urls": ["https://a.test/", "a b"]}),
        ("warmImages", {"urls": ["https://a.test/"] * 11, "options": ["w=50", "w=100"]}),
        ("warmImages", {"urls": ["https://a.test/"], "options": [""]}),
        ("filterAudit", {"limit": 1001}),
        ("filterAudit", {"action": "nothing"}),
        ("filterAudit", {"from": "2020-01-02", "to": "2020-01-01"}),
        ("servertime", {"requestTime": "5"}),
        ("servertime", {"requestTime": 1.5}),
        ("ping", {"bogus": 1}),
        ("login", {"grant_type": "password", "username": "admin", "password": "x"}),
        ("login", {"grant_type": "magic", "client_id": "Test"}),
        ("login", {"grant_type": "password", "client_id": "Test", "username": "no", "password": "no"}),
        ("createUser", {"username": "x", "password": "short", "role": "king"}),
        ("createApiToken", {"name": "", "expires": "tomorrow"}),
        ("createApiToken", {"name": "n", "expires": "2020-01-01"}),
        ("login", {"grant_type": "api_token", "client_id": "Test"}),
        ("login", {"grant_type": "api_token", "client_id": "Test", "token": "brk_unknown"}),
        ("createProject", {"id": "a b", "name": ""}),
        ("createRevision", {"projectId": "x", "version": "latest", "status": "gone"}),
        ("updateRevision", {"projectId": "x", "revisionId": "x", "id": "y"}),
        ("patchRevision", {"projectId": "x", "revisionId": "x", "patch": 5}),
        ("patchRevision", {"projectId": "x", "revisionId": "a b", "patch": []}),
        ("storeValue", {"projectId": "x"}),
        ("storeValue", {"projectId": "x", "id": "a b", "metadata": []}),
        ("storeValue", {"projectId": "x", "metadata": {"x": "y" * (256 << 10)}}),
        ("updateProject", {"projectId": "x", "id": "y"}),
        ("addResponses", VOTED | {"responses": [ANSWER | {"visitorId": "", "measureValue": -1}, {}]}),
        ("addResponses", VOTED | {"responses": [SHOWN], "impressions": 5}),
        ("createVisitor", {"visitorId": "x" * 129}),
        ("createVisitor", {"visitorId": 5}),
        ("addResponses", VOTED | {"programId": "{twin}-public", "projectId": "own", "responses": [ANSWER]}),
        ("addResponses", VOTED | {"responses": [ANSWER] * 600, "impressions": [SHOWN] * 401}),
        ("getResponseResults", {"accountId": "a b", "responseName": "\u200b", "contextId": ""}),
    ],
)
async def test_bad_input(doors: dict[str, Door], name: str, params: dict[str, Any]) -> None:
    answer = await both(doors, name, "admin", **params)
    assert answer.error["status"] in (400, 401, 409, 413)


async def test_former_names_lead_to_the_same(world: World) -> None:
    viewer = await world.join("admin")
    event = {"programId": "rest-public"}
    assert await viewer.call("admin/getProgramEvents", **event) == await viewer.call(
        "getProgramEvents", **event
    )
    for name in ("admin/updateProgram", "admin/deleteAllProgramEvents"):
        with pytest.raises(RpcError, match="404"):
            fields = {"name": "n", "scheduledStartTime": None, "scheduledEndTime": None}
            await viewer.call(name, programId="none", **(fields if "update" in name else {}))


async def test_over_the_socket_one_id_is_enough(world: World) -> None:
    viewer = await world.join("admin")
    fields = {"name": "m", "scheduledStartTime": None, "scheduledEndTime": None}
    await viewer.call("admin/createProgram", id="either", name="n")
    for params in ({"id": "either"}, {"programId": "either"}, {"id": "either", "programId": "either"}):
        assert (await viewer.call("updateProgram", **params, **fields))["name"] == "m"
    for params in ({}, {"id": None, "programId": "either"}, {"id": "x", "programId": "either"}):
        with pytest.raises(RpcError, match="-32602"):
            await viewer.call("updateProgram", **params, **fields)
