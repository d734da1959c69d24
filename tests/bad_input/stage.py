"""A faultless request of every operation, to be spoilt, and the product that it is sent to."""

import re
from typing import Any

import orjson
import pytest

from broker.operations.registry import Operation
from broker.resources.catalogue import build_registry
from broker.rest.routing import build_endpoint
from tests.asgi import Told, ask
from tests.gateway.world import RpcError, Viewer, World

REGISTRY = build_registry()
EVENT = "01234567-89ab-7def-8123-456789abcdef"
# What serving alone writes: it is no effect of a request.
VOLATILE = {
    "gateways", "producers_seen", "statistics", "statistics_marks", "statistics_writers", "rate_buckets",
    "login_failures", "import_rows", "answer_keys",
    "visitor_rules",
}  # fmt: skip

# A faultless request of every operation, on things that are there.
_PROJECT = {"projectId": "own"}
_PROGRAM = {"programId": "there"}
_REVISION = _PROJECT | {"revisionId": "{revision}"}
_SHOWN = {"measureName": "vote", "contextId": "{event}", "visitorId": "v", "sessionId": "s"}
_ANSWER = {"measureName": "vote", "contextId": "{event}", "visitorId": "v", "measureValue": 1}
_REPORT = {"method": "VisitsSummary.get", "period": "day", "date": "today"}
_SOURCE = _PROJECT | {"version": "1", "dataSourceId": "a"}
PARAMS: dict[str, dict[str, Any]] = {
    "getVersion": {},
    "getHealth": {},
    "servertime": {"requestTime": 1},
    "ping": {},
    "connect": {},
    "login": {"grant_type": "password", "client_id": "Test", "username": "user", "password": "no"},
    "admin/createProgram": {"id": "new", "name": "n", "metadata": {}, "access": "public", "projectId": "own"},
    "getProgram": _PROGRAM,
    "updateProgram": _PROGRAM
    | {"id": "there", "name": "n", "scheduledStartTime": None, "scheduledEndTime": None, "metadata": {}},
    "admin/deleteProgram": _PROGRAM,
    "getProducerPrograms": {},
    "filterPrograms": {"limit": 5, "search": "x"},
    "producer": _PROGRAM | {"event": "A#b", "metadata": {}, "timestamp": 1, "timecode": 1},
    "getProgramEvents": _PROGRAM | {"from": 0, "to": 5},
    "filterProgramEvents": _PROGRAM | {"limit": 5},
    "getLastUpdate": _PROGRAM,
    "exportProgramEvents": _PROGRAM,
    "importProgramEvents": {"programId": "imports", "events": [{"event": "A#b", "metadata": {}}]},
    "deleteAllProgramEvents": _PROGRAM,
    "getProgramEvent": _PROGRAM | {"eventId": EVENT},
    "updateProgramEvent": _PROGRAM | {"eventId": "{event}", "event": "A#c", "metadata": {}},
    "deleteProgramEvent": _PROGRAM | {"eventId": "{event}"},
    "listProjects": {},
    "createProject": {"id": "new", "name": "n", "metadata": {}},
    "getProject": _PROJECT,
    "updateProject": _PROJECT | {"name": "m", "metadata": {}},
    "deleteProject": _PROJECT | {"cascade": True},
    "listProjectUsers": _PROJECT,
    "listProjectPrograms": _PROJECT,
    "storeValue": _PROJECT | {"id": "v", "metadata": {"new": 1}},
    "getStoredValue": _PROJECT | {"itemId": "v"},
    "deleteStoredValue": _PROJECT | {"itemId": "v"},
    "addResponses": _PROGRAM
    | {"accountId": "demo", "projectId": "own", "responses": [_ANSWER], "impressions": [_SHOWN]},
    "getResponseReport": _PROGRAM | {"accountId": "demo", "projectId": "own"},
    "getResponseIntegrity": _PROGRAM | {"accountId": "demo", "projectId": "own"},
    "createVisitor": {},
    "getResponseResults": _PROGRAM | {"accountId": "demo", "responseName": "vote"},
    "createRevision": _PROJECT | {"title": "T", "content": {}},
    "createProjectRevision": _PROJECT | {"title": "T", "content": {}},
    "getPublishedRevision": _PROJECT,
    "getRevisionByStatus": _PROJECT | {"status": "draft"},
    "getLatestRevision": _PROJECT,
    "getRevisionByVersion": _PROJECT | {"version": "1"},
    "getLiveRevision": _PROJECT | {"version": "1"},
    "listRevisions": _PROJECT | {"status": "draft"},
    "getRevision": _REVISION,
    "updateRevision": _REVISION | {"title": "U", "content": {}},
    "patchRevision": _REVISION | {"patch": [{"op": "add", "path": "/content/a", "value": {}}]},
    "getApplicationRequest": _SOURCE,
    "postApplicationRequest": _SOURCE | {"body": {}},
    "putApplicationRequest": _SOURCE | {"body": {}},
    "deleteApplicationRequest": _SOURCE,
    "getAnalyticsSite": _PROJECT,
    "createAnalyticsSite": _PROJECT,
    "completeAnalyticsSite": _PROJECT,
    "getAnalyticsSnippet": _PROJECT,
    "getAnalyticsReport": _PROJECT | _REPORT,
    "postAnalyticsReport": _PROJECT | _REPORT,
    "putAnalyticsReport": _PROJECT | _REPORT,
    "patchAnalyticsReport": _PROJECT | _REPORT,
    "deleteAnalyticsReport": _PROJECT | _REPORT,
    "admin/getLivePrograms": {},
    "getDashboard": {},
    "filterStatistics": {"from": "2020-01-01", "to": "2020-01-02"},
    "filterImageStatistics": {"from": "2020-01-01", "to": "2020-01-02"},
    "filterAudit": {"limit": 5},
    "purgeImages": {"url": "https://example.org/a.jpg"},
    "warmImages": {"urls": ["https://example.org/a.jpg"], "options": ["-"]},
    "listUsers": {},
    "listRoles": {},
    "getCurrentUser": {},
    "updateCurrentUser": {"name": "n"},
    "createUser": {"username": "new", "password": "correct horse", "role": "user", "projectIds": ["own"]},
    "getUser": {"userId": "{user}"},
    "updateUser": {"userId": "{user}", "name": "n"},
    "deleteUser": {"userId": "{user}"},
    "createApiToken": {"name": "n"},
    "listApiTokens": {},
    "deleteApiToken": {"tokenId": "none"},
}


class Raw(str):
    """JSON text to be put where a value stands, whatever it is."""


def written(params: dict[str, Any]) -> bytes:
    """An object whose values may be raw text."""
    members = (orjson.dumps(name) + b":" + text_of(value) for name, value in params.items())
    return b"{" + b",".join(members) + b"}"


def repeated(params: dict[str, Any], field: str) -> bytes:
    """An object that has the field twice."""
    return written(params | {field: 1})[:-1] + b"," + written({field: 2})[1:]


def text_of(value: Any) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, Raw) else orjson.dumps(value)


class Stage:
    """A world with one of everything, and its state."""

    def __init__(self, world: World, socket: Viewer, connection: Any, names: dict[str, str]) -> None:
        self.world, self.socket, self.names = world, socket, names
        self._connection = connection

    def params(self, operation: Operation) -> dict[str, Any]:
        """The faultless request."""
        text = orjson.dumps(PARAMS[operation.name]).decode()
        for name, value in self.names.items():
            text = text.replace(f"{{{name}}}", value)
        return dict(orjson.loads(text))

    async def over_http(self, operation: Operation, params: dict[str, Any], raw: bytes | None = None) -> Told:
        """Ask with the params where REST has them; `raw` is sent as the body instead."""
        params = dict(params)
        route = operation.route
        path = re.sub(r"\{(\w+)\}", lambda match: str(params.pop(match[1])), route.path)
        body, media_type = b"", route.consumes[-1]
        if raw is not None:
            body = raw
        elif route.whole_body is not None and route.whole_body in params:
            value = params[route.whole_body]
            body = text_of(value)
            media_type = route.consumes[0] if body.lstrip()[:1] == b"[" else route.consumes[-1]
        elif build_endpoint(operation).has_body:
            body = written(params)
        elif params:
            path += "?" + "&".join(f"{name}={_query_text(value)}" for name, value in params.items())
        token = self.world.product.tokens["admin"]
        return await ask(
            self.world.product.app,
            route.method,
            f"/api/v1{path}",
            body,
            token=None if operation.name == "login" else token,
            media_type=media_type,
        )

    async def over_socket(self, operation: Operation, raw: bytes) -> dict[str, Any]:
        """The error object, or `{}`, that answers raw params."""
        number = self.socket.build(operation.name)["id"]
        head = f'{{"jsonrpc":"2.0","id":{number},"method":"{operation.name}","params":'
        await self.socket.socket.send(head.encode() + raw + b"}", text=True)
        try:
            await self.socket.answer(number)
        except RpcError as error:
            return {**error.data, "code": error.code}
        return {}

    async def state(self) -> dict[str, str]:
        """A digest of every table that requests write."""
        tables = await self._connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = sorted(row[0] for row in tables if row[0] not in VOLATILE)
        sql = "SELECT md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM \"{}\" AS t"
        return {name: await self._connection.fetchval(sql.format(name)) for name in names}


def _query_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def each(*, with_body: bool = False) -> list[Any]:
    """Every operation, or those that HTTP sends a body to."""
    return [
        pytest.param(operation, id=operation.name)
        for operation in REGISTRY.routed
        if not with_body or build_endpoint(operation).has_body
    ]
