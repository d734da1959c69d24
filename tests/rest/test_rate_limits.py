"""The limits on rates at the door: log-in, stored values without a token, requests of data sources."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from broker.operations.services import build_services
from broker.resources.catalogue import build_registry
from broker.rest.app import build_app
from broker.storage.accounts import Account, Accounts
from broker.storage.database import Database
from tests.asgi import ask
from tests.auth.services import PASSWORD
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

BURST, ACCOUNT_BURST, EACH_S = 2, 5, 30
LOGIN = {"grant_type": "password", "client_id": "Test", "username": "user", "password": PASSWORD}
SETTINGS = {
    f"{limit}_{kind}": value
    for limit in ("login", "storage", "fetch")
    for kind, value in (
        ("rate_per_address", 1 / EACH_S),
        ("burst_per_address", BURST),
        ("rate_per_account", 1 / EACH_S),
        ("burst_per_account", ACCOUNT_BURST),
    )
}
# A data source at an address that nobody may ask: the request is counted and goes nowhere.
CONTENT = {"dataSources": [{"id": "a", "type": "api", "url": "http://127.0.0.1:1/"}]}

Ask = Callable[[Product, str], Awaitable[httpx.Response]]


def asking(role: str | None, method: str, path: str, body: Any = None) -> Ask:
    async def ask(product: Product, address: str) -> httpx.Response:
        async with product.door(role, **{"X-Forwarded-For": address}) as door:
            return await door.request(method, path, json=body)

    return ask


LIMITED = {
    "login": (asking(None, "POST", "/token", LOGIN), 200),
    "storage": (asking(None, "POST", "/storage/own", {"metadata": {}}), 201),
    "fetch": (asking("user", "GET", "/projects/own/application/requests/1/a"), 403),
}


@pytest.fixture
async def product(migrated_dsn: str) -> AsyncIterator[Product]:
    async with open_product(migrated_dsn, token_lifetime_s=30_000_000, **SETTINGS) as product:
        product.clock.stop()
        async with product.door() as door:
            assert (await door.post("/projects", json={"id": "own", "name": "n"})).is_success
            path = "/projects/own/application/revisions"
            assert (await door.post(path, json={"version": "1", "content": CONTENT})).is_success
        yield product


@asynccontextmanager
async def another_process(product: Product, dsn: str) -> AsyncIterator[Product]:
    """The same product as a second replica has it: services and a database pool of its own."""
    database = await Database.open(dsn, size=2, timeout_s=5)
    first = product.services
    try:
        services = build_services(
            first.settings,
            first.clock,
            first.ids,
            database,
            auth=first.auth,
            owners=first.owners,
            counters=first.audience.counters,
            health=first.health,
            maintenance=first.maintenance,
        )
        yield replace(product, services=services, app=build_app(services, build_registry()))
        await services.close()
    finally:
        await database.close()


async def refused(ask: Ask, product: Product, address: str) -> int:
    answer = await ask(product, address)
    assert (answer.status_code, answer.json()["error"]) == (429, "slow_down")
    return int(answer.headers["retry-after"])


@pytest.mark.parametrize("limit", LIMITED)
async def test_an_address_has_its_limit_over_all_processes(
    product: Product, migrated_dsn: str, limit: str
) -> None:
    ask, status = LIMITED[limit]
    async with another_process(product, migrated_dsn) as second:
        for each in (product, second):
            assert (await ask(each, "192.0.2.1")).status_code == status
        for each in (product, second):
            assert await refused(ask, each, "192.0.2.1") == EACH_S
        assert (await ask(second, "192.0.2.2")).status_code == status
        product.clock.forward_ms += (EACH_S - 1) * 1000
        assert await refused(ask, second, "192.0.2.1") == 1
        product.clock.forward_ms += 1000
        assert (await ask(second, "192.0.2.1")).status_code == status
        assert await refused(ask, product, "192.0.2.1") == EACH_S


@pytest.mark.parametrize("limit", LIMITED)
async def test_an_account_has_its_limit_over_all_processes(
    product: Product, migrated_dsn: str, limit: str
) -> None:
    ask, status = LIMITED[limit]
    async with another_process(product, migrated_dsn) as second:
        for number in range(ACCOUNT_BURST):
            each = (product, second)[number % 2]
            assert (await ask(each, f"192.0.2.{number}")).status_code == status
        for each in (product, second):
            assert await refused(ask, each, "192.0.2.99") == EACH_S
        product.clock.forward_ms += (EACH_S - 1) * 1000
        assert await refused(ask, second, "192.0.2.99") == 1
        product.clock.forward_ms += 1000
        assert (await ask(second, "192.0.2.99")).status_code == status


async def test_a_token_lifts_the_limit_on_stored_values(product: Product) -> None:
    ask, status = LIMITED["storage"]
    for _ in range(BURST):
        await ask(product, "192.0.2.1")
    await refused(ask, product, "192.0.2.1")
    assert (await asking("client", "POST", "/storage/own", {"metadata": {}})(product, "192.0.2.1")).is_success
    assert (await ask(product, "192.0.2.2")).status_code == status


async def test_a_request_that_is_malformed_is_no_log_in(product: Product) -> None:
    for _ in range(ACCOUNT_BURST + 1):
        answer = await asking(None, "POST", "/token", LOGIN | {"grant_type": "magic"})(product, "192.0.2.1")
        assert answer.status_code == 400


async def test_ten_thousand_invented_hosts_cost_few_queries(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = 0
    find = Accounts.find

    async def count(self: Accounts, name: str) -> Account | None:
        nonlocal queries
        queries += 1
        return await find(self, name)

    monkeypatch.setattr(Accounts, "find", count)
    stranger = {"X-Forwarded-For": "192.0.2.7"}
    told = Counter[int]()
    for number in range(10_000):
        reply = await ask(product.app, "GET", "/api/v1/version", account=f"no-{number}", headers=stranger)
        told[reply.status] += 1
    assert told == {404: queries, 429: 10_000 - queries}
    assert queries < 1_000  # a hundred, and ten a second
    reply = await ask(
        product.app, "GET", "/api/v1/version", account="other", headers={"X-Forwarded-For": "192.0.2.8"}
    )
    assert reply.status == 200
