"""Quotas of accounts at the HTTP door: programs, stored bytes and events a second."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from broker.clock import to_datetime
from broker.domain.audit import Actor
from broker.domain.programs import Access, Program
from broker.domain.quotas import QuotaName
from broker.errors import SlowDown
from broker.limits.shared_rates import EventRates
from broker.metrics.counts import QUOTA_REFUSALS
from broker.storage.account_quotas import AccountQuotas
from broker.storage.database import Database
from broker.storage.rate_buckets import RateBuckets
from broker.storage.stored_values import NewValue, Quota
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

KNOWN_MS = 6_000  # after which a door has read the quotas again
SCORE = {"event": "Score#update"}


@pytest.fixture
async def product(migrated_dsn: str) -> AsyncIterator[Product]:
    async with open_product(migrated_dsn, token_lifetime_s=30_000_000) as product:
        product.clock.stop()
        yield product


async def set_quotas(product: Product, **quotas: int | None) -> None:
    changes = {QuotaName(name): number for name, number in quotas.items()}
    await AccountQuotas(product.services.database).set("demo", changes, Actor.operator())
    product.clock.forward_ms += KNOWN_MS


def refusals(quota: str) -> float:
    """How many requests the quota has refused, as `/metrics` tells it."""
    return sum(float(str(each.value)) for each in QUOTA_REFUSALS.samples() if each.labels == (quota,))


async def store(door: httpx.AsyncClient, project: str, id_: str, size: int) -> int:
    """Store a value of so many bytes; returns the status."""
    metadata = {"a": "x" * (size - len('{"a":""}'))}
    return (await door.post(f"/storage/{project}", json={"id": id_, "metadata": metadata})).status_code


async def test_no_more_programs_than_the_quota_even_at_once(product: Product) -> None:
    await set_quotas(product, programs=3)
    before = refusals("programs")
    async with product.door() as door, product.door(account="other") as other:

        async def make(number: int) -> httpx.Response:
            body = {"id": f"p{number}", "name": "P"}
            return await door.post("/programs", json=body, headers={"Idempotency-Key": f"key {number}"})

        made = await asyncio.gather(*(make(number) for number in range(8)))
        assert Counter(each.status_code for each in made) == {201: 3, 413: 5}
        refused = next(each.json() for each in made if each.status_code == 413)
        assert refused["error"] == "payload_too_large"
        assert refused["error_description"] == "the account has reached its quota of 3 programs"
        assert refusals("programs") - before == 5
        first = next(number for number, each in enumerate(made) if each.status_code == 201)
        again = await make(first)
        assert (again.status_code, again.json()) == (201, made[first].json()), "it was done before"
        assert (await other.post("/programs", json={"id": "p", "name": "P"})).status_code == 201
        assert (await door.delete(f"/programs/p{first}")).status_code == 204
        assert (await make(9)).status_code == 201
        await set_quotas(product, programs=None)
        assert (await make(10)).status_code == 201


async def waits(database: Database, asked: "asyncio.Task[httpx.Response]") -> bool:
    """Whether a request waits for a lock, before it is answered."""
    while not asked.done():
        async with database.connection() as connection:
            if await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                return True
    return False


async def test_who_comes_while_another_takes_the_last_place_waits_for_it(product: Product) -> None:
    """Neither counts what the other has not committed yet: not a program, not bytes of another project."""
    services, database = product.services, product.services.database
    async with product.door() as door:
        for project in ("one", "two"):
            assert (await door.post("/projects", json={"id": project, "name": "P"})).status_code == 201
        await set_quotas(product, programs=1, storage=100)
        now = to_datetime(product.clock.now_ms())
        program = Program(id="first", name="P", access=Access.PUBLIC, created_time=now, updated_time=now)
        value = NewValue("one", "first", b'{"a":"' + b"x" * 80 + b'"}', product.clock.now_ms())
        room = Quota(10, 1_000)
        for path, body in (
            ("/programs", {"id": "second", "name": "P"}),
            ("/storage/two", {"id": "second", "metadata": {"a": "x" * 80}}),
        ):
            async with database.unit():  # tasks that it starts are no part of it
                if path == "/programs":
                    await services.programs.create("demo", program, "epoch")
                else:
                    await services.stored_values.store("demo", value, room, anonymous_caller=None, alone=True)
                asking = asyncio.create_task(door.post(path, json=body))
                assert await asyncio.create_task(waits(database, asking))
            assert (await asking).status_code == 413


async def test_no_more_bytes_in_storage_than_the_quota_over_all_projects(product: Product) -> None:
    await set_quotas(product, storage=1_000)
    before = refusals("storage")
    async with product.door() as door, product.door(None) as stranger:
        for project in ("one", "two"):
            assert (await door.post("/projects", json={"id": project, "name": "P"})).status_code == 201
        storing = (store(door, ("one", "two")[n % 2], f"v{n}", 150) for n in range(12))
        statuses = Counter(await asyncio.gather(*storing))
        assert statuses == {201: 6, 413: 6}
        assert refusals("storage") - before == 6
        used = await AccountQuotas(product.services.database).used("demo")
        assert used.storage == 900
        assert await store(door, "one", "small", 100) == 201
        assert await store(stranger, "one", "of-nobody", 10) == 413
        refused = await door.post("/storage/two", json={"metadata": {}})
        assert refused.json()["error_description"] == "the account has reached its quota of bytes in storage"
        # In the place of another value only what is more counts, with a key as without.
        assert await store(door, "one", "small", 101) == 413
        assert await store(door, "one", "small", 20) == 200
        body = {"id": "small", "metadata": {"a": "x" * 92}}
        keyed = await door.post("/storage/one", json=body, headers={"Idempotency-Key": "k"})
        assert keyed.status_code == 200
        assert (await AccountQuotas(product.services.database).used("demo")).storage == 1_000
        assert (await door.delete("/storage/one/small")).status_code == 204
        assert await store(door, "two", "more", 100) == 201


async def test_events_beyond_the_quota_wait_for_the_next_second(product: Product) -> None:
    await product.make_program("show")
    await product.make_program("show", "other")
    await set_quotas(product, events=5)
    before = refusals("events")
    async with product.door() as door, product.door(account="other") as other:
        path = "/programs/show/events"
        assert (await door.post(path, json={"events": [SCORE] * 4})).status_code == 201
        event = (await door.post(path, json=SCORE)).json()
        for method, target in (("POST", path), ("PUT", f"{path}/{event['id']}")):
            refused = await door.request(method, target, json=SCORE)
            assert (refused.status_code, refused.json()["error"]) == (429, "slow_down")
            assert (
                refused.json()["error_description"]
                == "the account has reached its quota of 5 events a second"
            )
            assert refused.headers["retry-after"] == "1"
        assert refusals("events") - before == 2
        assert (await other.post(path, json={"events": [SCORE] * 50})).status_code == 201
        product.clock.forward_ms += 1_000
        assert (await door.post(path, json={"events": [SCORE] * 12})).status_code == 201, (
            "more than a second's"
        )
        product.clock.forward_ms += 1_000
        assert (await door.post(path, json=SCORE)).status_code == 429, "it is paid off first"
        product.clock.forward_ms += 1_400
        assert (await door.post(path, json=SCORE)).status_code == 201
        await set_quotas(product, events=None)
        assert (await door.post(path, json={"events": [SCORE] * 50})).status_code == 201
        assert len((await door.get(path)).json()) == 4 + 1 + 12 + 1 + 50, "what was refused is not there"


async def test_a_rate_is_one_over_all_processes(product: Product) -> None:
    """Each draws a group from the bucket in the database; together they hand out what it holds."""
    buckets = RateBuckets(product.services.database)
    doors = [EventRates(buckets, product.clock) for _ in range(3)]
    for each in doors:
        each.learn("demo", 200)

    async def count(door: EventRates) -> int:
        taken = 0
        try:
            while True:
                await door.take("demo", 1)
                taken += 1
        except SlowDown:
            return taken

    assert sum(await asyncio.gather(*map(count, doors))) == 200


async def test_an_account_without_a_quota_asks_nobody(product: Product) -> None:
    rates = EventRates(RateBuckets(product.services.database), product.clock)
    rates.learn("demo", 1)
    rates.learn("demo", None)
    taking = rates.take("demo", 1_000)
    with pytest.raises(StopIteration):
        taking.send(None)  # it has not waited for anything
