"""Project storage over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest

from broker.storage.database import Database
from broker.storage.stored_values import NewValue, Quota, StoredValues, StoreOutcome
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ROLES = ["client", "user", "producer", "admin"]


async def call(
    product: Product,
    method: str,
    path: str,
    body: Any = None,
    *,
    role: str | None = None,
    account: str = "demo",
    **headers: str,
) -> httpx.Response:
    async with product.door(role, account=account) as door:
        return await door.request(method, path, json=body, headers=headers)


async def make_project(product: Product, project_id: str, account: str = "demo") -> None:
    answer = await call(
        product, "POST", "/projects", {"id": project_id, "name": "n"}, role="admin", account=account
    )
    assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module", autouse=True)
async def projects(product: Product) -> None:
    await make_project(product, "show")
    await make_project(product, "show", "other")


async def test_anybody_adds_and_reads(product: Product) -> None:
    answer = await call(product, "POST", "/storage/show", {"id": "a", "metadata": {"x": [1, None]}})
    assert (answer.status_code, answer.headers["location"]) == (201, "/api/v1/storage/show/a")
    value = answer.json()
    assert value.keys() == {"id", "metadata", "createdTime"}
    read = await call(product, "GET", "/storage/show/a")
    assert (read.status_code, read.json()) == (200, value)
    assert read.headers["cache-control"] == "public, max-age=86400"
    assert "vary" not in read.headers


async def test_an_id_is_made_up(product: Product) -> None:
    answer = await call(product, "POST", "/storage/show", {"metadata": {}})
    made = answer.json()
    assert len(made["id"]) == 36
    assert answer.headers["location"] == f"/api/v1/storage/show/{made['id']}"
    assert (await call(product, "GET", f"/storage/show/{made['id']}")).json() == made


async def test_a_known_value_is_not_sent_again(product: Product) -> None:
    await call(product, "POST", "/storage/show", {"id": "known", "metadata": {"x": 1}})
    read = await call(product, "GET", "/storage/show/known")
    tag = read.headers["etag"]
    assert tag.startswith('"')
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await call(product, "GET", "/storage/show/known", **{"If-None-Match": sent})
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["cache-control"]) == (tag, "public, max-age=86400")
    product.clock.forward_ms += 1
    await call(product, "POST", "/storage/show", {"id": "known", "metadata": {"x": 2}}, role="client")
    fresh = await call(product, "GET", "/storage/show/known", **{"If-None-Match": tag})
    assert (fresh.status_code, fresh.json()["metadata"]) == (200, {"x": 2})
    assert fresh.headers["etag"] != tag


async def test_nobody_without_a_token_replaces(product: Product) -> None:
    await call(product, "POST", "/storage/show", {"id": "kept", "metadata": {"x": 1}})
    answer = await call(product, "POST", "/storage/show", {"id": "kept", "metadata": {"x": 2}})
    assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
    assert (await call(product, "GET", "/storage/show/kept")).json()["metadata"] == {"x": 1}


@pytest.mark.parametrize("role", ROLES)
async def test_everybody_with_a_token_replaces(product: Product, role: str) -> None:
    for expected in (201, 200, 200):
        body = {"id": f"by-{role}", "metadata": {"n": expected}}
        answer = await call(product, "POST", "/storage/show", body, role=role)
        assert answer.status_code == expected
        assert ("location" in answer.headers) == (expected == 201)
    assert (await call(product, "GET", f"/storage/show/by-{role}", role=role)).json()["metadata"] == {
        "n": 200
    }


@pytest.mark.parametrize("role", [None, *ROLES])
async def test_what_is_unknown_is_not_found(product: Product, role: str | None) -> None:
    for path in ("/storage/show/nothing", "/storage/nothing/a"):
        assert (await call(product, "GET", path, role=role)).status_code == 404
    answer = await call(product, "POST", "/storage/nothing", {"metadata": {}}, role=role)
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


async def test_a_bad_token_is_told(product: Product) -> None:
    headers = {"Authorization": "Bearer nonsense"}
    assert (await call(product, "GET", "/storage/show/a", **headers)).status_code == 401
    assert (await call(product, "POST", "/storage/show", {"metadata": {}}, **headers)).status_code == 401


async def test_accounts_store_apart(product: Product) -> None:
    await call(product, "POST", "/storage/show", {"id": "mine", "metadata": {}})
    assert (await call(product, "GET", "/storage/show/mine", account="other")).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "metadata"),
        ({"metadata": None}, "metadata"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {}, "id": "a b"}, "id"),
        ({"metadata": {}, "id": "x" * 129}, "id"),
        ({"metadata": {}, "value": 1}, "value"),
        ({"metadata": {"n": 2**53 + 1}}, "metadata.n"),
    ],
)
async def test_bad_fields_are_named(product: Product, body: dict[str, Any], field: str) -> None:
    answer = await call(product, "POST", "/storage/show", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


async def test_a_value_has_its_limit(product: Product) -> None:
    limit = 256 << 10
    frame = len('{"x":""}')
    fits = {"x": "y" * (limit - frame)}
    assert (await call(product, "POST", "/storage/show", {"id": "big", "metadata": fits})).status_code == 201
    assert (await call(product, "GET", "/storage/show/big")).json()["metadata"] == fits
    answer = await call(product, "POST", "/storage/show", {"metadata": {"x": "y" * (limit - frame + 1)}})
    assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")


async def test_a_project_has_its_quota_of_values(product: Product) -> None:
    small = product.with_settings(storage_project_values=2)
    await make_project(product, "few")
    for item in ("a", "b"):
        body = {"id": item, "metadata": {}}
        assert (await call(small, "POST", "/storage/few", body, role="client")).status_code == 201
    answer = await call(small, "POST", "/storage/few", {"id": "c", "metadata": {}}, role="client")
    assert answer.status_code == 413
    replaced = await call(small, "POST", "/storage/few", {"id": "b", "metadata": {"x": 1}}, role="user")
    assert replaced.status_code == 200


async def test_a_project_has_its_quota_of_bytes(product: Product) -> None:
    small = product.with_settings(storage_project_bytes=20)
    await make_project(product, "small")
    ten = {"x": "1234"}  # 12 bytes
    eight = {"x": ""}
    for status, body in [
        (201, {"id": "a", "metadata": ten}),
        (201, {"id": "b", "metadata": eight}),
        (413, {"id": "c", "metadata": {}}),
        (413, {"id": "b", "metadata": {"x": "1"}}),
        (200, {"id": "a", "metadata": eight}),
        (200, {"id": "b", "metadata": ten}),
    ]:
        assert (await call(small, "POST", "/storage/small", body, role="user")).status_code == status, body


async def store_from(product: Product, address: str, project: str, metadata: Any) -> int:
    """The status of storing a value without a token."""
    transport = httpx.ASGITransport(product.app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as door:
        return (await door.post(f"/storage/{project}", json={"metadata": metadata})).status_code


@pytest.mark.parametrize(
    ("quota", "metadata"),
    [({"storage_project_values": 80}, {}), ({"storage_project_bytes": 80 * 8}, {"x": ""})],
)
async def test_callers_without_a_token_leave_room(
    product: Product, quota: dict[str, int], metadata: dict[str, str]
) -> None:
    """One address takes a tenth of their half, all of them together take the half."""
    small, project = product.with_settings(**quota), f"shared-{len(metadata)}"
    await make_project(product, project)
    for number in range(10):
        address = f"192.0.2.{number}"
        assert [await store_from(small, address, project, metadata) for _ in range(5)] == [201] * 4 + [413]
    assert await store_from(small, "192.0.2.10", project, metadata) == 413
    for _ in range(40):
        answer = await call(small, "POST", f"/storage/{project}", {"metadata": metadata}, role="client")
        assert answer.status_code == 201
    answer = await call(small, "POST", f"/storage/{project}", {"metadata": metadata}, role="admin")
    assert answer.status_code == 413


async def test_a_deleted_value_leaves_its_room(product: Product) -> None:
    small = product.with_settings(storage_project_values=20)
    await make_project(product, "own")
    assert await store_from(small, "192.0.2.1", "own", {}) == 201
    assert await store_from(small, "192.0.2.1", "own", {}) == 413
    async with product.services.database.connection() as connection:
        id_ = await connection.fetchval("SELECT id FROM stored_values WHERE project_id = 'own'")
    path = f"/storage/own/{id_}"
    for role, status in ((None, 401), ("client", 403), ("user", 403), ("producer", 204), ("producer", 404)):
        assert (await call(product, "DELETE", path, role=role)).status_code == status
    assert (await call(product, "GET", path)).status_code == 404
    assert (await call(product, "DELETE", "/storage/show/a", role="producer")).status_code == 404
    assert await store_from(small, "192.0.2.1", "own", {}) == 201
    async with product.services.database.connection() as connection:
        rows = await connection.fetch("SELECT * FROM stored_values WHERE project_id = 'own'")
    assert "192.0.2.1" not in repr(rows)


async def test_a_deleted_id_is_free(product: Product) -> None:
    await call(product, "POST", "/storage/show", {"id": "again", "metadata": {"n": 1}})
    assert (await call(product, "DELETE", "/storage/show/again", role="admin")).status_code == 204
    assert (await call(product, "DELETE", "/storage/show/again", role="admin")).status_code == 404
    answer = await call(product, "POST", "/storage/show", {"id": "again", "metadata": {"n": 2}})
    assert answer.status_code == 201
    assert (await call(product, "GET", "/storage/show/again")).json()["metadata"] == {"n": 2}


async def test_quota_holds_when_many_store_at_once(product: Product) -> None:
    small = product.with_settings(storage_project_values=5)
    await make_project(product, "crowded")
    work = (call(small, "POST", "/storage/crowded", {"metadata": {}}, role="client") for _ in range(20))
    statuses = [answer.status_code for answer in await asyncio.gather(*work)]
    assert (statuses.count(201), statuses.count(413)) == (5, 15)


async def test_only_one_of_many_adds_an_id(product: Product) -> None:
    work = (
        call(product, "POST", "/storage/show", {"id": "race", "metadata": {"n": number}})
        for number in range(10)
    )
    statuses = [answer.status_code for answer in await asyncio.gather(*work)]
    assert (statuses.count(201), statuses.count(409)) == (1, 9)


async def test_values_that_are_stored_and_read_together_stay_apart(product: Product) -> None:
    """A group goes to the database as joined text; nothing in a value may end it early."""
    texts = ["", "\x1f", "\\x1f", "NULL", "null", '","', "{}", "a,b", "\\", "\n\t", "é€😀", "'", "\x7f"]
    values = {f"odd-{number}": {text: [text, None]} for number, text in enumerate(texts)}
    made = await asyncio.gather(
        *(
            call(product, "POST", "/storage/show", {"id": id_, "metadata": metadata})
            for id_, metadata in values.items()
        )
    )
    assert {answer.status_code for answer in made} == {201}
    read = await asyncio.gather(*(call(product, "GET", f"/storage/show/{id_}") for id_ in values))
    assert {answer.json()["id"]: answer.json()["metadata"] for answer in read} == values
    assert [answer.json() for answer in read] == [answer.json() for answer in made]


async def test_of_many_at_once_the_last_call_wins(product: Product) -> None:
    values, time_ms = product.services.stored_values, product.clock.now_ms()
    quota = Quota(1_000, 1 << 20)

    async def store(number: int) -> Any:
        value = NewValue("show", "contested", b'{"n":%d}' % number, time_ms)
        return await values.store("demo", value, quota, anonymous_caller=None, alone=False)

    outcomes = await asyncio.gather(*map(store, range(20)))
    assert outcomes == [StoreOutcome.CREATED, *[StoreOutcome.REPLACED] * 19]
    assert (await call(product, "GET", "/storage/show/contested")).json()["metadata"] == {"n": 19}


async def test_many_projects_are_stored_to_by_many_processes(product: Product, module_dsn: str) -> None:
    """In opposite orders, which must not make them wait for each other."""
    projects = [f"side-{number}" for number in range(6)]
    for project in projects:
        await make_project(product, project)
    other = await Database.open(module_dsn, size=2, timeout_s=5)
    time_ms, quota = product.clock.now_ms(), Quota(1_000, 1 << 20)
    try:
        stores = (product.services.stored_values, StoredValues(other))
        for turn in range(20):
            work = [
                values.store(
                    "demo",
                    NewValue(project, f"{turn}", b"{}", time_ms),
                    quota,
                    anonymous_caller=None,
                    alone=False,
                )
                for values, names in zip(stores, (projects, projects[::-1]), strict=True)
                for project in names
            ]
            outcomes = await asyncio.gather(*work)
            assert sorted(outcomes) == ["created"] * 6 + ["replaced"] * 6
    finally:
        await other.close()


async def test_same_key_stores_once(product: Product) -> None:
    key = {"Idempotency-Key": "stored"}
    first = await call(product, "POST", "/storage/show", {"metadata": {"k": 1}}, role="user", **key)
    again = await call(product, "POST", "/storage/show", {"metadata": {"k": 1}}, role="user", **key)
    assert (again.json(), again.headers["location"]) == (first.json(), first.headers["location"])
    other = await call(product, "POST", "/storage/show", {"metadata": {"k": 2}}, role="user", **key)
    assert other.status_code == 409


async def test_a_key_whose_value_was_refused_stays_free(product: Product) -> None:
    key = {"Idempotency-Key": "refused"}
    body = {"id": "x", "metadata": {}}
    assert (await call(product, "POST", "/storage/tardy", body, role="user", **key)).status_code == 404
    await make_project(product, "tardy")
    assert (await call(product, "POST", "/storage/tardy", body, role="user", **key)).status_code == 201


async def test_values_go_with_their_project(product: Product) -> None:
    await make_project(product, "brief")
    await call(product, "POST", "/storage/brief", {"id": "x", "metadata": {}})
    await call(product, "DELETE", "/projects/brief", role="admin")
    await make_project(product, "brief")
    assert (await call(product, "GET", "/storage/brief/x")).status_code == 404


async def test_adding_without_a_token_is_slowed(postgres_dsn: str) -> None:
    async with open_product(
        postgres_dsn, storage_rate_per_address=0.5, storage_burst_per_address=2
    ) as product:
        await make_project(product, "show")
        for _ in range(2):
            assert (await call(product, "POST", "/storage/show", {"metadata": {}})).status_code == 201
        answer = await call(product, "POST", "/storage/show", {"metadata": {}})
        assert (answer.status_code, answer.json()["error"]) == (429, "slow_down")
        assert answer.headers["retry-after"] == "2"
        assert (await call(product, "POST", "/storage/show", {"metadata": {}}, role="client")).is_success
        assert (await call(product, "GET", "/storage/show/x")).status_code == 404
        product.clock.forward_ms += 2_000
        assert (await call(product, "POST", "/storage/show", {"metadata": {}})).status_code == 201


async def test_values_survive_a_restart(postgres_dsn: str) -> None:
    async with open_product(postgres_dsn) as product:
        await make_project(product, "show")
        stored = await call(product, "POST", "/storage/show", {"id": "x", "metadata": {"a": 1}})
    database = await Database.open(postgres_dsn, size=1, timeout_s=5)
    try:
        value = await StoredValues(database).find("demo", "show", "x")
    finally:
        await database.close()
    assert value == stored.content


async def test_only_what_was_replaced_is_purged(product: Product) -> None:
    await make_project(product, "old")
    values, clock = product.services.stored_values, product.clock
    before_ms = clock.now_ms()
    for item in ("a", "a", "b"):
        await call(product, "POST", "/storage/old", {"id": item, "metadata": {}}, role="user")
    assert [row.value[:9] for row in await values.after("demo", "old", 0, 9)] == [b'{"id":"a"'] * 2 + [
        b'{"id":"b"'
    ]
    await values.purge(before_ms - 1, 1_000)
    assert len(await values.after("demo", "old", 0, 9)) == 3
    while await values.purge(clock.now_ms() + 1, 1):
        continue
    assert len(await values.after("demo", "old", 0, 9)) == 2
    assert (await call(product, "GET", "/storage/old/a")).status_code == 200
