"""Every route of programs and events: for every role, program and account."""

from typing import Any

import pytest

from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PROGRAMS = {
    "public-none": {},
    "public-own": {"projectId": "own"},
    "public-foreign": {"projectId": "foreign"},
    "private-none": {"access": "private"},
    "private-own": {"access": "private", "projectId": "own"},
    "private-foreign": {"access": "private", "projectId": "foreign"},
}
EVENT = "01234567-89ab-7def-8123-456789abcdef"
OPEN_READS = [("GET", "/events")]
READS = [("GET", ""), ("GET", "/lastUpdate"), ("GET", "/events/filter"), ("GET", "/events/export")]
CHANGES = [
    ("PUT", ""),
    ("DELETE", ""),
    ("POST", "/events"),
    ("POST", "/events/import"),
    ("DELETE", "/events"),
    ("PUT", f"/events/{EVENT}"),
    ("DELETE", f"/events/{EVENT}"),
]

# What a caller without rights on the program gets, by role and program; `ok` has them.
MAY_READ = {
    "admin": ["ok"] * 6 + [404],
    "producer": ["ok", "ok", "ok", "ok", "ok", 404, 404],
    "user": ["ok", "ok", "ok", "ok", "ok", 404, 404],
    "client": ["ok", "ok", "ok", 403, 403, 403, 404],
}
MAY_READ_OPENLY = MAY_READ | {None: ["ok", "ok", "ok", 401, 401, 401, 401]}
MAY_CHANGE = {
    "admin": ["ok"] * 6 + [404],
    "producer": ["ok", "ok", 403, "ok", "ok", 404, 404],
    "user": [403] * 7,
    "client": [403] * 7,
}


@pytest.fixture(scope="module", autouse=True)
async def programs(product: Product) -> None:
    for id_, fields in PROGRAMS.items():
        await product.make_program(id_, **fields)
        await product.make_program(f"victim-{id_}", **fields)


def body(method: str, path: str, program_id: str) -> Any:
    if (method, path) == ("PUT", ""):
        return {"id": program_id, "name": "n", "scheduledStartTime": None, "scheduledEndTime": None}
    return {
        "/events": {"event": "A#b"},
        "/events/import": {"events": []},
        f"/events/{EVENT}": {"event": "A#b"},
    }.get(path)


async def status_of(
    product: Product, role: str | None, method: str, path: str, program_id: str, account: str = "demo"
) -> int:
    sent = body(method, path, program_id) if method in ("PUT", "POST") else None
    async with product.door(role, account=account) as door:
        answer = await door.request(method, f"/programs/{program_id}{path}", json=sent)
    if answer.status_code >= 400:
        names = {401: "invalid_token", 403: "insufficient_scope", 404: "not_found"}
        assert answer.json()["error"] == names[answer.status_code]
    return answer.status_code


@pytest.mark.parametrize("role", [None, "admin", "producer", "user", "client"])
@pytest.mark.parametrize(("method", "path"), OPEN_READS)
async def test_who_reads_events(product: Product, role: str | None, method: str, path: str) -> None:
    for program_id, expected in zip([*PROGRAMS, "unknown"], MAY_READ_OPENLY[role], strict=True):
        wanted = 200 if expected == "ok" else expected
        assert await status_of(product, role, method, path, program_id) == wanted, program_id


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
@pytest.mark.parametrize(("method", "path"), READS)
async def test_who_reads(product: Product, role: str, method: str, path: str) -> None:
    for program_id, expected in zip([*PROGRAMS, "unknown"], MAY_READ[role], strict=True):
        wanted = 200 if expected == "ok" else expected
        assert await status_of(product, role, method, path, program_id) == wanted, program_id


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
async def test_who_reads_one_event(product: Product, role: str) -> None:
    for program_id, expected in zip(PROGRAMS, MAY_READ[role], strict=False):
        (event,) = await product.publish(program_id, {"event": "A#b"})
        wanted = 200 if expected == "ok" else expected
        assert await status_of(product, role, "GET", f"/events/{event['id']}", program_id) == wanted


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_who_changes(product: Product, role: str, method: str, path: str) -> None:
    success = {"POST/events": 201, "DELETE": 204}.get(f"{method}{path}", 200)
    success = 404 if EVENT in path else success  # the event is unknown to those who may change it
    for program_id, expected in zip([*PROGRAMS, "unknown"], MAY_CHANGE[role], strict=True):
        if (method, path) == ("DELETE", ""):
            program_id = f"victim-{program_id}"
            await restore(product, program_id)
        wanted = success if expected == "ok" else expected
        assert await status_of(product, role, method, path, program_id) == wanted, program_id


async def restore(product: Product, program_id: str) -> None:
    fields = PROGRAMS.get(program_id.removeprefix("victim-"))
    if fields is not None:
        async with product.door() as door:
            await door.post("/programs", json={"id": program_id, "name": "n"} | fields)


@pytest.mark.parametrize(("method", "path"), [*READS, *CHANGES, ("GET", f"/events/{EVENT}")])
async def test_without_a_token_everything_else_is_closed(product: Product, method: str, path: str) -> None:
    for program_id in (*PROGRAMS, "unknown"):
        assert await status_of(product, None, method, path, program_id) == 401, program_id


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
@pytest.mark.parametrize(("method", "path"), [*OPEN_READS, *READS])
async def test_another_account_sees_nothing(product: Product, role: str, method: str, path: str) -> None:
    for program_id in PROGRAMS:
        assert await status_of(product, role, method, path, program_id, "other") == 404, program_id


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_another_account_changes_nothing(product: Product, method: str, path: str) -> None:
    for program_id in PROGRAMS:
        assert await status_of(product, "admin", method, path, program_id, "other") == 404, program_id


@pytest.mark.parametrize(
    ("role", "project", "expected"),
    [
        ("admin", "foreign", 201),
        ("producer", None, 201),
        ("producer", "own", 201),
        ("producer", "foreign", 403),
        ("user", "own", 403),
        ("client", None, 403),
        (None, None, 401),
    ],
)
async def test_who_creates_programs(
    product: Product, role: str | None, project: str | None, expected: int
) -> None:
    async with product.door(role) as door:
        answer = await door.post(
            "/programs", json={"id": f"by-{role}-{project}", "name": "n", "projectId": project}
        )
    assert answer.status_code == expected


@pytest.mark.parametrize(("project", "expected"), [("own", 200), (None, 200), ("foreign", 403)])
async def test_producers_move_programs_among_their_projects(
    product: Product, project: str | None, expected: int
) -> None:
    await restore(product, "victim-public-own")
    sent = body("PUT", "", "victim-public-own") | {"projectId": project}
    async with product.door("producer") as door:
        answer = await door.put("/programs/victim-public-own", json=sent)
    assert answer.status_code == expected


async def test_private_and_unknown_look_alike_without_a_token(product: Product) -> None:
    async with product.door(None, **{"X-Request-Id": "same"}) as door:
        private = await door.get("/programs/private-none/events")
        unknown = await door.get("/programs/unknown/events")
    assert private.content == unknown.content
    assert private.headers == unknown.headers
