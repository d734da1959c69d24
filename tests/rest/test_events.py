"""Program events over HTTP: publish, read, change, delete."""

import asyncio
import re
from typing import Any

import httpx
import orjson
import pytest

from broker.errors import Unavailable
from broker.storage.events import ListPlace, StoredPage
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def fields(answer: httpx.Response) -> list[str]:
    """The fields at fault."""
    return [fault["field"] for fault in answer.json()["errors"]]


@pytest.fixture(scope="module", autouse=True)
async def program(product: Product) -> None:
    await product.make_program("p")


async def publish(product: Product, body: Any, program_id: str = "p", **headers: str) -> httpx.Response:
    async with product.door("producer") as door:
        return await door.post(f"/programs/{program_id}/events", json=body, headers=headers)


async def listed(product: Product, path: str) -> Any:
    async with product.door() as door:
        answer = await door.get(f"/programs/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- publish


async def test_one_event(product: Product) -> None:
    await product.make_program("one")
    answer = await publish(product, {"event": "Score#update", "metadata": {"é": "ü"}}, "one")
    assert answer.status_code == 201
    body = answer.json()
    assert list(body) == [
        "seq",
        "epoch",
        "id",
        "programId",
        "createdTime",
        "timestamp",
        "timecode",
        "event",
        "metadata",
    ]
    assert body["seq"] == 1
    assert body["programId"] == "one"
    assert body["metadata"] == {"é": "ü"}
    assert body["timecode"] == body["timestamp"]
    assert abs(body["timestamp"] - product.clock.now_ms()) < 5000
    assert UUID7.fullmatch(body["id"])
    assert answer.headers["location"] == f"/api/v1/programs/one/events/{body['id']}"
    async with product.door() as door:
        read = await door.get(f"/programs/one/events/{body['id']}")
        listed = await door.get("/programs/one/events")
    assert read.content == answer.content
    assert listed.content == b"[" + answer.content + b"]"


async def test_absent_times(product: Product) -> None:
    assert (await publish(product, {"event": "A#b", "timestamp": 5})).json()["timecode"] == 5
    body = (await publish(product, {"event": "A#b", "timestamp": 5, "timecode": 7})).json()
    assert (body["timestamp"], body["timecode"]) == (5, 7)
    body = (await publish(product, {"event": "A#b", "timestamp": None, "timecode": 7})).json()
    assert body["timecode"] == 7
    assert body["timestamp"] > 7


async def test_a_batch_is_contiguous_and_in_order(product: Product) -> None:
    await product.make_program("batch")
    batch = {"events": [{"event": f"A#n{n}"} for n in range(5)]}
    answers = await asyncio.gather(*(publish(product, batch, "batch") for _ in range(4)))
    for answer in answers:
        assert answer.status_code == 201
        assert "location" not in answer.headers
        events = answer.json()["events"]
        assert [event["event"] for event in events] == ["A#n0", "A#n1", "A#n2", "A#n3", "A#n4"]
        first = events[0]["seq"]
        assert [event["seq"] for event in events] == list(range(first, first + 5))
    seqs = [event["seq"] for event in await listed(product, "batch/events")]
    assert sorted(seqs) == list(range(1, 21))


@pytest.mark.parametrize(
    "event",
    [
        {"event": "A#b"},
        {"event": "A1._-#b1._-"},
        {"event": "C" * 99 + "#" + "a" * 100},
        {"timestamp": 2**53},
        {"timestamp": -(2**53)},
        {"timecode": 0},
        {"metadata": {}},
        {"metadata": None},
        {"metadata": {"x": "y" * (65536 - 8)}},
        {"metadata": {"n": 2**53, "f": 1.5, "z": None, "nul": "\x00"}},
    ],
)
@pytest.mark.parametrize("batch", [False, True])
async def test_events_at_their_edge_are_taken(product: Product, event: dict[str, Any], batch: bool) -> None:
    event = {"event": "A#b"} | event
    answer = await publish(product, {"events": [event]} if batch else event)
    assert answer.status_code == 201, answer.text
    made = answer.json()["events"][0] if batch else answer.json()
    assert made["metadata"] == (event.get("metadata") or {})


@pytest.mark.parametrize(
    ("event", "field", "status"),
    [
        ({"event": "A#"}, "event", 400),
        ({"event": "#b"}, "event", 400),
        ({"event": "A"}, "event", 400),
        ({"event": "A#b#c"}, "event", 400),
        ({"event": "1A#b"}, "event", 400),
        ({"event": "A#1"}, "event", 400),
        ({"event": "A #b"}, "event", 400),
        ({"event": "É#b"}, "event", 400),
        ({"event": "A#b\n"}, "event", 400),
        ({"event": "C" * 99 + "#" + "a" * 101}, "event", 400),
        ({"event": 5}, "event", 400),
        ({"event": None}, "event", 400),
        ({"timestamp": 2**53 + 1}, "timestamp", 400),
        ({"timestamp": 1.5}, "timestamp", 400),
        ({"timestamp": "5"}, "timestamp", 400),
        ({"timestamp": True}, "timestamp", 400),
        ({"timecode": -(2**53) - 1}, "timecode", 400),
        ({"metadata": []}, "metadata", 400),
        ({"metadata": {"n": 2**53 + 1}}, "metadata.n", 400),
        ({"metadata": {"x": "y" * (65536 - 7)}}, "metadata", 413),
        ({"bogus": 1}, "bogus", 400),
        ({"id": "x"}, "id", 400),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
async def test_bad_events_are_named(
    product: Product, event: dict[str, Any], field: str, status: int, batch: bool
) -> None:
    await ensure(product, "refused")
    event = {"event": "A#b"} | event
    answer = await publish(product, {"events": [{"event": "A#b"}, event]} if batch else event, "refused")
    assert answer.status_code == status
    assert fields(answer) == [f"events[1].{field}" if batch else field]
    assert await listed(product, "refused/events") == []


async def ensure(product: Product, program_id: str) -> None:
    async with product.door() as door:
        await door.post("/programs", json={"id": program_id, "name": program_id})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "event"),
        ({"metadata": {}}, "event"),
        ({"events": None}, "event"),
        ({"events": []}, "events"),
        ({"events": {}}, "events"),
        ({"events": [1]}, "events[0]"),
        ({"event": "A#b", "events": [{"event": "A#b"}]}, "event"),
        ({"metadata": {}, "events": [{"event": "A#b"}]}, "metadata"),
        ({"timestamp": 1, "events": [{"event": "A#b"}]}, "timestamp"),
        ({"event": "A#b", "programId": "q"}, "programId"),
    ],
)
async def test_a_publish_is_one_event_or_a_batch(product: Product, body: Any, field: str) -> None:
    answer = await publish(product, body)
    assert answer.status_code == 400
    assert fields(answer) == [field]


async def test_a_batch_has_a_largest_number(product: Product) -> None:
    small = product.with_settings(batch_limit_events=3)
    for count, status in ((2, 201), (3, 201), (4, 413)):
        answer = await publish(small, {"events": [{"event": "A#b"}] * count})
        assert answer.status_code == status
    assert fields(answer) == ["events"]


async def test_an_unknown_program(product: Product) -> None:
    for role in ("admin", "producer"):
        async with product.door(role) as door:
            assert (await door.post("/programs/none/events", json={"event": "A#b"})).status_code == 404


# -- idempotency keys


async def test_a_retry_does_not_double(product: Product) -> None:
    await product.make_program("retry")
    body = {"event": "A#b", "metadata": {"n": 1}}
    answers = await asyncio.gather(
        *(publish(product, body, "retry", **{"Idempotency-Key": "r"}) for _ in range(5))
    )
    answers.append(await publish(product, body, "retry", **{"Idempotency-Key": "r"}))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert answers[0].headers["location"].endswith(answers[0].json()["id"])
    assert len(await listed(product, "retry/events")) == 1


async def test_a_key_with_another_body_is_a_conflict(product: Product) -> None:
    await publish(product, {"event": "A#b"}, **{"Idempotency-Key": "c"})
    answer = await publish(product, {"event": "A#c"}, **{"Idempotency-Key": "c"})
    assert answer.status_code == 409
    assert answer.json()["error"] == "conflict"


async def test_a_key_with_another_program_is_a_conflict(product: Product) -> None:
    await product.make_program("key-elsewhere")
    await publish(product, {"event": "A#b"}, **{"Idempotency-Key": "d"})
    answer = await publish(product, {"event": "A#b"}, "key-elsewhere", **{"Idempotency-Key": "d"})
    assert answer.status_code == 409


# -- list


@pytest.fixture(scope="module")
async def timed(product: Product) -> str:
    """A program with events at timecodes 30, 10, 20, 20."""
    await product.make_program("timed")
    await product.publish(
        "timed", *({"event": f"T#n{n}", "timecode": n, "timestamp": 1} for n in (30, 10, 20, 20))
    )
    return "timed"


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("", [2, 3, 4, 1]),
        ("?from=20", [3, 4, 1]),
        ("?from=21", [1]),
        ("?to=20", [2, 3, 4]),
        ("?to=19", [2]),
        ("?from=20&to=20", [3, 4]),
        ("?from=31", []),
        ("?to=9", []),
        ("?from=-9007199254740992&to=9007199254740992", [2, 3, 4, 1]),
        ("?from=31&includeCreated=true", [2, 3, 4, 1]),
        ("?from=31&includeCreated=false", []),
        ("?to=9&includeCreated=true", []),
        ("?includeCreated=true", [2, 3, 4, 1]),
    ],
)
async def test_ranges(product: Product, timed: str, query: str, seqs: list[int]) -> None:
    assert [event["seq"] for event in await listed(product, f"{timed}/events{query}")] == seqs


async def test_creation_counts_to_the_millisecond(product: Product, timed: str) -> None:
    from broker.clock import to_ms
    from broker.domain.values import parse_time

    event = (await listed(product, f"{timed}/events"))[0]
    created = to_ms(parse_time(event["createdTime"]))
    for query, count in (
        (f"?from={created}&to={created}&includeCreated=true", 4),
        (f"?from={created + 1}&includeCreated=true", 0),
        (f"?from=31&to={created - 1}&includeCreated=true", 0),
    ):
        assert len(await listed(product, f"{timed}/events{query}")) == count, query


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?from=x", "from"),
        ("?to=1.5", "to"),
        ("?from=9007199254740993", "from"),
        ("?from=2&to=1", "to"),
        ("?includeCreated=1", "includeCreated"),
        ("?bogus=1", "bogus"),
    ],
)
async def test_bad_ranges_are_named(product: Product, query: str, field: str) -> None:
    async with product.door() as door:
        answer = await door.get(f"/programs/p/events{query}")
    assert answer.status_code == 400
    assert fields(answer) == [field]


async def test_cache_headers_come_with_to(product: Product) -> None:
    await product.make_program("private", access="private")
    now = product.clock.now_ms()
    async with product.door() as door:
        for path, expected in (
            ("p/events", "no-store"),
            ("p/events?from=1", "no-store"),
            (f"p/events?to={now - 61_000}", "public, max-age=3600"),
            (f"p/events?to={now - 58_000}", "public, max-age=2"),
            (f"p/events?to={now + 60_000}", "public, max-age=2"),
            ("private/events?to=5", "private, max-age=3600"),
            (f"private/events?to={now}", "private, max-age=2"),
        ):
            assert (await door.get(f"/programs/{path}")).headers["cache-control"] == expected, path


async def test_a_long_list_comes_in_parts_and_frees_its_connection(product: Product) -> None:
    await product.make_program("long")
    await product.publish("long", *({"event": "A#b", "timecode": n} for n in range(1000)))
    many = await asyncio.gather(*(listed(product, "long/events") for _ in range(6)))
    for events in many:
        assert [event["seq"] for event in events] == list(range(1, 1001))


async def test_who_hangs_up_during_a_list_frees_its_connection(product: Product) -> None:
    await ensure(product, "hang")
    await product.publish("hang", *({"event": "A#b"} for _ in range(1000)))
    for _ in range(10):  # more often than the pool has connections
        sent: list[dict[str, Any]] = []
        gone = asyncio.Event()

        async def receive(gone: asyncio.Event = gone) -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any], sent: list[Any] = sent, gone: Any = gone) -> None:
            sent.append(message)
            if len(sent) == 2:
                gone.set()
                await asyncio.sleep(0)

        headers = [(b"host", b"localhost")]
        path = "/api/v1/programs/hang/events"
        await product.app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)
        assert sent[-1]["more_body"] is True  # not ended as if it were whole
    assert len(await listed(product, "hang/events")) == 1000


async def test_a_stream_that_breaks_is_not_taken_for_a_whole_one(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Any:
        yield StoredPage([b"1"], ListPlace("e", 2, 1, 1))
        yield StoredPage([b"2"], ListPlace("e", 2, 2, 2))
        raise Unavailable("the database went away")

    monkeypatch.setattr(type(product.services.events), "pages", broken)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(product.app), base_url="http://localhost/api/v1"
    ) as door:
        with pytest.raises(Unavailable):
            await door.get("/programs/p/events")


# -- filter


@pytest.fixture(scope="module")
async def filtered(product: Product) -> str:
    await product.make_program("filtered")
    await product.publish(
        "filtered",
        {"event": "Score#update", "timecode": 3, "timestamp": 30, "metadata": {"who": "Ärger"}},
        {"event": "Clock#set", "timecode": 1, "timestamp": 20, "metadata": {"text": 'the "A\\B"\n'}},
        {"event": "score#hide", "timecode": 2, "timestamp": 10},
    )
    return "filtered"


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("", [2, 3, 1]),
        ("order=desc", [1, 3, 2]),
        ("sort=seq", [1, 2, 3]),
        ("sort=seq&order=desc", [3, 2, 1]),
        ("sort=timestamp", [3, 2, 1]),
        ("sort=event", [2, 1, 3]),
        ("sort=id", [1, 2, 3]),
        ("sort=epoch", [1, 2, 3]),
        ("sort=programId&order=desc", [3, 2, 1]),
        ("sort=createdTime&order=desc", [3, 2, 1]),
        ("sort=seq&limit=1&skip=1", [2]),
        ("sort=seq&skip=3", []),
        ("sort=seq&search=SCORE", [1, 3]),
        ("sort=seq&search=%C3%A4RGER", [1]),
        ("sort=seq&search=%25", []),
        ("sort=seq&search=the%20%22a%5Cb%22%0A", [2]),
        ("sort=seq&search=%22", [1, 2]),
        ("sort=seq&search=%5C%22", [2]),
        ("sort=seq&search=%22text%22:", [2]),
        ("sort=seq&status=published", [1, 2, 3]),
        ("sort=seq&status=imported", []),
        ("sort=seq&status=imported,published", [1, 2, 3]),
    ],
)
async def test_filter(product: Product, filtered: str, query: str, seqs: list[int]) -> None:
    page = await listed(product, f"{filtered}/events/filter?{query}")
    assert [event["seq"] for event in page["items"]] == seqs


async def test_the_envelope_of_a_filter(product: Product, filtered: str) -> None:
    page = await listed(product, f"{filtered}/events/filter?limit=2&skip=2")
    assert (page["total"], page["limit"], page["skip"], len(page["items"])) == (3, 2, 2, 1)
    all_events = await listed(product, f"{filtered}/events")
    assert page["items"] == all_events[2:]
    assert await listed(product, f"{filtered}/events/filter?skip=9") == {
        "items": [],
        "total": 3,
        "limit": 100,
        "skip": 9,
    }


async def test_a_filter_by_ids(product: Product, filtered: str) -> None:
    events = await listed(product, f"{filtered}/events")
    wanted = [events[0]["id"], events[2]["id"].upper()]
    page = await listed(product, f"{filtered}/events/filter?ids={','.join(wanted)}")
    assert page["items"] == [events[0], events[2]]


@pytest.mark.parametrize(
    ("query", "field"),
    [("ids=x", "ids[0]"), ("sort=metadata", "sort"), ("status=live", "status[0]"), ("limit=0", "limit")],
)
async def test_bad_filters_are_named(product: Product, query: str, field: str) -> None:
    async with product.door() as door:
        answer = await door.get(f"/programs/p/events/filter?{query}")
    assert answer.status_code == 400
    assert fields(answer) == [field]


# -- one event


@pytest.mark.parametrize("event_id", ["x", "0" * 36, "01234567-89ab-7def-8123-456789abcdef", "a%2Fb"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_an_unknown_event(product: Product, event_id: str, method: str) -> None:
    async with product.door() as door:
        body = {"event": "A#b"} if method == "PUT" else None
        answer = await door.request(method, f"/programs/p/events/{event_id}", json=body)
    assert answer.status_code == 404


async def test_an_event_of_another_program_is_unknown(product: Product) -> None:
    await product.make_program("elsewhere")
    (event,) = await product.publish("elsewhere", {"event": "A#b"})
    async with product.door() as door:
        assert (await door.get(f"/programs/p/events/{event['id']}")).status_code == 404


async def test_update_keeps_what_is_absent_and_takes_a_seq(product: Product) -> None:
    await product.make_program("change")
    (event,) = await product.publish(
        "change", {"event": "A#b", "timestamp": 5, "timecode": 7, "metadata": {"a": 1}}
    )
    path = f"/programs/change/events/{event['id']}"
    async with product.door() as door:
        answer = await door.put(path, json={"metadata": {"a": 2}})
        assert answer.status_code == 200
        # The answer is the notification, with its seq; the stored event keeps the one of its publishing.
        assert answer.json() == event | {"metadata": {"a": 2}, "seq": 2}
        assert (await door.get(path)).json() == event | {"metadata": {"a": 2}}
        cleared = (await door.put(path, json={"metadata": None, "timecode": None})).json()
        assert (cleared["metadata"], cleared["timecode"]) == ({}, 5)
        last = (await door.get("/programs/change/lastUpdate")).json()
        renamed = await door.put(path, json=event | {"event": "A#c"})
    assert last["seq"] == 3
    assert renamed.json() == event | {"event": "A#c", "seq": 4}


@pytest.mark.parametrize(
    ("change", "field", "status"),
    [
        ({"event": None}, "event", 400),
        ({"event": "x"}, "event", 400),
        ({"timestamp": "x"}, "timestamp", 400),
        ({"id": "x"}, "id", 400),
        ({"programId": "q"}, "programId", 400),
        ({"bogus": 1}, "bogus", 400),
        ({"metadata": {"n": 2**60}}, "metadata.n", 400),
        ({"metadata": {"x": "y" * 65536}}, "metadata", 413),
    ],
)
async def test_bad_changes_are_named(
    product: Product, change: dict[str, Any], field: str, status: int
) -> None:
    (event,) = await product.publish("p", {"event": "A#b"})
    async with product.door() as door:
        answer = await door.put(f"/programs/p/events/{event['id']}", json=change)
        assert answer.status_code == status
        assert fields(answer) == [field]
        assert (await door.get(f"/programs/p/events/{event['id']}")).json() == event


async def test_delete_one(product: Product) -> None:
    await product.make_program("delete")
    first, second = await product.publish("delete", {"event": "A#b"}, {"event": "A#c"})
    path = f"/programs/delete/events/{first['id']}"
    async with product.door() as door:
        answer = await door.delete(path)
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await door.get(path)).status_code == 404
        assert (await door.delete(path)).status_code == 404
        assert (await door.get("/programs/delete/events")).json() == [second]
        assert (await door.get("/programs/delete/events/filter")).json()["total"] == 1
        assert orjson.loads((await door.get("/programs/delete/events/export")).content)["events"] == [second]


async def test_delete_all_begins_an_epoch(product: Product) -> None:
    await product.make_program("erase")
    (before, _) = await product.publish("erase", {"event": "A#b"}, {"event": "A#c"})
    async with product.door() as door:
        answer = await door.delete("/programs/erase/events")
        assert answer.status_code == 200
        assert answer.json() == {"deleted": 2}
        assert (await door.get("/programs/erase/events")).json() == []
        assert (await door.delete("/programs/erase/events")).json() == {"deleted": 0}
    (after,) = await product.publish("erase", {"event": "A#b"})
    assert after["epoch"] != before["epoch"]
