"""Application revisions over HTTP."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ROLES = [None, "client", "user", "producer", "admin"]
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


async def call(
    product: Product,
    method: str,
    path: str,
    body: Any = None,
    *,
    role: str | None = "producer",
    account: str = "demo",
    **headers: str,
) -> httpx.Response:
    if method == "PATCH":
        headers.setdefault("Content-Type", JSON_PATCH if isinstance(body, list) else MERGE_PATCH)
    async with product.door(role, account=account) as door:
        content = None if body is None else orjson.dumps(body)
        if content is not None:
            headers.setdefault("Content-Type", "application/json")
        return await door.request(method, f"/projects/{path}", content=content, headers=headers)


async def make_project(product: Product, project_id: str, account: str = "demo") -> None:
    async with product.door(account=account) as door:
        answer = await door.post("/projects", json={"id": project_id, "name": "n"})
    assert answer.status_code == 201, answer.text


_made = 0


async def new_project(product: Product) -> str:
    """A project of its own for a test; only admins reach it."""
    global _made
    _made += 1
    await make_project(product, f"project-{_made}")
    return f"project-{_made}"


async def make(product: Product, project_id: str = "own", **fields: Any) -> dict[str, Any]:
    answer = await call(product, "POST", f"{project_id}/application/revisions", fields, role="admin")
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module", autouse=True)
async def projects(product: Product) -> None:
    await make_project(product, "own")
    await make_project(product, "foreign")


async def test_life_of_a_revision(product: Product) -> None:
    body = {"title": "T", "description": "D", "version": "1.0", "content": {"a": 1}}
    answer = await call(product, "POST", "own/application/revisions", body)
    made = answer.json()
    assert answer.headers["location"] == f"/api/v1/projects/own/application/revisions/{made['id']}"
    assert list(made) == [
        "id", "projectId", "title", "description", "version", "status", "content", "createdBy", "updatedBy",
        "createdTime", "updatedTime",
    ]  # fmt: skip
    assert (made["projectId"], made["status"], made["version"]) == ("own", "draft", "1.0")
    at = f"own/application/revisions/{made['id']}"
    assert (await call(product, "GET", at)).json() == made
    product.clock.forward_ms += 1_000
    changed = (await call(product, "PUT", at, {"title": None, "content": {"b": 2}}, role="admin")).json()
    assert (changed["title"], changed["description"], changed["content"]) == (None, "D", {"b": 2})
    assert changed["createdBy"] == made["createdBy"] != changed["updatedBy"]
    assert changed["createdTime"] == made["createdTime"] < changed["updatedTime"]
    sent_back = await call(product, "PUT", at, changed | {"status": "published"})
    assert (sent_back.status_code, sent_back.json()["status"]) == (200, "published")


NO_METHODS = {"dataSources": [{"id": "a", "methods": ["GET"]}, {"id": "b", "methods": []}]}


def require_named(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert [fault["field"] for fault in answer.json()["errors"]] == ["content.dataSources[1].methods"]


async def test_a_data_source_without_any_method_is_refused(product: Product) -> None:
    require_named(await call(product, "POST", "own/revisions", {"content": NO_METHODS}))
    made = await make(product, content={"dataSources": [{"id": "a"}, {"id": "b"}]})
    at = f"own/application/revisions/{made['id']}"
    added = [{"op": "add", "path": "/content/dataSources/1/methods", "value": []}]
    require_named(await call(product, "PUT", at, {"content": NO_METHODS}))
    require_named(await call(product, "PATCH", at, {"content": NO_METHODS}))
    require_named(await call(product, "PATCH", at, added))
    assert (await call(product, "GET", at)).json() == made


async def test_a_data_source_that_was_stored_without_any_method_goes_on(product: Product) -> None:
    made = await make(product)
    async with product.services.database.connection() as connection:
        await connection.execute(
            "UPDATE revisions SET content = $2 WHERE id = $1", made["id"], orjson.dumps(NO_METHODS).decode()
        )
    at = f"own/application/revisions/{made['id']}"
    stored = (await call(product, "GET", at)).json()
    for method, body in (
        ("PUT", stored | {"title": "T"}),
        ("PATCH", {"title": "U"}),
        ("PATCH", {"content": {"other": 1}}),
        ("PATCH", [{"op": "replace", "path": "/status", "value": "published"}]),
    ):
        answer = await call(product, method, at, body)
        assert (answer.status_code, answer.json()["content"]["dataSources"]) == (
            200,
            NO_METHODS["dataSources"],
        )


async def test_both_paths_make_revisions(product: Product) -> None:
    answer = await call(product, "POST", "own/revisions", {})
    assert (answer.status_code, answer.json()["content"]) == (201, {})
    assert (await call(product, "GET", f"own/application/revisions/{answer.json()['id']}")).status_code == 200


async def test_versions_are_numbered_around_those_that_are_taken(product: Product) -> None:
    project = await new_project(product)
    given = [None, "2", "x", None, None]
    made = [await make(product, project, version=version) for version in given]
    assert [one["version"] for one in made] == ["1", "2", "x", "3", "4"]
    answer = await call(product, "POST", f"{project}/revisions", {"version": "x"}, role="admin")
    assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
    at = f"{project}/application/revisions/{made[0]['id']}"
    assert (await call(product, "PUT", at, {"version": "2"}, role="admin")).status_code == 409
    assert (await call(product, "PUT", at, {"version": "first"}, role="admin")).status_code == 200
    # A number that was given once is not given again.
    assert (await make(product, project))["version"] == "5"


async def test_many_at_once_get_versions_of_their_own(product: Product) -> None:
    project = await new_project(product)
    made = await asyncio.gather(*(make(product, project) for _ in range(12)))
    assert sorted(int(one["version"]) for one in made) == list(range(1, 13))


async def test_same_key_makes_one_revision(product: Product) -> None:
    key = {"Idempotency-Key": "revision"}
    first = await call(product, "POST", "own/revisions", {"title": "k"}, **key)
    assert (await call(product, "POST", "own/revisions", {"title": "k"}, **key)).json() == first.json()
    assert (await call(product, "POST", "own/revisions", {"title": "m"}, **key)).status_code == 409


async def test_the_latest(product: Product) -> None:
    project = await new_project(product)
    at = f"{project}/application"

    async def version(path: str) -> Any:
        answer = await call(product, "GET", f"{at}{path}", role="admin")
        return answer.json()["version"] if answer.status_code == 200 else answer.status_code

    paths = ("", "/status/published", "/status/draft", "/version/latest")
    assert [await version(path) for path in paths] == [404, 404, 404, 404]
    await make(product, project)
    await make(product, project)
    assert [await version(path) for path in paths] == [404, 404, "2", "2"]
    await make(product, project, status="published")
    await make(product, project, status="published")
    await make(product, project)
    assert [await version(path) for path in paths] == ["4", "4", "5", "4"]
    assert (await call(product, "GET", f"{at}/status/gone", role="admin")).status_code == 400


async def test_a_version_is_an_id_first(product: Product) -> None:
    project = await new_project(product)
    first = await make(product, project, status="published", title="first")
    second = await make(product, project, status="published", title="second", version=first["id"])
    for kind in ("version", "live"):
        at = f"{project}/application/{kind}"
        for wanted, title in ((first["id"], "first"), ("1", "first"), (second["id"], "second")):
            assert (await call(product, "GET", f"{at}/{wanted}", role="admin")).json()["title"] == title
        assert (await call(product, "GET", f"{at}/none", role="admin")).status_code == 404
        assert (await call(product, "GET", f"{at}/{'x' * 129}", role="admin")).status_code == 400


async def test_revisions_are_listed_newest_first(product: Product) -> None:
    project = await new_project(product)
    at = f"{project}/application/revisions"
    assert (await call(product, "GET", at, role="admin")).json() == []
    for number in range(20):
        await make(product, project, status="published" if number % 4 == 0 else "draft")
    revisions = (await call(product, "GET", at, role="admin")).json()
    assert [one["version"] for one in revisions] == [str(number) for number in range(20, 0, -1)]
    published = (await call(product, "GET", f"{at}?status=published", role="admin")).json()
    assert [one["version"] for one in published] == ["17", "13", "9", "5", "1"]
    assert (await call(product, "GET", f"{at}?status=gone", role="admin")).status_code == 400


async def test_end_users_see_no_secrets(product: Product) -> None:
    content = {
        "theme": {"color": "red", "api_key": "k", "deep": [{"Authorization": "x", "kept": 1}]},
        "dataSources": [{"id": "d", "name": "D", "type": "api", "url": "https://h/", "headers": {"A": "b"}}],
    }
    made = await make(product, version="live-1", status="published", content=content)
    for version in ("live-1", made["id"]):
        answer = await call(product, "GET", f"own/application/live/{version}", role=None)
        live = answer.json()
        assert live["content"] == {
            "theme": {"color": "red", "deep": [{"kept": 1}]},
            "dataSources": [{"id": "d", "name": "D", "type": "api"}],
        }
        assert made.keys() - live.keys() == {"createdBy", "updatedBy"}
    tag = answer.headers["etag"]
    known = await call(product, "GET", "own/application/live/live-1", role=None, **{"If-None-Match": tag})
    assert known.status_code == 304
    draft = await make(product)
    assert (await call(product, "GET", f"own/application/live/{draft['id']}", role=None)).status_code == 404


async def test_end_users_get_the_latest_published_revision(product: Product) -> None:
    project = await new_project(product)
    latest = f"{project}/application/live/latest"
    await make(product, project)
    assert (await call(product, "GET", latest, role=None)).status_code == 404
    for _ in range(2):
        await make(product, project, status="published")
    await make(product, project)
    assert (await call(product, "GET", latest, role=None)).json()["version"] == "3"
    taken = await call(
        product, "POST", f"{project}/application/revisions", {"version": "latest"}, role="admin"
    )
    assert taken.status_code == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"title": ""}, "title"),
        ({"title": "x" * 1001}, "title"),
        ({"version": ""}, "version"),
        ({"version": "latest"}, "version"),
        ({"version": 1}, "version"),
        ({"status": "gone"}, "status"),
        ({"content": []}, "content"),
        ({"content": {"n": 2**53 + 1}}, "content.n"),
        ({"createdBy": "me"}, "createdBy"),
    ],
)
async def test_bad_fields_are_named(product: Product, body: dict[str, Any], field: str) -> None:
    answer = await call(product, "POST", "own/revisions", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


async def test_content_has_its_depth(product: Product) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = {"a": deep}
    await make(product, content=deep)
    answer = await call(product, "POST", "own/revisions", {"content": {"a": deep}})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "content")


async def test_what_is_published_stays(product: Product) -> None:
    made = await make(product, status="published", content={"a": 1})
    at = f"own/application/revisions/{made['id']}"
    for method, body in (
        ("PUT", {"content": {"a": 2}}),
        ("PUT", {"content": None}),
        ("PUT", {"status": "draft"}),
        ("PATCH", {"content": {"a": 2}}),
        ("PATCH", {"status": "draft"}),
        ("PATCH", [{"op": "add", "path": "/content/b", "value": 1}]),
        ("PATCH", [{"op": "replace", "path": "/status", "value": "draft"}]),
    ):
        answer = await call(product, method, at, body)
        assert (answer.status_code, answer.json()["error"]) == (409, "conflict"), body
    assert (await call(product, "GET", at)).json() == made
    fine = {"title": "new", "content": {"a": 1}, "status": "published"}
    assert (await call(product, "PUT", at, fine)).json()["title"] == "new"


async def test_patches_of_both_kinds(product: Product) -> None:
    made = await make(product, title="T", content={"list": [1, 2], "x": {"y": 1}})
    at = f"own/application/revisions/{made['id']}"
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/title", "value": "T"},
        {"op": "replace", "path": "/title", "value": "New"},
        {"op": "add", "path": "/content/list/-", "value": 3},
        {"op": "move", "from": "/content/x", "path": "/content/z"},
        {"op": "add", "path": "/description", "value": "D", "ignored": True},
    ]
    patched = (await call(product, "PATCH", at, patch)).json()
    assert (patched["title"], patched["description"]) == ("New", "D")
    assert patched["content"] == {"list": [1, 2, 3], "z": {"y": 1}}
    merged = (await call(product, "PATCH", at, {"title": None, "content": {"z": None, "n": {"a": 1}}})).json()
    assert (merged["title"], merged["content"]) == (None, {"list": [1, 2, 3], "n": {"a": 1}})
    emptied = (await call(product, "PATCH", at, [{"op": "remove", "path": "/content"}])).json()
    assert emptied["content"] == {}
    published = (await call(product, "PATCH", at, {"status": "published", "content": {"a": 1}})).json()
    assert (published["status"], published["content"]) == ("published", {"a": 1})


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ([{"op": "test", "path": "/title", "value": "other"}], 409),
        # A path that is not there is a conflict, not a malformed patch (RFC 5789, section 2.2).
        ([{"op": "remove", "path": "/content/none"}], 409),
        ([{"op": "replace", "path": "/content/none/deeper", "value": 1}], 409),
        ([{"op": "add", "path": "/content/none/deeper", "value": 1}], 409),
        ([{"op": "test", "path": "/content/none", "value": 1}], 409),
        ([{"op": "move", "from": "/content/none", "path": "/content/b"}], 409),
        ([{"op": "copy", "from": "/content/none", "path": "/content/b"}], 409),
        ([{"op": "replace", "path": "/id", "value": "x"}], 400),
        ([{"op": "replace", "path": "/createdBy", "value": "x"}], 400),
        ([{"op": "replace", "path": "", "value": {}}], 400),
        ([{"op": "remove", "path": "/version"}], 400),
        ([{"op": "replace", "path": "/title", "value": 5}], 400),
        ([{"op": "replace", "path": "/version", "value": "a/b"}], 400),
        ([{"op": "replace", "path": "/content", "value": []}], 400),
        ([{"op": "spam", "path": "/title"}], 400),
        ([{"op": "add", "path": "/title", "value": "x"}] * 1_001, 413),
        ({"id": "x"}, 400),
        ({"version": None}, 400),
        ({"status": "gone"}, 400),
        ({"content": 5}, 400),
        (5, 400),
        ("text", 400),
        (None, 400),
    ],
)
async def test_bad_patches_change_nothing(product: Product, patch: Any, status: int) -> None:
    made = await make(product, title="T", content={"a": 1})
    at = f"own/application/revisions/{made['id']}"
    answer = await call(product, "PATCH", at, patch)
    assert answer.status_code == status, answer.text
    assert (await call(product, "GET", at)).json() == made


async def test_half_a_patch_is_not_done(product: Product) -> None:
    made = await make(product, title="T")
    at = f"own/application/revisions/{made['id']}"
    patch = [
        {"op": "replace", "path": "/title", "value": "x"},
        {"op": "test", "path": "/title", "value": "T"},
    ]
    assert (await call(product, "PATCH", at, patch)).status_code == 409
    assert (await call(product, "GET", at)).json() == made


async def test_a_patch_that_copies_itself_is_bounded(product: Product) -> None:
    made = await make(product, content={"a": ["x" * 1_000]})
    at = f"own/application/revisions/{made['id']}"
    bomb = [{"op": "copy", "from": "/content/a", "path": "/content/a/-"}] * 1_000
    assert (await call(product, "PATCH", at, bomb)).status_code in (400, 413)
    assert (await call(product, "GET", at)).json() == made


@pytest.mark.parametrize(
    ("media_type", "patch", "status"),
    [
        (JSON_PATCH, [], 200),
        (f"{JSON_PATCH}; charset=utf-8", [], 200),
        (JSON_PATCH, {}, 400),
        (MERGE_PATCH, {}, 200),
        (MERGE_PATCH, [], 400),
        ("application/json", {}, 415),
        ("application/json-patch", [], 415),
        ("text/plain", [], 415),
        ("application/x-www-form-urlencoded", {}, 415),
    ],
)
async def test_media_types_of_patches(product: Product, media_type: str, patch: Any, status: int) -> None:
    made = await make(product)
    at = f"own/application/revisions/{made['id']}"
    answer = await call(product, "PATCH", at, patch, **{"Content-Type": media_type})
    assert answer.status_code == status, answer.text
    put = await call(product, "PUT", at, {}, **{"Content-Type": media_type})
    assert put.status_code == (200 if media_type == "application/json" else 415)


async def test_a_token_in_a_merge_patch_is_no_part_of_it(product: Product) -> None:
    made = await make(product)
    at = f"own/application/revisions/{made['id']}"
    patch = {"access_token": product.tokens["producer"], "title": "T"}
    answer = await call(product, "PATCH", at, patch, role=None)
    assert (answer.status_code, answer.json()["title"]) == (200, "T")


async def test_lost_updates_are_refused(product: Product) -> None:
    made = await make(product, title="T")
    at = f"own/application/revisions/{made['id']}"
    tag = (await call(product, "GET", at)).headers["etag"]
    product.clock.forward_ms += 1
    first = await call(product, "PUT", at, {"title": "A"}, **{"If-Match": tag})
    assert first.status_code == 200
    for method, body in (("PUT", {"title": "B"}), ("PATCH", {"title": "B"}), ("PATCH", [])):
        answer = await call(product, method, at, body, **{"If-Match": tag})
        assert (answer.status_code, answer.json()["error"]) == (412, "precondition_failed")
    weak = await call(product, "PUT", at, {"title": "B"}, **{"If-Match": f"W/{first.headers['etag']}"})
    assert weak.status_code == 412
    fresh = await call(product, "PATCH", at, {"title": "B"}, **{"If-Match": first.headers["etag"]})
    assert (fresh.status_code, fresh.json()["title"]) == (200, "B")
    assert (await call(product, "GET", at)).headers["etag"] == fresh.headers["etag"]


async def test_of_two_at_once_one_wins(product: Product) -> None:
    made = await make(product, content={"n": 0})
    at = f"own/application/revisions/{made['id']}"
    tag = (await call(product, "GET", at)).headers["etag"]
    product.clock.forward_ms += 1
    work = (call(product, "PATCH", at, {"content": {"n": n}}, **{"If-Match": tag}) for n in range(1, 9))
    statuses = [answer.status_code for answer in await asyncio.gather(*work)]
    assert (statuses.count(200), statuses.count(412)) == (1, 7)


# What each of ROLES gets: in a project of its own, in one of others, in an unknown one.
READ = {
    "own": [401, 403, 200, 200, 200],
    "foreign": [401, 403, 404, 404, 200],
    "unknown": [401, 403, 404, 404, 404],
}
WORK = {
    "own": [401, 403, 403, 200, 200],
    "foreign": [401, 403, 403, 404, 200],
    "unknown": [401, 403, 403, 404, 404],
}
LIVE = {"own": [200] * 5, "foreign": [200] * 5, "unknown": [404] * 5}
TABLE = [
    ("GET", "application", None, READ),
    ("GET", "application/status/published", None, READ),
    ("GET", "application/version/latest", None, READ),
    ("GET", "application/version/seen", None, READ),
    ("GET", "application/revisions", None, READ),
    ("GET", "application/revisions/{id}", None, READ),
    ("GET", "application/live/seen", None, LIVE),
    ("PUT", "application/revisions/{id}", {}, WORK),
    ("PATCH", "application/revisions/{id}", {}, WORK),
    ("PATCH", "application/revisions/{id}", [], WORK),
    ("POST", "application/revisions", {}, WORK),
    ("POST", "revisions", {}, WORK),
]


@pytest.fixture(scope="module")
async def seen(product: Product) -> dict[str, str]:
    """The id of a published revision of each project."""
    made = {
        project: await make(product, project, version="seen", status="published")
        for project in ("own", "foreign")
    }
    return {project: one["id"] for project, one in made.items()} | {"unknown": "unknown"}


@pytest.mark.parametrize(("method", "path", "body", "expected"), TABLE)
async def test_who_may_do_what(
    product: Product, seen: dict[str, str], method: str, path: str, body: Any, expected: dict[str, list[int]]
) -> None:
    for project, statuses in expected.items():
        at = f"{project}/{path.replace('{id}', seen[project])}"
        for role, status in zip(ROLES, statuses, strict=True):
            answer = await call(product, method, at, body, role=role)
            wanted = 201 if (method, status) == ("POST", 200) else status
            assert answer.status_code == wanted, (role, project, answer.text)


async def test_revisions_of_another_account_are_not_there(product: Product, seen: dict[str, str]) -> None:
    await make_project(product, "own", "other")
    for path in ("application", f"application/revisions/{seen['own']}", "application/live/seen"):
        assert (await call(product, "GET", f"own/{path}", role="admin", account="other")).status_code == 404


async def test_revisions_of_another_project_are_not_there(product: Product, seen: dict[str, str]) -> None:
    at = f"own/application/revisions/{seen['foreign']}"
    for method, body in (("GET", None), ("PUT", {}), ("PATCH", {})):
        assert (await call(product, method, at, body)).status_code == 404
