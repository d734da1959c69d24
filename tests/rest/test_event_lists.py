"""Lists of events: in pages, of one moment, and bounded where they are long."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from broker.storage import events as stored_events
from broker.storage.events import EventRange, StoredPage
from tests.product import Product
from tests.rest.support import field

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has two events at first, then three."""
    monkeypatch.setattr(stored_events, "_FIRST_EVENTS", 2)
    monkeypatch.setattr(stored_events, "_MOST_EVENTS", 3)


async def events(product: Product, program_id: str, query: str = "") -> list[dict[str, Any]]:
    async with product.door() as door:
        answer = await door.get(f"/programs/{program_id}/events?{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json())


async def numbered(product: Product, program_id: str, count: int) -> list[dict[str, Any]]:
    """A program with events whose timecodes are 10, 20, 30 …"""
    await product.make_program(program_id, projectId="own")
    return await product.publish(
        program_id, *({"event": "A#b", "timecode": 10 * n} for n in range(1, count + 1))
    )


def pages(
    product: Product, program_id: str, selected: EventRange | None = None
) -> AsyncGenerator[StoredPage]:
    return product.services.events.pages("demo", program_id, selected or EventRange())


async def rest_of(reading: AsyncGenerator[StoredPage]) -> list[dict[str, Any]]:
    return [orjson.loads(event) async for page in reading for event in page.events]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 9])
@pytest.mark.usefixtures("small_pages")
async def test_pages_make_the_whole(product: Product, count: int) -> None:
    program_id = f"whole-{count}"
    await product.make_program(program_id)
    # many of one timecode, so that pages begin within it
    made = await product.publish(program_id, {"event": "A#b"}) if count == 1 else []
    if count > 1:
        made = await product.publish(
            program_id, *({"event": "A#b", "timecode": n // 4} for n in range(count))
        )
    assert await events(product, program_id) == made
    assert [e["seq"] for e in await events(product, program_id, "from=0&to=0")] == [
        e["seq"] for e in made if e["timecode"] == 0
    ]
    async with product.door() as door:
        exported = (await door.get(f"/programs/{program_id}/events/export")).json()["events"]
    assert exported == made


Change = Callable[[Product, str, list[dict[str, Any]]], Awaitable[Any]]


async def correct(product: Product, program_id: str, of: dict[str, Any], **fields: Any) -> None:
    async with product.door() as door:
        answer = await door.put(f"/programs/{program_id}/events/{of['id']}", json=fields)
    assert answer.status_code == 200, answer.text


async def publish_between(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    await product.publish(program_id, {"event": "New#a", "timecode": 45}, {"event": "New#b", "timecode": 5})


async def move_back(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    await correct(product, program_id, made[5], timecode=1)


async def move_on(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    await correct(product, program_id, made[0], timecode=55)


async def correct_twice(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    for text in ("New#a", "New#b"):
        await correct(product, program_id, made[4], event=text)


async def delete_one(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    async with product.door() as door:
        await door.delete(f"/programs/{program_id}/events/{made[4]['id']}")


async def delete_all(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    async with product.door() as door:
        await door.delete(f"/programs/{program_id}/events")


async def import_others(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    async with product.door() as door:
        body = {"events": [{"event": "New#a", "timecode": n} for n in range(40, 60)]}
        assert (await door.post(f"/programs/{program_id}/events/import", json=body)).status_code == 200


async def delete_program(product: Product, program_id: str, made: list[dict[str, Any]]) -> None:
    async with product.door() as door:
        await door.delete(f"/programs/{program_id}")


@pytest.mark.parametrize(
    "change",
    [
        publish_between,
        move_back,
        move_on,
        correct_twice,
        delete_one,
        delete_all,
        import_others,
        delete_program,
    ],
)
@pytest.mark.parametrize("selected", [EventRange(), EventRange(start=15, end=65, or_created=True)])
@pytest.mark.usefixtures("small_pages")
async def test_a_list_is_of_one_moment(product: Product, change: Change, selected: EventRange) -> None:
    """Whatever is changed after its first page."""
    program_id = f"moment-{change.__name__}-{selected.or_created}".replace("_", "-")
    made = await numbered(product, program_id, 8)
    await correct(product, program_id, made[6], event="Before#start")
    made = await events(product, program_id)
    if selected.start is not None:
        now = made[0]["timestamp"] + 3_600_000  # everything was created later than the range
        assert now > 65
        made = [event for event in made if 15 <= event["timecode"] <= 65]
    async with aclosing(pages(product, program_id, selected)) as reading:
        first = await anext(reading)
        await change(product, program_id, await events(product, program_id))
        seen = [orjson.loads(event) for event in first.events] + await rest_of(reading)
    assert seen == made


async def test_readers_who_wait_hold_no_connection(product: Product) -> None:
    """More of them than the pool has connections."""
    await numbered(product, "waiting", 900)
    async with AsyncExitStack() as stack:
        for _ in range(12):
            reading = await stack.enter_async_context(aclosing(pages(product, "waiting")))
            assert (await anext(reading)).next is not None
        async with asyncio.timeout(5):
            assert len(await events(product, "waiting")) == 900


# -- pages that the caller asks for


async def follow(door: httpx.AsyncClient, path: str) -> AsyncIterator[list[dict[str, Any]]]:
    while path:
        answer = await door.get(path)
        assert answer.status_code == 200, answer.text
        yield answer.json()
        path = answer.links.get("next", {}).get("url", "").removeprefix("/api/v1")


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (1000, [7])])
async def test_pages_are_of_the_moment_of_the_first(product: Product, limit: int, sizes: list[int]) -> None:
    program_id = f"paged-{limit}"
    made = await numbered(product, program_id, 7)
    got = []
    async with product.door(None) as door:
        async for page in follow(door, f"/programs/{program_id}/events?limit={limit}"):
            got.append(page)
            await product.publish(program_id, {"event": "New#a"})
            await correct(product, program_id, made[6], event="New#name")
    assert [len(page) for page in got] == sizes
    assert [event for page in got for event in page] == made


async def test_a_page_has_nothing_that_was_deleted_since_the_first(product: Product) -> None:
    made = await numbered(product, "withdrawn", 6)
    async with product.door(None) as door:
        reading = follow(door, "/programs/withdrawn/events?limit=2")
        seen = await anext(reading)
        await correct(product, "withdrawn", made[2], event="New#a")
        await correct(product, "withdrawn", made[4], event="New#a")
        await delete_one(product, "withdrawn", made)
        async for page in reading:
            seen += page
    # The corrected one is as it was, unless it was deleted then.
    assert seen == made[:4] + made[5:]


async def test_the_range_goes_with_the_pages(product: Product) -> None:
    made = await numbered(product, "ranged", 9)
    path = "/programs/ranged/events?limit=2&from=20&to=70&includeCreated=false"
    async with product.door() as door:
        got = [event async for page in follow(door, path) for event in page]
        assert got == made[1:7]
        first = await door.get(path)
        assert "cache-control" in first.headers
        assert first.headers["link"].startswith(
            "</api/v1/programs/ranged/events?from=20&to=70&limit=2&cursor="
        )
        assert first.headers["link"].endswith('>; rel="next"')


async def test_a_page_is_bounded_in_bytes(product: Product) -> None:
    await product.make_program("heavy")
    for _ in range(2):
        await product.publish(
            "heavy", *({"event": "A#b", "metadata": {"x": "x" * 60_000}} for _ in range(15))
        )
    async with product.door() as door:
        sizes = [len(page) async for page in follow(door, "/programs/heavy/events?limit=1000")]
    assert sum(sizes) == 30
    assert sizes[0] == 17  # of 60 KB in a megabyte


async def test_a_page_after_the_events_are_gone_is_a_conflict(product: Product) -> None:
    made = await numbered(product, "paged-away", 3)
    async with product.door() as door:
        first = await door.get("/programs/paged-away/events?limit=1")
        url = first.links["next"]["url"].removeprefix("/api/v1")
        await delete_all(product, "paged-away", made)
        answer = await door.get(url)
        assert (answer.status_code, answer.json()["error"]) == (409, "conflict")
        await product.make_program("paged-other")
        answer = await door.get(url.replace("paged-away", "paged-other"))
        assert answer.status_code == 409


@pytest.mark.parametrize(
    ("query", "at_fault"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("cursor=", "cursor"),
        ("cursor=%2F", "cursor"),
        ("cursor=YQ", "cursor"),
        ("cursor=ZS8xLzEvMSAx", "cursor"),
        (f"cursor={'a' * 301}", "cursor"),
    ],
)
async def test_bad_pages_are_named(product: Product, query: str, at_fault: str) -> None:
    async with product.door() as door:
        answer = await door.get(f"/programs/p-of-pages/events?{query}")
    assert answer.status_code == 400
    assert field(answer) == at_fault


# -- bounds of long lists


@asynccontextmanager
async def reading(
    product: Product, program_id: str, role: str | None, address: str
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Inside the block somebody reads a list and takes nothing after its first part; yields the status."""
    begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    go_on = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            begun.set_result(message["status"])
        elif message.get("more_body"):
            await go_on.wait()

    headers = [(b"host", b"localhost")]
    if role is not None:
        headers.append((b"authorization", f"Bearer {product.tokens[role]}".encode()))
    scope = {"type": "http", "method": "GET", "path": f"/api/v1/programs/{program_id}/events"}
    scope |= {"headers": headers, "client": (address, 1)}
    task = asyncio.create_task(product.app(scope, receive, send))
    try:
        async with asyncio.timeout(10):
            yield await begun, go_on
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_address_reads_so_many_long_lists_at_a_time(product: Product) -> None:
    await numbered(product, "crowded", 900)
    async with AsyncExitStack() as stack:

        async def begin(role: str | None, address: str, program_id: str = "crowded") -> int:
            status, _ = await stack.enter_async_context(reading(product, program_id, role, address))
            return status

        assert [await begin(None, "192.0.2.1") for _ in range(8)] == [200] * 8
        assert await begin(None, "192.0.2.1") == 429
        assert await begin("user", "192.0.2.1") == 429
        assert await begin("user", "192.0.2.2") == 200
        assert await begin(None, "192.0.2.3") == 200
        await product.make_program("short")
        assert await begin(None, "192.0.2.1", "short") == 200
    async with reading(product, "crowded", None, "192.0.2.1") as (status, _):
        assert status == 200


async def test_callers_without_a_token_leave_users_their_lists(product: Product) -> None:
    await numbered(product, "besieged", 900)
    async with AsyncExitStack() as stack:

        async def begin(role: str | None, address: str) -> int:
            status, _ = await stack.enter_async_context(reading(product, "besieged", role, address))
            return status

        assert {await begin(None, f"192.0.2.{n // 8}") for n in range(64)} == {200}
        assert await begin(None, "192.0.2.99") == 429
        assert await begin("user", "192.0.2.99") == 200


async def test_long_lists_are_bounded_in_rate(product: Product) -> None:
    await numbered(product, "often", 900)
    transport = httpx.ASGITransport(product.app, client=("198.51.100.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as door:
        statuses: list[int] = []
        while 429 not in statuses and len(statuses) < 200:
            statuses.append((await door.get("/programs/often/events")).status_code)
        assert len(statuses) > 100
        assert statuses[-1] == 429
        assert (await door.get("/programs/often/events?limit=100")).status_code == 200


@pytest.mark.parametrize(("program", "query"), [("whole", "from=-5&to=-4"), ("paged", "to=-4&limit=1")])
async def test_ranges_by_creation_are_long_lists(product: Product, program: str, query: str) -> None:
    """All events are read for them, also when none is found."""
    await numbered(product, program, 3)
    transport = httpx.ASGITransport(product.app, client=(f"198.51.100.{ord(program[0])}", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as door:
        statuses: list[int] = []
        while 429 not in statuses and len(statuses) < 200:
            path = f"/programs/{program}/events?includeCreated=true&{query}"
            statuses.append((await door.get(path)).status_code)
        assert statuses[:100] == [200] * 100
        assert statuses[-1] == 429
        assert (await door.get(f"/programs/{program}/events?{query}")).status_code == 200
