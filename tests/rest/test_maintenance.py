"""Maintenance at the HTTP door: changes are refused and made later, reading and log-in go on."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from broker.operations.registry import Effect, Operation
from broker.resources.catalogue import build_registry
from tests.auth.services import PASSWORD
from tests.maintenance import MESSAGE, RETRY_AFTER_S, maintained
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ROUTED = build_registry().routed
CHANGES = [operation for operation in ROUTED if operation.effect is not Effect.NONE]
READS = [operation for operation in ROUTED if operation.effect is Effect.NONE]
EVENT = {"event": "Score#update", "metadata": {"home": 1}}


async def ask(product: Product, operation: Operation) -> httpx.Response:
    """A request for an operation on things that are not there."""
    route = operation.route
    assert route is not None
    path = re.sub(r"\{\w+\}", "absent", route.path)
    body = None if route.method in ("GET", "DELETE") else b"{}"
    async with product.door() as door:
        headers = {} if body is None else {"Content-Type": route.consumes[-1]}
        return await door.request(route.method, path, content=body, headers=headers)


def test_what_changes_something_is_what_is_refused() -> None:
    """Whoever adds an operation sees here on which side it is."""
    assert {operation.name for operation in CHANGES} >= {
        "producer",
        "importProgramEvents",
        "deleteAllProgramEvents",
        "addResponses",
        "storeValue",
        "createAnalyticsSite",
        "purgeImages",
        "createUser",
    }
    assert {operation.name for operation in READS if operation.route and operation.route.method != "GET"} == {
        "login",
        "createVisitor",
        "ping",
        "servertime",
        "warmImages",
        "postAnalyticsReport",
        "putAnalyticsReport",
        "patchAnalyticsReport",
        "deleteAnalyticsReport",
    }


async def test_every_change_is_refused_and_told_when_to_come_again(
    product: Product, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with maintained(product.services):
            answers = {operation.name: await ask(product, operation) for operation in CHANGES}
    expected = {"error": "maintenance", "error_description": MESSAGE, "status": 503}
    assert {name: answer.json() for name, answer in answers.items()} == dict.fromkeys(answers, expected)
    assert {answer.headers["Retry-After"] for answer in answers.values()} == {str(RETRY_AFTER_S)}
    assert {answer.status_code for answer in answers.values()} == {503}
    assert "operation_failed" not in caplog.text, "nothing has failed"
    after = [(await ask(product, operation)).text for operation in CHANGES]
    assert [text for text in after if "maintenance" in text] == []


async def test_what_changes_nothing_goes_on(product: Product) -> None:
    async with maintained(product.services):
        answers = {operation.name: await ask(product, operation) for operation in READS}
    refused = [name for name, answer in answers.items() if '"error":"maintenance"' in answer.text]
    assert refused == []


async def test_who_may_not_make_a_change_is_told_that(product: Product) -> None:
    async with maintained(product.services), product.door("user") as user, product.door(None) as stranger:
        assert (await user.post("/projects", json={"id": "x", "name": "x"})).status_code == 403
        assert (await stranger.post("/projects", json={"id": "x", "name": "x"})).status_code == 401


async def test_log_in_and_reading_go_on(product: Product) -> None:
    await product.make_program("read")
    await product.publish("read", EVENT)
    fields = {"grant_type": "password", "client_id": "Test", "username": "admin", "password": PASSWORD}
    async with maintained(product.services), product.door(None) as stranger, product.door() as door:
        assert (await stranger.post("/token", json=fields)).status_code == 200
        assert len((await stranger.get("/programs/read/events")).json()) == 1
        assert (await door.get("/programs/read")).status_code == 200


async def test_a_key_makes_the_repeats_of_a_refused_change_one_change(product: Product) -> None:
    await product.make_program("keyed")
    async with product.door(**{"Idempotency-Key": "a-key"}) as door:
        async with maintained(product.services):
            for _ in range(2):
                assert (await door.post("/programs/keyed/events", json=EVENT)).status_code == 503
        first = await door.post("/programs/keyed/events", json=EVENT)
        assert first.status_code == 201
        # What was done before is told again only afterwards.
        async with maintained(product.services):
            assert (await door.post("/programs/keyed/events", json=EVENT)).status_code == 503
        assert (await door.post("/programs/keyed/events", json=EVENT)).json() == first.json()
        assert len((await door.get("/programs/keyed/events")).json()) == 1


async def test_a_change_that_was_accepted_before_is_finished(product: Product) -> None:
    await product.make_program("imported")
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"events": ['
        begun.set()
        await may_go_on.wait()
        yield orjson.dumps(EVENT) + b"]}"

    async with product.door(**{"Content-Type": "application/json"}) as door:
        path = "/programs/imported/events/import"
        importing = asyncio.create_task(door.post(path, content=body()))
        await begun.wait()
        async with maintained(product.services):
            assert (await door.post(path, json={"events": []})).status_code == 503
            may_go_on.set()
            assert (await importing).status_code == 200
            assert len((await door.get("/programs/imported/events")).json()) == 1


async def test_health_tells_it_and_the_product_stays_ready(product: Product) -> None:
    async with product.door() as door:
        async with maintained(product.services):
            for path in ("/health", "http://localhost/readyz"):
                answer = await door.get(path)
                assert answer.status_code == 200
                told = answer.json()
                assert told["status"] == "ok"
                assert told["maintenance"]["message"] == MESSAGE
                assert told["maintenance"]["retryAfter"] == RETRY_AFTER_S
                assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z", told["maintenance"]["since"])
        assert (await door.get("/health")).json()["maintenance"] is None


async def test_the_gauge_tells_whether_this_process_refuses_changes(product: Product) -> None:
    maintenance = product.services.maintenance

    def told() -> list[object]:
        return [(sample.name, sample.value) for sample in maintenance.figures()]

    assert told() == [("broker_maintenance", 0)]
    async with maintained(product.services):
        assert told() == [("broker_maintenance", 1)]
