"""`Idempotency-Key` on every change: what the first request was answered, and nothing again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pytest

from broker.operations.registry import Effect
from broker.resources.catalogue import build_registry
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_numbers = count(1)
Ids = dict[str, str]


@dataclass
class Change:
    """A change, and another one of the same operation.

    `prepare` makes what it is about, and may add to the ids that paths are made with; `n` is new each time.
    """

    method: str
    path: str
    body: Any = None
    other: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[httpx.AsyncClient, Ids], Awaitable[Any]] | None = None


async def _program(door: httpx.AsyncClient, ids: Ids) -> None:
    (await door.post("/programs", json={"id": ids["n"], "name": "P"})).raise_for_status()


async def _event(door: httpx.AsyncClient, ids: Ids) -> None:
    await _program(door, ids)
    made = await door.post(f"/programs/{ids['n']}/events", json={"event": "A#b"})
    ids["event"] = made.raise_for_status().json()["id"]


async def _project(door: httpx.AsyncClient, ids: Ids) -> None:
    (await door.post("/projects", json={"id": ids["n"], "name": "P"})).raise_for_status()


async def _project_with_a_program(door: httpx.AsyncClient, ids: Ids) -> None:
    await _project(door, ids)
    body = {"id": f"of-{ids['n']}", "name": "P", "projectId": ids["n"]}
    (await door.post("/programs", json=body)).raise_for_status()


async def _revision(door: httpx.AsyncClient, ids: Ids) -> None:
    await _project(door, ids)
    made = await door.post(f"/projects/{ids['n']}/revisions", json={"content": {"n": [1]}})
    ids["revision"] = made.raise_for_status().json()["id"]


async def _user(door: httpx.AsyncClient, ids: Ids) -> None:
    body = {"username": f"user-{ids['n']}", "password": "correct horse battery", "role": "user"}
    ids["user"] = (await door.post("/users", json=body)).raise_for_status().json()["id"]


async def _token(door: httpx.AsyncClient, ids: Ids) -> None:
    ids["token"] = (await door.post("/users/me/tokens", json={"name": "t"})).raise_for_status().json()["id"]


async def _value(door: httpx.AsyncClient, ids: Ids) -> None:
    await _project(door, ids)
    (await door.post(f"/storage/{ids['n']}", json={"id": "v", "metadata": {}})).raise_for_status()


_TIMES = {"scheduledStartTime": None, "scheduledEndTime": None}
_EVENTS = {"events": [{"event": "A#b", "timestamp": 1}]}
_JSON_PATCH = {"Content-Type": "application/json-patch+json"}
_APPENDED = [{"op": "add", "path": "/content/n/-", "value": 2}]
_SHOWN = {"measureName": "a", "contextId": "{event}", "visitorId": "v", "sessionId": "s"}
_REVISION = "/projects/{n}/application/revisions/{revision}"

CHANGES: dict[str, Change] = {
    "admin/createProgram": Change(
        "POST", "/programs", {"id": "{n}", "name": "P"}, {"id": "{n}", "name": "Q"}
    ),
    "updateProgram": Change(
        "PUT",
        "/programs/{n}",
        {"id": "{n}", "name": "P2", **_TIMES},
        {"id": "{n}", "name": "P3", **_TIMES},
        prepare=_program,
    ),
    "admin/deleteProgram": Change("DELETE", "/programs/{n}", prepare=_program),
    "producer": Change("POST", "/programs/{n}/events", {"event": "A#b"}, {"event": "A#c"}, prepare=_program),
    "importProgramEvents": Change(
        "POST",
        "/programs/{n}/events/import",
        _EVENTS,
        {"events": [{"event": "A#b", "timestamp": 2}]},
        prepare=_event,
    ),
    "deleteAllProgramEvents": Change("DELETE", "/programs/{n}/events", prepare=_event),
    "updateProgramEvent": Change(
        "PUT", "/programs/{n}/events/{event}", {"timecode": 1}, {"timecode": 2}, prepare=_event
    ),
    "deleteProgramEvent": Change("DELETE", "/programs/{n}/events/{event}", prepare=_event),
    "createProject": Change("POST", "/projects", {"name": "P{n}"}, {"name": "Q{n}"}),
    "updateProject": Change("PUT", "/projects/{n}", {"name": "Q"}, {"name": "R"}, prepare=_project),
    "deleteProject": Change("DELETE", "/projects/{n}?cascade=true", prepare=_project_with_a_program),
    "createRevision": Change(
        "POST",
        "/projects/{n}/application/revisions",
        {"content": {"a": 1}},
        {"content": {"a": 2}},
        prepare=_project,
    ),
    "createProjectRevision": Change(
        "POST",
        "/projects/{n}/revisions",
        {"content": {"a": 1}},
        {"content": {"a": 2}},
        prepare=_project,
    ),
    "updateRevision": Change("PUT", _REVISION, {"title": "A"}, {"title": "B"}, prepare=_revision),
    "patchRevision": Change("PATCH", _REVISION, _APPENDED, [], headers=_JSON_PATCH, prepare=_revision),
    "storeValue": Change(
        "POST", "/storage/{n}", {"metadata": {"a": 1}}, {"metadata": {"a": 2}}, prepare=_project
    ),
    "deleteStoredValue": Change("DELETE", "/storage/{n}/v", prepare=_value),
    "updateCurrentUser": Change("PUT", "/users/me", {"name": "N{n}"}, {"name": "M{n}"}),
    "createUser": Change(
        "POST",
        "/users",
        {"username": "u{n}", "password": "correct horse battery", "role": "user"},
        {"username": "w{n}", "password": "correct horse battery", "role": "user"},
    ),
    "updateUser": Change("PUT", "/users/{user}", {"name": "A"}, {"name": "B"}, prepare=_user),
    "deleteUser": Change("DELETE", "/users/{user}", prepare=_user),
    "createApiToken": Change("POST", "/users/me/tokens", {"name": "a"}, {"name": "b"}),
    "addResponses": Change(
        "POST",
        "/responses/demo/undefined/{n}",
        {"impressions": [_SHOWN]},
        {"impressions": [_SHOWN, _SHOWN]},
        prepare=_event,
    ),
    "purgeImages": Change("POST", "/images/purge", {"url": "https://a.test/{n}"}, {"all": True}),
    "deleteApiToken": Change("DELETE", "/users/me/tokens/{token}", prepare=_token),
}
WITH_MATOMO = {"createAnalyticsSite", "completeAnalyticsSite"}
"""They need a Matomo, and know by themselves what is there already."""
BY_SOCKET = {"respond", "impression"}
"""They have no route; `tests.gateway.test_vote_forwarder` has them."""
MAKE_WITHOUT_SECRET = {"createApiToken"}


def test_every_change_is_here() -> None:
    changes = {each.name for each in build_registry().operations if each.effect is Effect.KEYED}
    assert changes == set(CHANGES) | WITH_MATOMO | BY_SOCKET


def _filled(body: Any, ids: Ids) -> Any:
    if isinstance(body, str):
        return body.format_map(ids) if "{" in body else body
    if isinstance(body, dict):
        return {name: _filled(value, ids) for name, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, ids) for value in body]
    return body


@pytest.mark.parametrize("name", CHANGES)
async def test_a_repeat_is_answered_as_the_first(product: Product, name: str) -> None:
    change, ids = CHANGES[name], {"n": f"k{next(_numbers)}"}
    async with product.door() as door:
        if change.prepare is not None:
            await change.prepare(door, ids)
        path, headers = change.path.format_map(ids), change.headers | {"Idempotency-Key": ids["n"]}

        async def ask(body: Any) -> httpx.Response:
            content = None if body is None else _filled(body, ids)
            return await door.request(change.method, path, json=content, headers=headers)

        first, again = await ask(change.body), await ask(change.body)
        assert first.is_success, first.text
        assert again.status_code == first.status_code
        if name in MAKE_WITHOUT_SECRET:
            assert again.json() == {key: value for key, value in first.json().items() if key != "token"}
        else:
            assert again.content == first.content
        assert again.headers.get("Location") == first.headers.get("Location")
        assert again.headers.get("ETag") == first.headers.get("ETag")
        if change.other is not None:
            other = await ask(change.other)
            assert (other.status_code, other.json()["error"]) == (409, "conflict")
        elsewhere = await door.delete(
            f"/programs/{ids['n']}-elsewhere", headers={"Idempotency-Key": ids["n"]}
        )
        assert elsewhere.status_code == 409


async def test_a_repeat_changes_nothing(product: Product) -> None:
    ids = {"n": "changes-nothing"}
    key = {"Idempotency-Key": "changes-nothing"}
    async with product.door() as door:
        await _revision(door, ids)
        path = _REVISION.format_map(ids)
        for _ in range(3):
            await door.patch(path, json=_APPENDED, headers=_JSON_PATCH | key)
        assert (await door.get(path)).json()["content"] == {"n": [1, 2]}
        audit = (await door.get("/audit", params={"targetId": ids["revision"]})).json()["items"]
        assert [entry["action"] for entry in audit].count("revision.updated") == 1


async def test_a_repeat_with_if_match_is_answered_as_the_first(product: Product) -> None:
    ids = {"n": "matched"}
    async with product.door() as door:
        await _project(door, ids)
        tag = (await door.get("/projects/matched")).headers["ETag"]
        headers = {"Idempotency-Key": "matched", "If-Match": tag}
        first = await door.put("/projects/matched", json={"name": "Q"}, headers=headers)
        again = await door.put("/projects/matched", json={"name": "Q"}, headers=headers)
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.content == first.content
        stale = await door.put("/projects/matched", json={"name": "R"}, headers={"If-Match": tag})
        assert stale.status_code == 412


async def test_a_key_is_the_users_whichever_token_it_has(product: Product) -> None:
    async with product.door() as door:
        secret = (await door.post("/users/me/tokens", json={"name": "t"})).json()["token"]
        body = {"id": "two-tokens", "name": "P"}
        key = {"Idempotency-Key": "two-tokens"}
        first = await door.post("/programs", json=body, headers=key)
        login = {"grant_type": "api_token", "client_id": "Test", "token": secret}
        token = (await door.post("/token", json=login)).json()["access_token"]
        bearer = {"Authorization": f"Bearer {token}"}
        again = await door.post("/programs", json=body, headers=key | bearer)
    assert (again.status_code, again.content) == (201, first.content), again.text


async def test_values_stored_without_a_token_are_stored_once(product: Product) -> None:
    async with product.door() as door:
        await _project(door, {"n": "open-store"})
    key = {"Idempotency-Key": "open-store"}
    async with product.door(None) as door:
        first = await door.post("/storage/open-store", json={"metadata": {"a": 1}}, headers=key)
        again = await door.post("/storage/open-store", json={"metadata": {"a": 1}}, headers=key)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json()["id"] == first.json()["id"]
        other = await door.post("/storage/open-store", json={"metadata": {"a": 2}}, headers=key)
        assert other.status_code == 409


async def test_import_with_other_events_is_a_conflict_whatever_the_spelling(product: Product) -> None:
    ids = {"n": "spelt"}
    key = {"Idempotency-Key": "spelt", "Content-Type": "application/json"}
    async with product.door() as door:
        await _event(door, ids)
        path = "/programs/spelt/events/import"
        one = b'{"events":[{"event":"A#b","timestamp":1,"metadata":{"a":1}}]}'
        same = (
            b'{ "programId": "spelt", "events": [ {"metadata": {"a": 1}, "timestamp": 1, "event": "A#b"} ] }'
        )
        first = await door.post(path, content=one, headers=key)
        assert (await door.post(path, content=same, headers=key)).content == first.content
        other = await door.post(path, content=one.replace(b"1}}", b"2}}"), headers=key)
        assert other.status_code == 409
        await door.delete("/programs/spelt")
        # The program is gone; the first result is not.
        assert (await door.post(path, content=one, headers=key)).content == first.content


async def test_another_password_is_another_request(product: Product) -> None:
    ids, key = {"n": "secretive"}, {"Idempotency-Key": "secretive"}
    async with product.door() as door:
        await _user(door, ids)
        path = f"/users/{ids['user']}"
        first = await door.put(path, json={"password": "correct horse stable"}, headers=key)
        again = await door.put(path, json={"password": "correct horse stable"}, headers=key)
        assert (first.status_code, again.content) == (200, first.content)
        assert (await door.put(path, json={"password": "another horse"}, headers=key)).status_code == 409
        assert (await door.put(path, json={"name": "Kim"}, headers=key)).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/storage/show", {"id": "matched", "metadata": {}}),
        ("PUT", "/programs/public", {"name": "R"}),
        ("DELETE", "/programs/public", None),
    ],
)
async def test_if_match_where_it_does_not_apply_changes_nothing(
    product: Product, method: str, path: str, body: dict[str, object] | None
) -> None:
    """A caller who sends it wants no change of another state than the one that it has read."""
    async with product.door("admin") as door:
        answer = await door.request(method, path, json=body, headers={"If-Match": '"gone"'})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "If-Match")
