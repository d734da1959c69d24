"""The statistics as callers see them: who may read what, the ranges, and what `ping` and `off` do."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.clock import to_ms
from broker.domain.statistics import Amount, Figures, Subject
from broker.domain.values import format_time
from broker.resources.statistics import MAX_POINTS
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PAST = datetime(2024, 2, 29, 12, tzinfo=UTC)
LIVE = {"scheduledStartTime": "2020-01-01", "scheduledEndTime": "2100-01-01"}
PROGRAMS: dict[str, dict[str, Any]] = {
    "none": {},
    "own": {"projectId": "own", "access": "private"},
    "foreign": {"projectId": "foreign"},
}


@pytest.fixture(scope="module", autouse=True)
async def programs(product: Product) -> None:
    """Programs that are live, one event each a minute long ago, and one account-wide figure of each kind."""
    amounts = [
        Amount(to_ms(PAST), Subject("demo"), Figures(10, 20, 30, 40, 50, 60)),
        Amount(to_ms(PAST), Subject("other"), Figures(1, 1, 1, 1, 1, 1)),
    ]
    for number, (program_id, fields) in enumerate(PROGRAMS.items(), start=1):
        await product.make_program(program_id, **fields, **LIVE)
        subject = Subject("demo", program_id, fields.get("projectId", ""))
        amounts.append(Amount(to_ms(PAST), subject, Figures(0, number, 10**number, number)))
    await product.services.statistics.add("test", 1, amounts)


async def series(product: Product, role: str | None = "admin", account: str = "demo", **params: Any) -> Any:
    params = {"from": format_time(PAST), "to": format_time(PAST + timedelta(minutes=1))} | params
    async with product.door(role, account=account) as door:
        answer = await door.get("/statistics/filtered", params=params)
    return answer.json()["series"] if answer.status_code == 200 else answer.status_code


async def test_a_series_carries_every_figure(product: Product) -> None:
    assert await series(product) == [
        {
            "time": "2024-02-29T12:00:00.000Z",
            "connections": 10,
            "subscribers": 20,
            "events": 30,
            "deliveries": 40,
            "responses": 50,
            "impressions": 60,
        }
    ]


@pytest.mark.parametrize(
    ("role", "events"), [("admin", 30), ("producer", 110), ("user", 110), ("client", 403), (None, 401)]
)
async def test_who_sees_the_account(product: Product, role: str | None, events: int) -> None:
    answer = await series(product, role)
    assert (answer if isinstance(answer, int) else answer[0]["events"]) == events


@pytest.mark.parametrize("role", ["producer", "user"])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"projectId": "own"}, 100),
        ({"projectId": "foreign"}, 404),
        ({"programId": "none"}, 10),
        ({"programId": "own"}, 100),
        ({"programId": "foreign"}, 404),
        ({"programId": "unknown"}, 404),
        ({"programId": "none", "projectId": "own"}, 0),
        ({"programId": "own", "projectId": "own"}, 100),
    ],
)
async def test_members_see_their_projects(
    product: Product, role: str, params: dict[str, str], expected: int
) -> None:
    answer = await series(product, role, **params)
    assert (answer if isinstance(answer, int) else answer[0]["events"]) == expected


@pytest.mark.parametrize(
    ("params", "expected"), [({"projectId": "foreign"}, 1000), ({"programId": "none"}, 10)]
)
async def test_admins_see_all_projects(product: Product, params: dict[str, str], expected: int) -> None:
    (point,) = await series(product, **params)
    assert (point["events"], point["connections"]) == (expected, 10)


async def test_accounts_are_apart(product: Product) -> None:
    assert (await series(product, account="other"))[0]["events"] == 1
    assert await series(product, account="other", programId="own") == 404


@pytest.mark.parametrize(("interval", "length"), [("minute", 60), ("hour", 3_600), ("day", 86_400)])
async def test_the_range_is_bounded(product: Product, interval: str, length: int) -> None:
    start = PAST.replace(hour=0)
    for points, expected in ((MAX_POINTS, MAX_POINTS), (MAX_POINTS + 1, 400)):
        end = format_time(start + timedelta(seconds=points * length))
        answer = await series(product, **{"from": format_time(start), "to": end}, interval=interval)
        assert (answer if isinstance(answer, int) else len(answer)) == expected


@pytest.mark.parametrize("interval", ["minute", "hour", "day"])
async def test_without_a_range_it_is_the_last_sixty(product: Product, interval: str) -> None:
    async with product.door() as door:
        answer = await door.get("/statistics/filtered", params={"interval": interval})
    points = answer.json()["series"]
    assert len(points) == 60
    assert points == sorted(points, key=lambda point: point["time"])


async def test_whole_intervals_are_answered(product: Product) -> None:
    second = timedelta(seconds=1)
    ends = {"from": format_time(PAST + second), "to": format_time(PAST + 2 * second)}
    (point,) = await series(product, **ends, interval="day")
    assert (point["time"], point["events"]) == ("2024-02-29T00:00:00.000Z", 30)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"from": "2024-01-02", "to": "2024-01-01"}, "to"),
        ({"from": "2400-01-01"}, "from"),
        ({"interval": "week"}, "interval"),
        ({"to": "9999-12-31T23:59:59Z", "interval": "day"}, "to"),
        ({"to": "0001-01-02", "interval": "day"}, "to"),
        ({"bogus": "1"}, "bogus"),
    ],
)
async def test_bad_ranges_name_the_field(product: Product, params: dict[str, str], field: str) -> None:
    async with product.door() as door:
        answer = await door.get("/statistics/filtered", params=params)
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["errors"]] == [field]


async def dashboard(product: Product, role: str = "admin", account: str = "demo") -> Any:
    async with product.door(role, account=account) as door:
        answer = await door.get("/statistics/dashboard")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_dashboard_of_an_account_where_nothing_is(product: Product) -> None:
    figures = await dashboard(product, account="other")
    assert figures == {
        "connections": 0,
        "subscribers": 0,
        "programsLive": 0,
        "eventsPerMinute": 0,
        "responsesPerMinute": 0,
        "deliveriesPerSecond": 0.0,
        "topPrograms": [],
        "producersOnline": [],
    }


async def test_published_events_are_on_the_dashboard(product: Product) -> None:
    for program_id, count in (("foreign", 3), ("own", 2)):
        await product.publish(program_id, *[{"event": "A#b"}] * count)
    await product.owners.owner._recorder.flush()
    figures = await dashboard(product)
    assert 4 <= figures["eventsPerMinute"] <= 5
    assert figures["programsLive"] == 3
    assert figures["topPrograms"] == [
        {"programId": "foreign", "subscribers": 0, "events": 3},
        {"programId": "own", "subscribers": 0, "events": 2},
    ]
    for role in ("producer", "user"):
        figures = await dashboard(product, role)
        assert figures["programsLive"] == 2
        assert [program["programId"] for program in figures["topPrograms"]] == ["own"]


async def test_imports_and_changes_are_no_events(product: Product) -> None:
    await product.make_program("imported")
    async with product.door() as door:
        await door.post("/programs/imported/events/import", json={"events": [{"event": "A#b"}] * 4})
        event = (await door.post("/programs/imported/events", json={"event": "A#b"})).json()
        await door.delete(f"/programs/imported/events/{event['id']}")
        await product.owners.owner._recorder.flush()
        answer = await door.get("/statistics/filtered", params={"programId": "imported"})
    assert sum(point["events"] for point in answer.json()["series"]) == 1


async def test_a_retry_with_the_same_key_counts_once(product: Product) -> None:
    await product.make_program("keyed")
    async with product.door() as door:
        for _ in range(2):
            headers = {"Idempotency-Key": "k"}
            await door.post("/programs/keyed/events", json={"event": "A#b"}, headers=headers)
        await product.owners.owner._recorder.flush()
        answer = await door.get("/statistics/filtered", params={"programId": "keyed"})
    assert sum(point["events"] for point in answer.json()["series"]) == 1


async def test_ping_marks_a_producer_online_for_two_minutes(product: Product) -> None:
    product.clock.forward_ms += 3_600_000
    for role in ("producer", "user", "client"):
        async with product.door(role) as door:
            assert (await door.post("/ping")).status_code == 200
    for viewer in ("admin", "user"):
        online = (await dashboard(product, viewer))["producersOnline"]
        assert [each["username"] for each in online] == ["producer"]
        assert online[0].keys() == {"userId", "username", "lastSeen"}
    assert (await dashboard(product, account="other"))["producersOnline"] == []
    product.clock.forward_ms += 119_000
    assert len((await dashboard(product))["producersOnline"]) == 1
    product.clock.forward_ms += 2_000
    assert (await dashboard(product))["producersOnline"] == []


async def test_publishing_marks_a_producer_online(product: Product) -> None:
    product.clock.forward_ms += 3_600_000
    async with product.door("producer") as door:
        await door.post("/programs/own/events", json={"event": "A#b"})
    assert [each["username"] for each in (await dashboard(product))["producersOnline"]] == ["producer"]


async def test_live_programs(product: Product) -> None:
    await product.make_program("ended", scheduledStartTime="2020-01-01", scheduledEndTime="2020-01-02")
    for role, expected in (("admin", {"none", "own", "foreign"}), ("user", {"none", "own"})):
        async with product.door(role) as door:
            programs = (await door.get("/statistics/livePrograms")).json()
        assert {program["id"] for program in programs} == expected
        assert [program for program in programs if not program["live"]] == []
    async with product.door("admin", account="other") as door:
        assert (await door.get("/statistics/livePrograms")).json() == []


@pytest.mark.parametrize("path", ["dashboard", "filtered", "livePrograms"])
async def test_roles_and_off(product: Product, path: str) -> None:
    for role, expected in ((None, 401), ("client", 403), ("user", 200), ("producer", 200), ("admin", 200)):
        async with product.door(role) as door:
            assert (await door.get(f"/statistics/{path}")).status_code == expected
    async with product.with_settings(statistics=False).door() as door:
        answer = await door.get(f"/statistics/{path}")
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
