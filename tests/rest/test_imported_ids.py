"""The ids of imported events: kept, unless another program of the account or the body has them already."""

import asyncio
from typing import Any
from uuid import UUID

import orjson
import pytest

from broker.owners import commands
from broker.resources import imports
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

HEADERS = {"Content-Type": "application/json"}
GIVEN = "0190c7a2-4f5e-7abc-8def-{:012x}".format


async def send(
    product: Product, program_id: str, events: list[Any], account: str = "demo", **more: str
) -> Any:
    async with product.door(account=account) as door:
        content = orjson.dumps({"programId": program_id, "events": events})
        return await door.post(
            f"/programs/{program_id}/events/import", content=content, headers=HEADERS | more
        )


async def ids(product: Product, program_id: str, account: str = "demo") -> list[str]:
    async with product.door(account=account) as door:
        events = (await door.get(f"/programs/{program_id}/events")).json()
    return [event["id"] for event in sorted(events, key=lambda event: event["seq"])]


async def import_ids(product: Product, program_id: str, *given: Any, account: str = "demo") -> list[str]:
    """The ids of events that were imported with these."""
    answer = await send(product, program_id, [{"event": "A#b", "id": id_} for id_ in given], account)
    assert answer.status_code == 200, answer.text
    return await ids(product, program_id, account)


def assert_new(given: list[str], now: list[str]) -> None:
    assert len(set(now)) == len(now)
    assert not set(given) & set(now)
    assert {UUID(id_).version for id_ in now} == {7}


async def test_ids_are_kept_when_a_program_is_exported_and_imported(product: Product) -> None:
    await product.make_program("same")
    published = [event["id"] for event in await product.publish("same", *[{"event": "A#b"}] * 3)]
    for _ in range(3):
        assert await import_ids(product, "same", *published) == published
    (later,) = await product.publish("same", {"event": "A#c"})
    assert await ids(product, "same") == [*published, later["id"]]
    async with product.door() as door:
        path = f"/programs/same/events/{published[0]}"
        assert (await door.put(path, json={"event": "A#d"})).status_code == 200
        assert (await door.delete(path)).status_code == 204
        assert (await door.get(path)).status_code == 404
        page = (await door.get(f"/programs/same/events/filter?ids={published[1]},{published[0]}")).json()
        assert [item["id"] for item in page["items"]] == [published[1]]
    # A deleted event belongs to its program no more; it can come back.
    assert await import_ids(product, "same", *published) == published


async def test_an_id_is_written_as_the_server_writes_it(product: Product) -> None:
    await product.make_program("upper")
    assert await import_ids(product, "upper", GIVEN(0xA).upper()) == [GIVEN(0xA)]


@pytest.mark.parametrize(
    "given",
    [
        "x",
        "",
        7,
        {"a": [1]},
        "0190c7a2-4f5e-4abc-8def-000000000001",
        "0190c7a24f5e7abc8def000000000001",
        GIVEN(1) + "\n",
        "0190c7a2-4f5e-7abc-0def-000000000001",
        "\U0001f600",
    ],
)
async def test_what_is_no_uuid7_is_replaced(product: Product, given: Any) -> None:
    async with product.door() as door:
        await door.post("/programs", json={"id": "odd", "name": "odd"})
    assert_new([given] if isinstance(given, str) else [], await import_ids(product, "odd", given, None, None))


async def test_ids_of_another_program_are_replaced(product: Product) -> None:
    for name in ("theirs", "mine"):
        await product.make_program(name)
    published = [event["id"] for event in await product.publish("theirs", *[{"event": "A#b"}] * 2)]
    first, second, third = await import_ids(product, "mine", *published, GIVEN(0x100))
    assert_new(published, [first, second])
    assert third == GIVEN(0x100)
    # Imported ids belong to their program too.
    assert_new([third], await import_ids(product, "theirs", third))
    # Once nobody else has them they are free: replaced, or of a program that is gone.
    assert await import_ids(product, "mine", *published) == published
    assert_new(published, await import_ids(product, "theirs", *published))
    async with product.door() as door:
        assert (await door.delete("/programs/mine")).status_code == 204
    assert await import_ids(product, "theirs", *published) == published


async def test_a_program_that_is_made_again_gets_its_ids_again(product: Product) -> None:
    await product.make_program("again")
    (event,) = await product.publish("again", {"event": "A#b"})
    async with product.door() as door:
        await door.delete("/programs/again")
    await product.make_program("again")
    assert await import_ids(product, "again", event["id"]) == [event["id"]]


async def test_other_accounts_are_not_there(product: Product) -> None:
    await product.make_program("here")
    await product.make_program("there", account="other")
    (event,) = await product.publish("here", {"event": "A#b"})
    # It is kept as if the other account had it not; and theirs stays what it was.
    assert await import_ids(product, "there", event["id"], account="other") == [event["id"]]
    assert await ids(product, "here") == [event["id"]]
    assert await import_ids(product, "here", event["id"]) == [event["id"]]
    async with product.door(account="other") as door:
        await door.delete(f"/programs/there/events/{event['id']}")
        assert await ids(product, "here") == [event["id"]]


@pytest.mark.parametrize("rows", [1, 2, 1000])
@pytest.mark.parametrize("given", [GIVEN(0x200), "x", "taken"])
async def test_an_id_that_stands_twice_is_refused(
    product: Product, given: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_STAGE_ROWS", rows)
    async with product.door() as door:
        for name in ("twice", "owns"):
            await door.post("/programs", json={"id": name, "name": name})
    if given == "taken":
        (event,) = await product.publish("owns", {"event": "A#b"})
        given = event["id"]
    before = await import_ids(product, "twice", None)
    events = [{"event": "A#b"} | ({"id": id_} if id_ else {}) for id_ in ("", given, "", "y", given, given)]
    answer = await send(product, "twice", events)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert [fault["field"] for fault in answer.json()["errors"]] == ["events[4].id"]
    assert await ids(product, "twice") == before
    async with product.services.database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM staged_imports") == 0


async def test_of_imports_at_a_time_one_keeps_an_id(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose rows are staged first has it, before it is adopted too."""
    for name in ("one", "two"):
        await product.make_program(name)
    both_staged, left = asyncio.Event(), ["one", "two"]
    submit = product.services.owners.submit

    async def wait(command: Any) -> Any:
        if isinstance(command, commands.AdoptImport):
            left.remove(command.program_id)
            if not left:
                both_staged.set()
            await both_staged.wait()
        return await submit(command)

    monkeypatch.setattr(product.services.owners, "submit", wait)
    given = [GIVEN(number) for number in range(0x300, 0x310)]
    async with asyncio.timeout(20):
        kept = await asyncio.gather(*(import_ids(product, name, *given) for name in ("one", "two")))
    assert sorted(set(kept[0]) & set(given)) == given or sorted(set(kept[1]) & set(given)) == given
    assert not set(kept[0]) & set(kept[1])


async def test_an_id_is_part_of_what_an_idempotency_key_stands_for(product: Product) -> None:
    await product.make_program("keyed")
    key = {"Idempotency-Key": "keyed-ids"}
    events = [{"event": "A#b", "id": GIVEN(0x400), "timestamp": 1}]
    first = await send(product, "keyed", events, **key)
    assert (await send(product, "keyed", events, **key)).content == first.content
    events[0]["id"] = GIVEN(0x401)
    assert (await send(product, "keyed", events, **key)).status_code == 409
    assert await ids(product, "keyed") == [GIVEN(0x400)]
