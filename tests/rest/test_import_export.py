"""Import and export of a program's events over HTTP."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import orjson
import pytest

from broker.resources import imports
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

JSON = {"Content-Type": "application/json"}


def fields(answer: httpx.Response) -> list[str]:
    """The fields at fault."""
    return [fault["field"] for fault in answer.json()["errors"]]


async def send(product: Product, program_id: str, content: Any, role: str | None = "admin") -> httpx.Response:
    if not isinstance(content, bytes | AsyncIterator):
        content = orjson.dumps(content)
    async with product.door(role) as door:
        return await door.post(f"/programs/{program_id}/events/import", content=content, headers=JSON)


async def events(product: Product, program_id: str) -> Any:
    async with product.door() as door:
        return (await door.get(f"/programs/{program_id}/events")).json()


async def staged(product: Product) -> int:
    async with product.services.database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM staged_imports"))


async def parts(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_import_replaces_all_events(product: Product) -> None:
    await product.make_program("imp")
    old = await product.publish("imp", {"event": "Old#a"}, {"event": "Old#b"})
    answer = await send(
        product,
        "imp",
        {
            "programId": "imp",
            "events": [
                {"event": "New#a", "timestamp": 5, "timecode": 50, "metadata": {"n": 1}},
                {"event": "New#b", "timestamp": 7},
                {"event": "New#c"},
            ],
        },
    )
    assert answer.status_code == 200
    body = answer.json()
    assert (body["deleted"], body["imported"]) == (2, 3)
    assert body["epoch"] != old[0]["epoch"]
    now = await events(product, "imp")
    assert [event["event"] for event in now] == ["New#b", "New#a", "New#c"]
    by_seq = sorted(now, key=lambda event: event["seq"])
    assert [event["seq"] for event in by_seq] == [1, 2, 3]
    assert by_seq[0]["metadata"] == {"n": 1}
    assert by_seq[0]["epoch"] == body["epoch"]
    assert by_seq[1]["timecode"] == 7
    assert abs(by_seq[2]["timestamp"] - product.clock.now_ms()) < 5000
    assert (await product.publish("imp", {"event": "A#b"}))[0]["seq"] == 4
    async with product.door() as door:
        page = (await door.get("/programs/imp/events/filter?status=imported")).json()
    assert page["total"] == 3
    assert await staged(product) == 0


async def test_an_export_can_be_imported(product: Product) -> None:
    await product.make_program("exp")
    await product.publish(
        "exp", *({"event": f"A#n{n}", "timestamp": n, "metadata": {"n": n}} for n in range(450))
    )
    async with product.door("client") as door:
        answer = await door.get("/programs/exp/events/export")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == 'attachment; filename="exp-events.json"'
    document = answer.json()
    assert list(document) == ["programId", "exportedTime", "events"]
    assert document["events"] == await events(product, "exp")
    assert (await send(product, "exp", answer.content)).json()["imported"] == 450
    again = await events(product, "exp")
    for before, after in zip(document["events"], again, strict=True):
        kept = ("id", "event", "timestamp", "timecode", "metadata", "seq")
        assert {name: before[name] for name in kept} == {name: after[name] for name in kept}


async def test_an_export_by_lines(product: Product) -> None:
    await product.make_program("lines")
    await product.publish("lines", {"event": "A#b"}, {"event": "A#c"})
    async with product.door() as door:
        answer = await door.get("/programs/lines/events/export", headers={"Accept": "application/x-ndjson"})
        assert (
            await door.get("/programs/lines/events/export", headers={"Accept": "text/csv"})
        ).status_code == 406
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == 'attachment; filename="lines-events.ndjson"'
    assert [orjson.loads(line) for line in answer.text.splitlines()] == await events(product, "lines")


async def test_an_export_of_nothing(product: Product) -> None:
    await product.make_program("empty:1")
    async with product.door() as door:
        answer = await door.get("/programs/empty:1/events/export")
        lines = await door.get("/programs/empty:1/events/export", headers={"Accept": "application/x-ndjson"})
    assert answer.json()["events"] == []
    assert answer.headers["content-disposition"] == 'attachment; filename="empty_1-events.json"'
    assert lines.content == b""
    assert (await send(product, "empty:1", answer.content)).json()["imported"] == 0


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({}, "events", 400),
        ({"events": None}, "events", 400),
        ({"events": {}}, "events", 400),
        ({"programId": "other", "events": []}, "programId", 400),
        ({"events": [], "programId": 5}, "programId", 400),
        ({"events": [], "bogus": 1}, "bogus", 400),
        ({"events": [{"event": "A#b"}, {"event": "bad"}]}, "events[1].event", 400),
        ({"events": [{"event": "A#b"}, 5]}, "events[1]", 400),
        ({"events": [{}]}, "events[0].event", 400),
        ({"events": [{"event": "A#b", "bogus": 1}]}, "events[0].bogus", 400),
        ({"events": [{"event": "A#b", "timestamp": 2**53 + 1}]}, "events[0].timestamp", 400),
        ({"events": [{"event": "A#b", "metadata": {"n": 2**60}}]}, "events[0].metadata.n", 400),
        ({"events": [{"event": "A#b", "metadata": {"x": "y" * 65536}}]}, "events[0].metadata", 413),
    ],
)
@pytest.mark.parametrize("pieces", [False, True])
async def test_a_fault_leaves_everything_as_it_was(
    product: Product, body: Any, field: str, status: int, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_STAGE_ROWS", 1)
    async with product.door() as door:
        await door.post("/programs", json={"id": "kept", "name": "kept"})
    before = await events(product, "kept") or await product.publish("kept", {"event": "A#b"})
    text = orjson.dumps(body)
    content = parts(text[at : at + 7] for at in range(0, len(text), 7)) if pieces else text
    answer = await send(product, "kept", content)
    assert answer.status_code == status, answer.text
    assert fields(answer) == [field]
    assert await events(product, "kept") == before
    assert await staged(product) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"events":[{"event":"A#b"}',
        b'{"events":[{"event":"A#b"}]',
        b'{"events":[{"event":"A#b"},]}',
        b'{"events":[{"event":"A#b"} {"event":"A#b"}]}',
        b'{"events":[]}x',
        b'{"events":[]}{}',
        b'{"events":[],}',
        b'{"events" []}',
        b"{events:[]}",
        b'{"a" 1}',
    ],
)
async def test_what_is_no_json_is_refused(product: Product, content: bytes) -> None:
    await ensure(product)
    answer = await send(product, "text", content)
    assert answer.status_code == 400
    assert await staged(product) == 0


async def ensure(product: Product) -> None:
    async with product.door() as door:
        await door.post("/programs", json={"id": "text", "name": "text"})


async def test_an_import_has_a_largest_number(product: Product) -> None:
    await ensure(product)
    small = product.with_settings(import_limit_events=3)
    for count, status in ((0, 200), (2, 200), (3, 200), (4, 413)):
        answer = await send(small, "text", {"events": [{"event": "A#b"}] * count})
        assert answer.status_code == status
    assert fields(answer) == ["events"]
    assert len(await events(product, "text")) == 3
    assert await staged(product) == 0


async def test_an_import_has_a_largest_size_of_its_own(product: Product) -> None:
    await ensure(product)
    text = orjson.dumps({"events": [{"event": "A#b", "metadata": {"x": "y" * 500}}] * 10})
    small = product.with_settings(body_limit_bytes=1024, import_limit_bytes=len(text))
    for content, status in ((text, 200), (text + b" ", 413), (parts([text, b" "]), 413)):
        assert (await send(small, "text", content)).status_code == status


async def test_an_element_is_no_larger_than_a_request(product: Product) -> None:
    await ensure(product)
    small = product.with_settings(body_limit_bytes=1024)
    element = b'{"event":"A#b"' + b" " * 1100 + b"}"
    answer = await send(small, "text", b'{"events":[{"event":"A#b"},' + element + b"]}")
    assert answer.status_code == 413
    assert fields(answer) == ["events[1]"]


async def test_who_may_not_is_refused_before_the_body(product: Product) -> None:
    await ensure(product)
    for role, status in (("user", 403), ("client", 403), (None, 401)):
        assert (await send(product, "text", {"events": []}, role)).status_code == status
    assert (await send(product, "none", {"events": []})).status_code == 404


async def test_a_token_may_be_the_first_member_of_the_body(product: Product) -> None:
    await ensure(product)
    token = product.tokens["admin"]
    body = {"access_token": token, "events": [{"event": "A#b"}]}
    assert (await send(product, "text", body, role=None)).json()["imported"] == 1
    text = orjson.dumps(body)
    pieces = parts([text[:9], text[9:30], text[30:]])
    assert (await send(product, "text", pieces, role=None)).json()["imported"] == 1
    assert (await send(product, "text", {"access_token": "x", "events": []}, role=None)).status_code == 401


async def test_an_import_of_many_events_in_pieces(product: Product) -> None:
    await ensure(product)
    text = orjson.dumps(
        {
            "events": [
                {"event": f"A#n{n}", "timecode": n, "metadata": {"n": n, "x": ']}\\"'}} for n in range(3000)
            ]
        }
    )
    content = parts(text[at : at + 65536] for at in range(0, len(text), 65536))
    assert (await send(product, "text", content)).json()["imported"] == 3000
    now = await events(product, "text")
    assert [event["seq"] for event in now] == list(range(1, 3001))
    assert now[2999]["event"] == "A#n2999"


async def test_who_hangs_up_during_an_import_leaves_everything_as_it_was(
    product: Product, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_STAGE_ROWS", 1)
    await ensure(product)
    (before,) = await events_after_one(product)
    element = orjson.dumps({"event": "A#b", "metadata": {"x": "y" * 60_000}})
    messages = [
        {"type": "http.request", "body": b'{"events":[' + element + b",", "more_body": True},
        {"type": "http.request", "body": element + b",", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def put(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"authorization", f"Bearer {product.tokens['admin']}".encode()),
    ]
    path = "/api/v1/programs/text/events/import"
    await product.app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, put)
    assert sent == []
    assert "operation_failed" not in caplog.text
    assert await events(product, "text") == [before]
    assert await staged(product) == 0


async def events_after_one(product: Product) -> list[Any]:
    await send(product, "text", {"events": []})
    return await product.publish("text", {"event": "A#b"})


async def test_an_import_that_was_left_behind_is_purged(product: Product) -> None:
    await ensure(product)
    async with product.services.database.connection() as connection:
        for name, age in (("old", "61 minutes"), ("new", "59 minutes")):
            await connection.execute(
                "INSERT INTO staged_imports (import_id, row_count, created_time)"
                " VALUES ($1, 1, now() - $2::text::interval)",
                name,
                age,
            )
    await send(product, "text", {"events": []})
    assert await staged(product) == 1
    await product.services.imports.drop("new")


async def test_what_was_just_imported_is_paged(product: Product) -> None:
    """The database has not counted the rows yet, and must not plan as if there were few."""
    await product.make_program("many")
    old = [{"event": "Score#update", "metadata": {"index": index}} for index in range(10_000)]
    assert (await send(product, "many", {"events": old})).json()["imported"] == len(old)
    async with product.door() as door:
        query = {"sort": "seq", "order": "desc", "limit": "1000", "skip": "3000"}
        page = (await door.get("/programs/many/events/filter", params=query)).json()
    assert page["total"] == len(old)
    assert [item["metadata"]["index"] for item in page["items"]] == list(range(6_999, 5_999, -1))
