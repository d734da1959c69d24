"""`broker.operations.invoke`: authorise, validate, run, count; and the registry it works from."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any, cast

import pytest
from pydantic import Field

from broker.clock import SystemClock
from broker.domain.users import Principal, Role
from broker.domain.values import FreeObject, Model
from broker.errors import (
    BadGateway,
    BrokerError,
    Conflict,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
)
from broker.ids import IdSource
from broker.metrics import catalogue, counts
from broker.operations.context import Context
from broker.operations.invoke import invoke, validate
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.registry import Effect, Operation, Registry, Route
from broker.operations.rendering import result_json
from broker.operations.results import Json, Reply
from broker.operations.services import Services
from broker.resources.catalogue import build_registry
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.idempotency import Idempotency
from tests.auth.services import open_database

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
        self.maintenance = KnownMaintenance(cast("Any", None))  # off, as it is not started


def context(
    services: Any = None, role: Role | None = Role.ADMIN, key: str | None = None, address: str = ""
) -> Context:
    principal = Principal("demo", role, None if role is None else f"user-{role}")
    made: Services = services or Service()
    return Context(made, principal, "request-1", address, idempotency_key=key)


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
    for sample in counts.samples():
        if (sample.name, tuple(sample.labels)) == (catalogue.OPERATIONS.name, ("ping", outcome)):
            assert isinstance(sample.value, float | int)
            return sample.value
    return 0


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


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"items": [5]}, "items[0]"),
        ({"item": "x"}, "item"),
        ({"names": 1}, "names"),
        ({"free": []}, "free"),
        ([], "body"),
    ],
)
async def test_no_class_of_ours_is_named(raw: Any, field: str) -> None:
    class Params(ItemParams):
        item: Item | None = None
        names: dict[str, int] | None = None
        free: FreeObject | None = None

    with pytest.raises(InvalidRequest) as raised:
        validate(Params, raw)
    assert raised.value.message == f"{field}: must be an object"


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
    [record] = caplog.records
    assert (record.message, record.__dict__["requestId"]) == ("operation_failed", "request-1")
    assert "hunter2" not in str({**record.__dict__, "exc_info": None, "exc_text": None})
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


AGE = "UPDATE idempotency_keys SET created_time = now() - interval '24 hours' {}"


@pytest.mark.postgres
async def test_a_key_has_one_result(migrated_dsn: str) -> None:
    async with open_database(migrated_dsn) as database:
        # Two of them: two processes.
        services = [Service(Idempotency(database)) for _ in range(2)]
        handler = Counter()
        create = operation(handler)

        async def run(
            raw: dict[str, Any], *, at: int = 0, role: Role | None = Role.ADMIN, key: str = "k", by: str = ""
        ) -> bytes:
            return result_json(await invoke(create, context(services[at], role, key, by), raw))

        handler.go.clear()
        tasks = [asyncio.create_task(run({"itemName": "a"}, at=at)) for at in (0, 1, 0)]
        await handler.started.wait()
        handler.go.set()
        first = {*await asyncio.gather(*tasks)}
        assert len(first) == 1
        with pytest.raises(Conflict):
            await run({"itemName": "b"})
        assert {await run({"itemName": "b"}, role=Role.USER)} != first
        assert {await run({"itemName": "b"}, key="other")} != first
        async with database.connection() as connection:
            await connection.execute(AGE.format("+ interval '1 minute'"))
            assert {await run({"itemName": "a"})} == first
            await connection.execute(AGE.format(""))
        assert {await run({"itemName": "b"})} != first


@pytest.mark.postgres
async def test_callers_without_a_token_are_told_apart_by_address(migrated_dsn: str) -> None:
    async with open_database(migrated_dsn) as database:
        services = Service(Idempotency(database))
        create = operation(Counter(), name="storeValue")

        async def run(by: str) -> bytes:
            return result_json(await invoke(create, context(services, None, "k", by), {}))

        first = await run("192.0.2.1")
        assert await run("192.0.2.1") == first
        assert await run("192.0.2.2") != first


@pytest.mark.postgres
async def test_what_was_done_goes_with_its_key_or_not_at_all(own_migrated_dsn: str) -> None:
    """The effect of a request that finds its key used is undone, and so is that of one that fails."""
    async with open_database(own_migrated_dsn) as database:
        services = Service(Idempotency(database))
        await _fetch(database, "CREATE TABLE effects (n serial)")
        fails = [False]

        async def add(_context: Context, _params: ItemParams) -> dict[str, Any]:
            async with database.transaction() as connection:
                n = await connection.fetchval("INSERT INTO effects DEFAULT VALUES RETURNING n")
            async with database.transaction() as connection:  # a second one is part of it
                await connection.execute("INSERT INTO effects DEFAULT VALUES")
            if fails[0]:
                raise Conflict("no")
            return {"n": n}

        create = operation(add)
        first = await invoke(create, context(services, key="k"), {})
        again = await invoke(create, context(services, key="k"), {})
        assert result_json(again) == result_json(first)
        fails[0] = True
        with pytest.raises(Conflict):
            await invoke(create, context(services, key="new"), {})
        # The one that failed because it was done before: it is answered as the first time.
        assert result_json(await invoke(create, context(services, key="k"), {})) == result_json(first)
        assert await _fetch(database, "SELECT count(*) FROM effects") == 2
        assert await _fetch(database, "SELECT count(*) FROM idempotency_keys") == 1


@pytest.mark.postgres
async def test_what_is_resumable_commits_before_its_end(own_migrated_dsn: str) -> None:
    async with open_database(own_migrated_dsn) as database:
        await _fetch(database, "CREATE TABLE steps (n serial)")

        async def step(_context: Context, _params: ItemParams) -> dict[str, Any]:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO steps DEFAULT VALUES")
            return {"steps": await asyncio.create_task(_fetch(database, "SELECT count(*) FROM steps"))}

        work, services = operation(step, is_resumable=True), Service(Idempotency(database))
        first = await invoke(work, context(services, key="k"), {})
        assert first == {"steps": 1}
        assert result_json(await invoke(work, context(services, key="k"), {})) == result_json(first)


@pytest.mark.postgres
async def test_what_is_told_is_told_after_the_commit(own_migrated_dsn: str) -> None:
    async with open_database(own_migrated_dsn) as database:
        await _fetch(database, "CREATE TABLE told (n serial)")
        seen: list[int] = []

        async def add(context: Context, _params: ItemParams) -> None:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO told DEFAULT VALUES")
            context.after(look)

        async def look() -> None:
            count = asyncio.create_task(_fetch(database, "SELECT count(*) FROM told"))
            seen.append(await count)  # by another connection

        await invoke(operation(add), context(Service(Idempotency(database)), key="k"), {})
        await invoke(operation(add), context(Service()), {})
        assert seen == [1, 2]


async def _fetch(database: Database, statement: str) -> Any:
    async with database.connection() as connection:
        return await connection.fetchval(statement)


@pytest.mark.postgres
async def test_a_failure_leaves_the_key_free(migrated_dsn: str) -> None:
    async with open_database(migrated_dsn) as database:
        services, outcomes = Service(Idempotency(database)), [Conflict("no"), None]

        async def once(_context: Context, _params: ItemParams) -> dict[str, Any]:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome
            return {}

        create = operation(once)
        with pytest.raises(Conflict):
            await invoke(create, context(services, key="k"), {})
        assert await invoke(create, context(services, key="k"), {}) == {}


async def test_keys_are_ignored_where_nothing_is_changed() -> None:
    read = operation(echo, route=Route("GET", "/run"))
    assert await invoke(read, context(key=""), {}) == {"name": "x"}


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x00b", "a\nb", 5, ["x"]])
async def test_bad_keys(key: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await invoke(operation(echo), context(key=key), {})
    assert raised.value.faults[0].field == "Idempotency-Key"


@pytest.mark.parametrize(("method", "kind"), [("GET", Unavailable), ("DELETE", OutcomeUnknown)])
async def test_only_what_changes_something_may_have_been_done(method: str, kind: type[BrokerError]) -> None:
    async def lose(_context: Context, _params: ItemParams) -> None:
        raise OutcomeUnknown("lost", retry_after_s=2)

    with pytest.raises(Unavailable) as raised:
        await invoke(operation(lose, route=Route(method, "/run")), context(), {})
    assert (type(raised.value), raised.value.retry_after_s) == (kind, 2)


REPORTS = {f"{method}AnalyticsReport" for method in ("post", "put", "patch", "delete")}
CHANGE_NOTHING = {"login", "ping", "servertime", "warmImages", "createVisitor"} | REPORTS
COUNTED = {"respond", "impression"}  # over WebSocket alone
AT_OTHERS = {"postApplicationRequest", "putApplicationRequest", "deleteApplicationRequest"}


def test_every_change_takes_a_key() -> None:
    for each in build_registry().operations:
        if each.name in AT_OTHERS:
            assert each.effect is Effect.UNKEYED
        elif each.name in COUNTED:
            assert each.effect is Effect.KEYED
        elif each.route is None or each.route.method == "GET" or each.name in CHANGE_NOTHING:
            assert each.effect is Effect.NONE
        else:
            assert each.effect is Effect.KEYED


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
