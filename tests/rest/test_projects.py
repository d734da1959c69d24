"""Projects over HTTP: their life, who may do what, cascades, lost updates."""

from typing import Any

import httpx
import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ROLES = [None, "client", "user", "producer", "admin"]


async def call(
    product: Product,
    method: str,
    path: str,
    body: Any = None,
    *,
    role: str | None = "admin",
    account: str = "demo",
    **headers: str,
) -> httpx.Response:
    async with product.door(role, account=account) as door:
        return await door.request(method, path, json=body, headers=headers)


async def make(product: Product, project_id: str, **fields: Any) -> dict[str, Any]:
    answer = await call(product, "POST", "/projects", {"id": project_id, "name": project_id} | fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module", autouse=True)
async def projects(product: Product) -> None:
    await make(product, "own")
    await make(product, "foreign")


async def test_life_of_a_project(product: Product) -> None:
    answer = await call(
        product, "POST", "/projects", {"id": "life", "name": "Life", "description": "d", "metadata": {"a": 1}}
    )
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, "/api/v1/projects/life")
    assert made.keys() == {"id", "name", "description", "metadata", "createdTime", "updatedTime"}
    assert (await call(product, "GET", "/projects/life")).json() == made
    product.clock.forward_ms += 1_000
    changed = (await call(product, "PUT", "/projects/life", {"name": "New", "metadata": None})).json()
    assert (changed["name"], changed["description"], changed["metadata"]) == ("New", "d", {})
    assert changed["createdTime"] == made["createdTime"] < changed["updatedTime"]
    sent_back = await call(product, "PUT", "/projects/life", changed)
    assert sent_back.status_code == 200
    deleted = await call(product, "DELETE", "/projects/life")
    assert (deleted.status_code, deleted.content) == (204, b"")
    for method in ("GET", "PUT", "DELETE"):
        assert (await call(product, method, "/projects/life", {} if method == "PUT" else None)).json()[
            "error"
        ] == "not_found"


async def test_an_id_is_made_up_and_absent_fields_are_empty(product: Product) -> None:
    made = (await call(product, "POST", "/projects", {"name": "N", "description": None})).json()
    assert len(made["id"]) == 36
    assert (made["description"], made["metadata"]) == (None, {})


async def test_a_taken_id_is_a_conflict(product: Product) -> None:
    answer = await call(product, "POST", "/projects", {"id": "own", "name": "again"})
    assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
    elsewhere = await call(product, "POST", "/projects", {"id": "own", "name": "o"}, account="other")
    assert elsewhere.status_code == 201


async def test_same_key_makes_one_project(product: Product) -> None:
    key = {"Idempotency-Key": "project"}
    first = await call(product, "POST", "/projects", {"name": "N"}, **key)
    assert (await call(product, "POST", "/projects", {"name": "N"}, **key)).json() == first.json()
    assert (await call(product, "POST", "/projects", {"name": "M"}, **key)).status_code == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 1001}, "name"),
        ({"name": "n", "id": "a b"}, "id"),
        ({"name": "n", "id": "x" * 129}, "id"),
        ({"name": "n", "id": "filter"}, "id"),
        ({"name": "n", "id": "undefined"}, "id"),
        ({"name": "n", "description": "x" * 10_001}, "description"),
        ({"name": "n", "metadata": []}, "metadata"),
        ({"name": "n", "metadata": {"n": 2**53 + 1}}, "metadata.n"),
        ({"name": "n", "owner": 1}, "owner"),
    ],
)
async def test_bad_fields_are_named(product: Product, body: dict[str, Any], field: str) -> None:
    answer = await call(product, "POST", "/projects", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


async def test_the_id_cannot_change(product: Product) -> None:
    answer = await call(product, "PUT", "/projects/own", {"id": "other"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "id")
    assert (await call(product, "PUT", "/projects/own", {"name": None})).status_code == 400


async def test_a_stale_tag_is_refused(product: Product) -> None:
    await make(product, "tagged")
    read = await call(product, "GET", "/projects/tagged")
    tag = read.headers["etag"]
    assert (
        await call(product, "GET", "/projects/tagged", **{"If-None-Match": f'"x", W/{tag}'})
    ).status_code == 304
    first = await call(product, "PUT", "/projects/tagged", {"name": "A"}, **{"If-Match": tag})
    assert first.status_code == 200
    second = await call(product, "PUT", "/projects/tagged", {"name": "B"}, **{"If-Match": tag})
    assert (second.status_code, second.json()["error"]) == (412, "precondition_failed")
    assert (await call(product, "GET", "/projects/tagged")).json() == first.json()
    listed = f'"x", {first.headers["etag"]}'
    for good in (listed, "*"):
        answer = await call(product, "PUT", "/projects/tagged", {"name": "A"}, **{"If-Match": good})
        assert answer.status_code == 200


async def test_a_project_with_programs_goes_only_with_them(product: Product) -> None:
    await make(product, "full")
    for number in range(20):
        await product.make_program(f"full-{number}", projectId="full")
    for path in ("/projects/full", "/projects/full?cascade=false"):
        answer = await call(product, "DELETE", path)
        assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
    assert (await call(product, "GET", "/programs/full-3")).status_code == 200
    assert (await call(product, "DELETE", "/projects/full?cascade=perhaps")).status_code == 400
    assert (await call(product, "DELETE", "/projects/full?cascade=true")).status_code == 204
    for number in range(20):
        assert (await call(product, "GET", f"/programs/full-{number}")).status_code == 404
    assert (await call(product, "GET", "/projects/full")).status_code == 404


async def test_memberships_end_with_the_project(product: Product) -> None:
    await make(product, "club")
    body = {"username": "member", "password": "correct horse", "role": "user", "projectIds": ["club", "own"]}
    user = (await call(product, "POST", "/users", body)).json()
    assert (await call(product, "GET", "/projects/club/users")).json() == [user]
    await call(product, "DELETE", "/projects/club")
    assert (await call(product, "GET", f"/users/{user['id']}")).json()["projectIds"] == ["own"]
    await call(product, "DELETE", f"/users/{user['id']}")


async def test_programs_may_name_a_project_before_it_is_made(product: Product) -> None:
    await product.make_program("early", projectId="later")
    assert (await call(product, "GET", "/projects/later/programs")).status_code == 404
    await make(product, "later")
    programs = (await call(product, "GET", "/projects/later/programs")).json()
    assert [program["id"] for program in programs] == ["early"]


async def test_programs_of_a_project_are_all_and_newest_first(product: Product) -> None:
    await make(product, "many")
    assert (await call(product, "GET", "/projects/many/programs")).json() == []
    times = {"scheduledStartTime": "2020-01-01", "scheduledEndTime": "2020-01-02"}
    await product.make_program("many-ended", projectId="many", **times)
    product.clock.forward_ms += 1_000
    await product.make_program("many-private", projectId="many", access="private")
    programs = (await call(product, "GET", "/projects/many/programs")).json()
    assert [program["id"] for program in programs] == ["many-private", "many-ended"]
    assert programs[1]["live"] is False


# (method, path, body) → what each of ROLES gets for a project of its own, one of others, and an unknown one
OWN, FOREIGN, UNKNOWN = "own", "foreign", "unknown"
READ = {
    OWN: [401, 403, 200, 200, 200],
    FOREIGN: [401, 403, 404, 404, 200],
    UNKNOWN: [401, 403, 404, 404, 404],
}
WORK = {
    OWN: [401, 403, 403, 200, 200],
    FOREIGN: [401, 403, 403, 404, 200],
    UNKNOWN: [401, 403, 403, 404, 404],
}
ADMINISTER = {
    OWN: [401, 403, 403, 403, 200],
    FOREIGN: [401, 403, 403, 403, 200],
    UNKNOWN: [401, 403, 403, 403, 404],
}
TABLE: list[tuple[str, str, Any, dict[str, list[int]]]] = [
    ("GET", "", None, READ),
    ("GET", "/programs", None, READ),
    ("GET", "/users", None, WORK),
    ("PUT", "", {}, ADMINISTER),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), TABLE)
async def test_who_may_do_what(
    product: Product, method: str, path: str, body: Any, expected: dict[str, list[int]]
) -> None:
    for project_id, statuses in expected.items():
        for role, status in zip(ROLES, statuses, strict=True):
            answer = await call(product, method, f"/projects/{project_id}{path}", body, role=role)
            assert answer.status_code == status, (role, project_id, answer.text)


@pytest.mark.parametrize("role", ROLES[:-1])
async def test_only_an_admin_makes_and_deletes(product: Product, role: str | None) -> None:
    expected = 401 if role is None else 403
    assert (await call(product, "POST", "/projects", {"name": "n"}, role=role)).status_code == expected
    for project_id in ("own", "foreign", "unknown"):
        assert (await call(product, "DELETE", f"/projects/{project_id}", role=role)).status_code == expected


async def test_the_list_has_what_the_caller_belongs_to(product: Product) -> None:
    for role in ("user", "producer"):
        answer = await call(product, "GET", "/projects", role=role)
        assert [project["id"] for project in answer.json()] == ["own"]
    everything = [project["id"] for project in (await call(product, "GET", "/projects")).json()]
    assert {"own", "foreign"} <= set(everything)
    assert everything == sorted(everything)
    assert (await call(product, "GET", "/projects", role="client")).status_code == 403


async def test_projects_of_another_account_are_not_there(product: Product) -> None:
    for path in ("", "/users", "/programs"):
        answer = await call(product, "GET", f"/projects/foreign{path}", account="other")
        assert answer.status_code == 404
    assert (await call(product, "DELETE", "/projects/foreign", account="other")).status_code == 404
    assert (await call(product, "GET", "/projects/foreign")).status_code == 200
