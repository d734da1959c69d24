"""Programs over HTTP: their fields, life and changes."""

import asyncio
from typing import Any

import httpx
import pytest

from broker.storage.programs import Programs
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


def fields(answer: httpx.Response) -> list[str]:
    """The fields at fault."""
    return [fault["field"] for fault in answer.json()["errors"]]


async def create(product: Product, role: str = "admin", **body: Any) -> httpx.Response:
    async with product.door(role) as door:
        return await door.post("/programs", json=body)


# -- create


async def test_create_answers_the_resource_and_where_it_is(product: Product) -> None:
    answer = await create(
        product, id="made", name="A", scheduledStartTime="2026-01-01T10:00:00+02:00", metadata={"a": [1]}
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/programs/made"
    body = answer.json()
    created = body.pop("createdTime")
    assert body.pop("updatedTime") == created
    assert body == {
        "id": "made",
        "name": "A",
        "scheduledStartTime": "2026-01-01T08:00:00.000Z",
        "scheduledEndTime": None,
        "projectId": None,
        "access": "public",
        "metadata": {"a": [1]},
        "live": False,
    }
    async with product.door() as door:
        read = await door.get("/programs/made")
    assert read.status_code == 200
    assert read.json() == answer.json()


@pytest.mark.parametrize("word", ["undefined", "undefiend"])
async def test_a_word_for_no_project_is_no_project(product: Product, word: str) -> None:
    answer = await create(product, id=f"in-{word}", name="A", projectId=word)
    assert (answer.status_code, fields(answer)) == (400, ["projectId"])
    made = await product.make_program(f"to-{word}", metadata={"a": 1})
    answer = await update(product, made["id"], id=made["id"], **FULL, projectId=word)
    assert (answer.status_code, fields(answer)) == (400, ["projectId"])


async def test_a_program_that_is_stored_with_such_a_word_goes_on(product: Product) -> None:
    await product.make_program("stored")
    async with product.services.database.connection() as connection:
        await connection.execute("UPDATE programs SET project_id = 'undefined' WHERE id = 'stored'")
    product.services.programs.forget("demo", "stored")
    answer = await update(product, "stored", id="stored", **FULL, projectId="undefined")
    assert (answer.status_code, answer.json()["projectId"]) == (200, "undefined")
    answer = await update(product, "stored", id="stored", **FULL, projectId=None)
    assert (answer.status_code, answer.json()["projectId"]) == (200, None)


async def test_null_is_absent_on_create(product: Product) -> None:
    body = {"scheduledStartTime": None, "projectId": None, "access": None, "metadata": None}
    answer = await create(product, id="nulls", name="A", **body)
    assert answer.status_code == 201
    assert answer.json()["access"] == "public"


@pytest.mark.parametrize(
    "body",
    [
        {"id": "x" * 128},
        {"id": "A-Z.a_z~0:9"},
        {"id": "1", "name": "x" * 1000},
        {"id": "2", "scheduledStartTime": "2026-01-01", "scheduledEndTime": "2026-01-01"},
        {"id": "3", "scheduledEndTime": "2026-01-01T00:00:00Z"},
        {"id": "4", "metadata": {"n": 2**53, "m": -(2**53), "deep": [[[]]], "": "\x00"}},
        {"id": "5", "scheduledStartTime": "2026-01-01T00:00:00.123456Z"},
    ],
)
async def test_fields_at_their_edge_are_taken(product: Product, body: dict[str, Any]) -> None:
    answer = await create(product, **{"name": "x"} | body)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": "é"}, "id"),
        ({"id": 7}, "id"),
        ({"id": None}, "id"),
        ({"id": "filter"}, "id"),
        ({"id": ".."}, "id"),
        ({"name": ""}, "name"),
        ({"name": "x" * 1001}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": 5}, "name"),
        ({"scheduledStartTime": 5}, "scheduledStartTime"),
        ({"scheduledStartTime": "soon"}, "scheduledStartTime"),
        ({"scheduledEndTime": "2026-13-01"}, "scheduledEndTime"),
        ({"scheduledStartTime": "2026-01-02", "scheduledEndTime": "2026-01-01"}, "scheduledEndTime"),
        ({"projectId": "a b"}, "projectId"),
        ({"access": "secret"}, "access"),
        ({"metadata": []}, "metadata"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"a": [{"n": 2**53 + 1}]}}, "metadata.a[0].n"),
        ({"live": True}, "live"),
        ({"createdTime": "2026-01-01"}, "createdTime"),
        ({"bogus": 1}, "bogus"),
        ({"scheduled_start_time": "2026-01-01"}, "scheduled_start_time"),
    ],
)
async def test_bad_fields_are_named(product: Product, body: dict[str, Any], field: str) -> None:
    answer = await create(product, **{"id": "bad", "name": "x"} | body)
    assert answer.status_code == 400
    assert fields(answer) == [field]
    async with product.door() as door:
        assert (await door.get("/programs/bad")).status_code == 404


async def test_metadata_that_is_nested_too_deeply_is_refused(product: Product) -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    answer = await create(product, id="deep", name="x", metadata=deep)
    assert answer.status_code == 400
    assert fields(answer) == ["metadata"]


async def test_an_id_is_taken_once(product: Product) -> None:
    answers = await asyncio.gather(*(create(product, id="taken", name=str(n)) for n in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    assert next(a for a in answers if a.status_code == 409).json()["error"] == "conflict"


async def test_a_new_program_is_announced(product: Product) -> None:
    product.owners.nudged.clear()
    await product.make_program("announced")
    assert product.owners.nudged == ["demo"]


# -- idempotency keys


async def keyed(product: Product, key: str, role: str = "admin", **body: Any) -> httpx.Response:
    async with product.door(role) as door:
        return await door.post("/programs", json=body, headers={"Idempotency-Key": key})


async def test_a_key_brings_the_first_result_back(product: Product) -> None:
    first = await keyed(product, "k1", id="once", name="A")
    again = await keyed(product, "k1", name="A", id="once")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["location"] == first.headers["location"]


async def test_a_key_is_for_one_request(product: Product) -> None:
    await keyed(product, "k2", id="k2", name="A")
    answer = await keyed(product, "k2", id="k2", name="B")
    assert answer.status_code == 409
    assert answer.json()["error"] == "conflict"


async def test_a_key_belongs_to_its_caller(product: Product) -> None:
    await keyed(product, "k3", id="k3", name="A")
    answer = await keyed(product, "k3", "producer", id="k3-producer", name="A")
    assert answer.status_code == 201


async def test_a_key_ends_after_24_hours(product: Product) -> None:
    """By the database's clock, which all processes share."""
    await keyed(product, "k4", id="k4", name="A")
    product.clock.forward_ms += 48 * 3_600_000
    assert (await keyed(product, "k4", id="k4", name="A")).status_code == 201
    async with product.services.database.connection() as connection:
        age = "UPDATE idempotency_keys SET created_time = created_time - interval '{}' WHERE key = 'k4'"
        await connection.execute(age.format("23 hours 59 minutes"))
        assert (await keyed(product, "k4", id="k4", name="A")).status_code == 201
        await connection.execute(age.format("2 minutes"))
    assert (
        await keyed(product, "k4", id="k4", name="A")
    ).status_code == 409  # does it again: the id is taken
    assert (await keyed(product, "k4", id="k4-other", name="B")).status_code == 201


async def test_two_requests_at_once_with_one_key_have_one_effect(product: Product) -> None:
    answers = await asyncio.gather(*(keyed(product, "k5", id="k5", name="A") for _ in range(6)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1


async def test_a_request_that_failed_leaves_its_key_free(product: Product) -> None:
    await product.make_program("k6")
    assert (await keyed(product, "k6", id="k6", name="A")).status_code == 409
    async with product.door() as door:
        await door.delete("/programs/k6")
    assert (await keyed(product, "k6", id="k6", name="A")).status_code == 201


@pytest.mark.parametrize(("key", "status"), [("x", 201), ("x" * 255, 201), ("x" * 256, 400), ("", 400)])
async def test_keys_have_a_length(product: Product, key: str, status: int) -> None:
    answer = await keyed(product, key, id=f"key-{len(key)}", name="A")
    assert answer.status_code == status
    if status == 400:
        assert fields(answer) == ["Idempotency-Key"]


async def test_users_are_made_once_a_key_too(product: Product) -> None:
    body = {"username": "keyed", "password": "correct horse", "role": "user"}

    async def make(**changes: str) -> httpx.Response:
        async with product.door() as door:
            return await door.post("/users", json=body | changes, headers={"Idempotency-Key": "user"})

    first, second = await asyncio.gather(make(), make())
    assert first.status_code == 201
    assert first.content == second.content
    assert first.headers["location"] == f"/api/v1/users/{first.json()['id']}" == second.headers["location"]
    assert (await make(username="other")).status_code == 409


# -- update


FULL = {"name": "N", "scheduledStartTime": None, "scheduledEndTime": None}


async def update(product: Product, program_id: str, **body: Any) -> httpx.Response:
    async with product.door() as door:
        return await door.put(f"/programs/{program_id}", json=body)


async def test_update_stores_and_keeps_what_is_absent(product: Product) -> None:
    before = await product.make_program("upd", projectId="own", access="private", metadata={"a": 1})
    product.clock.forward_ms += 5
    answer = await update(
        product,
        "upd",
        id="upd",
        name="New",
        scheduledStartTime="2026-01-01",
        scheduledEndTime="2026-01-02",
    )
    assert answer.status_code == 200
    body = answer.json()
    assert body["name"] == "New"
    assert body["scheduledEndTime"] == "2026-01-02T00:00:00.000Z"
    assert (body["projectId"], body["access"], body["metadata"]) == ("own", "private", {"a": 1})
    assert body["createdTime"] == before["createdTime"]
    assert body["updatedTime"] > before["updatedTime"]
    async with product.door() as door:
        assert (await door.get("/programs/upd")).json() == body


async def test_null_clears(product: Product) -> None:
    await product.make_program(
        "clear", projectId="own", access="private", metadata={"a": 1}, scheduledEndTime="2026-01-01"
    )
    answer = await update(product, "clear", id="clear", **FULL, projectId=None, access=None, metadata=None)
    body = answer.json()
    assert [body[name] for name in ("projectId", "access", "metadata", "scheduledEndTime")] == [
        None,
        "public",
        None,
        None,
    ]


@pytest.mark.parametrize("name", ["id", "name", "scheduledStartTime", "scheduledEndTime"])
async def test_update_needs_all_of_its_fields(product: Product, name: str) -> None:
    await ensure(product, "needs")
    body = {"id": "needs", **FULL}
    del body[name]
    answer = await update(product, "needs", **body)
    assert answer.status_code == 400
    assert fields(answer) == [name]


async def ensure(product: Product, program_id: str) -> None:
    await create(product, id=program_id, name=program_id)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "elsewhere"}, "id"),
        ({"programId": "elsewhere"}, "programId"),
        ({"name": None}, "name"),
        ({"bogus": 1}, "bogus"),
        ({"scheduledStartTime": "2026-01-02", "scheduledEndTime": "2026-01-01"}, "scheduledEndTime"),
        ({"metadata": {"n": 2**60}}, "metadata.n"),
    ],
)
async def test_bad_changes_are_named(product: Product, change: dict[str, Any], field: str) -> None:
    await ensure(product, "needs")
    answer = await update(product, "needs", **{"id": "needs", **FULL} | change)
    assert answer.status_code == 400
    assert fields(answer) == [field]


async def test_what_was_read_can_be_sent_back(product: Product) -> None:
    program = await product.make_program("back", metadata={"a": 1})
    answer = await update(product, "back", **program | {"name": "Changed"})
    assert answer.status_code == 200
    assert answer.json()["name"] == "Changed"


async def test_an_unknown_program_cannot_be_changed(product: Product) -> None:
    assert (await update(product, "none", id="none", **FULL)).status_code == 404


# -- delete


async def test_delete_takes_the_program_and_its_events(product: Product) -> None:
    await product.make_program("gone")
    first = (await product.publish("gone", {"event": "A#b"}))[0]
    async with product.door() as door:
        answer = await door.delete("/programs/gone")
        assert answer.status_code == 204
        assert answer.content == b""
        assert (await door.get("/programs/gone")).status_code == 404
        assert (await door.get("/programs/gone/events")).status_code == 404
        assert (await door.delete("/programs/gone")).status_code == 404
        await product.make_program("gone")
        assert (await door.get("/programs/gone/events")).json() == []
        again = (await product.publish("gone", {"event": "A#b"}))[0]
    assert again["seq"] == 1
    assert again["epoch"] != first["epoch"]


# -- live, lastUpdate


async def test_a_program_is_live_from_start_to_end(product: Product) -> None:
    now_ms = product.clock.now_ms()

    def at(offset_s: int) -> str:
        from broker.clock import to_datetime
        from broker.domain.values import format_time

        return format_time(to_datetime(now_ms + offset_s * 1000))

    for name, start, end, live in (
        ("l1", at(-60), at(60), True),
        ("l2", at(60), at(120), False),
        ("l3", at(-60), at(-1), False),
        ("l4", at(-60), None, False),
        ("l5", None, at(60), False),
    ):
        made = await product.make_program(name, scheduledStartTime=start, scheduledEndTime=end)
        assert made["live"] is live, name


async def test_last_update(product: Product) -> None:
    await product.make_program("last")
    async with product.door("client") as door:
        empty = (await door.get("/programs/last/lastUpdate")).json()
        assert (await door.get("/programs/none/lastUpdate")).status_code == 404
        events = await product.publish("last", {"event": "A#b"}, {"event": "A#c"})
        after = (await door.get("/programs/last/lastUpdate")).json()
    assert empty == {"programId": "last", "timestamp": None, "seq": 0, "epoch": events[0]["epoch"]}
    assert after["seq"] == 2
    assert abs(after["timestamp"] - product.clock.now_ms()) < 5000


# -- lists


async def test_the_list_has_what_has_not_ended_newest_first(product: Product) -> None:
    await product.make_program("open-1", account="other")
    product.clock.forward_ms += 1000
    await product.make_program("open-2", account="other", scheduledEndTime="2999-01-01")
    await product.make_program("ended", account="other", scheduledEndTime="2020-01-01")
    async with product.door(account="other") as door:
        listed = (await door.get("/programs")).json()
    assert [program["id"] for program in listed] == ["open-2", "open-1"]
    assert listed[0].keys() >= {"id", "createdTime", "name", "scheduledStartTime", "scheduledEndTime"}


async def test_recall_sees_changes_of_its_own_process_at_once(product: Product) -> None:
    programs: Programs = product.services.programs
    await product.make_program("recalled")
    assert (await programs.recall("demo", "recalled")) is not None
    await update(product, "recalled", id="recalled", **FULL, projectId="elsewhere")
    recalled = await programs.recall("demo", "recalled")
    assert recalled is not None
    assert recalled.project_id == "elsewhere"
    assert await programs.recall("demo", "never") is None


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-W05-6", "2026-01-31T00:00:00.000Z"),
        ("2026-031", "2026-01-31T00:00:00.000Z"),
        ("2026031", "2026-01-31T00:00:00.000Z"),
        ("2024-366T23:30:00-01:00", "2025-01-01T00:30:00.000Z"),
        ("2026-01-31t10:00:00.5z", "2026-01-31T10:00:00.500Z"),
        ("2026-000", None),
        ("2026-366", None),
        ("9999-366", None),
        ("0000-001", None),
        ("2026-0311", None),
        ("2026-031\n", None),
    ],
)
async def test_every_form_of_a_date_is_read(product: Product, sent: str, read: str | None) -> None:
    async with product.door() as door:
        await door.post("/programs", json={"id": "dated", "name": "A"})
        times = {"scheduledStartTime": sent, "scheduledEndTime": "9999-01-01"}
        answer = await door.put("/programs/dated", json={"id": "dated", "name": "A"} | times)
    if read is None:
        assert (answer.status_code, fields(answer)) == (400, ["scheduledStartTime"])
    else:
        assert (answer.status_code, answer.json()["scheduledStartTime"]) == (200, read)
