"""`broker.operations.invoke`: authorise, validate, run, count; and the registry it works from."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field

from broker.clock import SystemClock
from broker.domain.users import Principal, Role
from broker.domain.values import Model
from broker.errors import (
    BadGateway,
    Conflict,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    Unauthenticated,
)
from broker.ids import IdSource
from broker.operations import metrics
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.operations.registry import Json, Operation, Registry, Reply, Route
from broker.operations.rendering import result_json
from broker.operations.services import Services
from broker.settings import Settings
from broker.storage.idempotency import Idempotency
from tests.auth.services import MovedClock, open_database

pytestmark = pytest.mark.anyio


class Item(Model):
    a_value: int


class ItemParams(Model):
    item_name: str = "x"
    items: list[Item] | None = None
    secret: Annotated[str, Field(repr=False)] = ""


class Service:
    """The little that `invoke` itself needs."""

    def __init__(self, idempotency: Any = None, clock: Any = None) -> None:
        self.clock = clock or SystemClock()
        self.idempotency = idempotency
        self.settings = Settings()
        self.ids = IdSource(self.clock)


def context(services: Any = None, role: Role | None = Role.ADMIN, key: str | None = None) -> Context:
    principal = Principal("demo", role, None if role is None else f"user-{role}")
    made: Services = services or Service()
    return Context(made, principal, "request-1", idempotency_key=key)


def operation(handler: Any, **fields: Any) -> Operation:
    known: dict[str, Any] = {
        "name": "ping",
        "summary": "Run",
        "params": ItemParams,
        "result": None,
        "handler": handler,
        "route": Route("POST", "/run"),
    }
    return Operation(**known | fields)


async def echo(_context: Context, params: ItemParams) -> dict[str, Any]:
    return {"name": params.item_name}


def count(outcome: str) -> float:
    text = metrics.render().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "broker_operations_total"
        and sample.labels == {"operation": "ping", "outcome": outcome}
    )


async def test_the_audience_is_asked_before_the_params_are_read() -> None:
    bad = {"bogus": 1}
    with pytest.raises(Unauthenticated):
        await invoke(operation(echo), context(role=None), bad)
    with pytest.raises(InsufficientScope):
        await invoke(operation(echo, name="producer"), context(role=Role.USER), bad)
    with pytest.raises(InvalidRequest):
        await invoke(operation(echo, name="producer"), context(role=Role.PRODUCER), bad)
    assert await invoke(operation(echo, name="getVersion"), context(role=None), {}) == {"name": "x"}


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"itemName": 5}, "itemName"),
        ({"item_name": "x"}, "item_name"),
        ({"items": [{"aValue": 1}, {"aValue": "1"}]}, "items[1].aValue"),
        ({"items": [{"aValue": 1, "b": 1}]}, "items[0].b"),
        ({"items": [{}]}, "items[0].aValue"),
        ({"items": 5}, "items"),
    ],
)
async def test_faults_are_named_as_on_the_wire(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await invoke(operation(echo), context(), raw)
    assert [fault.field for fault in raised.value.faults] == [field]
    assert raised.value.message.startswith(f"{field}: ")


async def test_only_so_many_faults_are_told() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await invoke(operation(echo), context(), {"items": [1] * 5000})
    assert len(raised.value.faults) == 10


async def test_values_are_not_in_the_error() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await invoke(operation(echo), context(), {"items": "hunter2", "secret": {"hunter2": 1}})
    assert "hunter2" not in str(raised.value.body())


async def test_a_bug_becomes_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_context: Context, _params: ItemParams) -> None:
        raise KeyError("oops")

    before = count("internal_error")
    with pytest.raises(InternalError, match="request-1") as raised:
        await invoke(operation(fail), context(), {"secret": "hunter2"})
    assert "oops" not in str(raised.value.body())
    assert "request-1" in caplog.text
    assert "hunter2" not in caplog.messages[0]
    assert count("internal_error") == before + 1


async def test_outcomes_are_counted() -> None:
    async def refuse(_context: Context, _params: ItemParams) -> None:
        raise BadGateway("no", log_text="why")

    before = count("ok"), count("bad_gateway")
    await invoke(operation(echo), context(), {})
    with pytest.raises(BadGateway):
        await invoke(operation(refuse), context(), {})
    assert (count("ok"), count("bad_gateway")) == (before[0] + 1, before[1] + 1)


async def test_cancellation_is_let_through_and_counted() -> None:
    started = asyncio.Event()

    async def wait(_context: Context, _params: ItemParams) -> None:
        started.set()
        await asyncio.Event().wait()

    before = count("cancelled")
    task = asyncio.create_task(invoke(operation(wait), context(), {}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count("cancelled") == before + 1


# -- keys


class Counter:
    """A handler that tells how often it ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, _context: Context, _params: ItemParams) -> Reply:
        self.runs += 1
        self.started.set()
        await self.go.wait()
        return Reply({"run": self.runs})


@pytest.mark.postgres
async def test_a_key_has_one_effect(migrated_dsn: str) -> None:
    clock = MovedClock()
    async with open_database(migrated_dsn) as database:
        # Two of them: two processes.
        services = [Service(Idempotency(database), clock) for _ in range(2)]
        handler = Counter()
        create = operation(handler, idempotent_by_key=True)

        async def run(raw: dict[str, Any], *, at: int = 0, role: Role = Role.ADMIN, key: str = "k") -> bytes:
            return result_json(await invoke(create, context(services[at], role, key), raw))

        handler.go.clear()
        tasks = [asyncio.create_task(run({"itemName": "a"}, at=at)) for at in (0, 1, 0)]
        await handler.started.wait()
        handler.go.set()
        assert await asyncio.gather(*tasks) == [b'{"run":1}'] * 3
        assert await run({"itemName": "a", "secret": "left out of the hash"}) == b'{"run":1}'
        with pytest.raises(Conflict):
            await run({"itemName": "b"})
        assert await run({"itemName": "b"}, role=Role.USER) == b'{"run":2}'
        assert await run({"itemName": "b"}, key="other") == b'{"run":3}'
        clock.forward_ms += 24 * 3_600_000 - 60_000
        assert await run({"itemName": "a"}) == b'{"run":1}'
        clock.forward_ms += 120_000
        assert await run({"itemName": "b"}) == b'{"run":4}'


@pytest.mark.postgres
async def test_a_failure_leaves_the_key_free(migrated_dsn: str) -> None:
    async with open_database(migrated_dsn) as database:
        services, outcomes = Service(Idempotency(database)), [Conflict("no"), None]

        async def once(_context: Context, _params: ItemParams) -> dict[str, Any]:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome
            return {}

        create = operation(once, idempotent_by_key=True)
        with pytest.raises(Conflict):
            await invoke(create, context(services, key="k"), {})
        assert await invoke(create, context(services, key="k"), {}) == {}


async def test_keys_are_ignored_where_they_mean_nothing() -> None:
    assert await invoke(operation(echo), context(key=""), {}) == {"name": "x"}
    free = operation(echo, name="getVersion", idempotent_by_key=True)
    assert await invoke(free, context(role=None, key="k"), {}) == {"name": "x"}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x00b", "a\nb", 5, ["x"]])
async def test_bad_keys(key: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await invoke(operation(echo, idempotent_by_key=True), context(key=key), {})
    assert raised.value.faults[0].field == "Idempotency-Key"


# -- registry


def test_names_and_routes_are_unique() -> None:
    first = operation(echo, former_names=("admin/run",))
    registry = Registry([first])
    assert registry.find("admin/run") is first
    assert registry.find("nothing") is None
    for second in (
        operation(echo, former_names=("admin/run",), name="producer", route=Route("GET", "/x")),
        operation(echo, name="getVersion"),
    ):
        with pytest.raises(ValueError):
            Registry([first, second])


def test_an_operation_must_be_in_the_permission_table() -> None:
    with pytest.raises(ValueError, match="test/new is not in the permission table"):
        operation(echo, name="test/new")


def test_results_as_json() -> None:
    assert result_json(None) == b""
    assert result_json(Item(a_value=1)) == b'{"aValue":1}'
    assert result_json([Item(a_value=1)]) == b'[{"aValue":1}]'
    assert result_json(Reply(Item(a_value=1), {"ETag": "x"})) == b'{"aValue":1}'
    assert result_json(Json(b"[1]")) == b"[1]"
    assert replace(operation(echo), tag="t").tag == "t"
