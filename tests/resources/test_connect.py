import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from broker._native import Gateways as Directory
from broker.clock import SystemClock
from broker.domain.users import Principal
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.operations.known_gateways import KnownGateways, url_template
from broker.operations.results import Json
from broker.resources.connect import OPERATIONS, Connect
from broker.settings import Settings
from broker.storage.gateways import GatewayRow, Gateways
from tests.auth.services import open_services
from tests.owners.test_frozen import frozen

pytestmark = pytest.mark.anyio

URL = "ws://{account}localhost:8001/api/v1/ws"


def gateway(name: str, connections: int, *, draining: bool = False) -> GatewayRow:
    return GatewayRow(name, URL.replace("8001", f"80{name}"), connections, draining)


def test_every_gateway_is_named_and_less_load_comes_first_more_often() -> None:
    gateways = [gateway("01", 0), gateway("02", 1_000), gateway("03", 2_000)]
    answers = [answer_of(gateways) for _ in range(1_000)]
    assert {server.connections for server in answers[0].servers} == {0, 1_000, 2_000}
    assert answers[0].retry_after_ms == 0
    assert [answer for answer in answers if answer.url != answer.servers[0].url] == []
    first = Counter(answer.servers[0].connections for answer in answers)
    # Weights 1/501, 1/1501 and 1/2501: 650, 220 and 130 of a thousand.
    assert 500 < first[0] < 800
    assert 70 < first[2_000] < first[1_000] < 400


@pytest.mark.parametrize("connections", [7, 50_000])
def test_equals_are_chosen_by_chance(connections: int) -> None:
    gateways = [gateway(f"{index:02}", connections) for index in range(8)]
    assert len({answer_of(gateways).url for _ in range(200)}) == 8


def test_viewers_of_a_program_meet_until_their_gateway_is_full() -> None:
    gateways = [gateway(f"{index:02}", 100) for index in range(8)]
    (url,) = {answer_of(gateways, "final").url for _ in range(20)}
    full = [replace(row, connections=500) if url_of_row(row) == url else row for row in gateways]
    (other,) = {answer_of(full, "final").url for _ in range(20)}
    assert other != url
    assert len({answer_of(gateways, f"program {index}").url for index in range(100)}) == 8


@pytest.mark.postgres
async def test_viewers_of_one_heartbeat_are_spread(migrated_dsn: str) -> None:
    async with open_services(migrated_dsn) as services:
        for index in range(4):
            await Gateways(services.database).beat(gateway(f"{index:02}", 0))
        context = Context(services, Principal("demo"), "request")
        for params in ({}, {"programId": "final"}):
            urls: Counter[str] = Counter()
            for _ in range(400):
                urls[(await ask(context, params)).url] += 1
            assert len(urls) >= 3  # a program needs no more
            assert max(urls.values()) < 200


class Counted(Gateways):
    """Counts the queries."""

    reads = 0

    async def list_alive(self) -> list[GatewayRow]:
        self.reads += 1
        return await super().list_alive()


class StandingClock(SystemClock):
    """Nothing becomes old by it."""

    def monotonic_s(self) -> float:
        return 1_000.0


@pytest.mark.postgres
async def test_it_costs_no_query(migrated_dsn: str) -> None:
    async with open_services(migrated_dsn) as services:
        await Gateways(services.database).beat(gateway("01", 5))
        counted = Counted(services.database)
        known = KnownGateways(counted, StandingClock(), Settings())
        context = Context(replace(services, known_gateways=known), Principal("demo"), "request")
        first = await ask(context, {})
        for _ in range(100):
            again = await ask(context, {})
            assert [server.url for server in again.servers] == [server.url for server in first.servers]
            await asyncio.sleep(0)  # a query that was begun is asked
        assert counted.reads == 1
        await services.database.close()
        again = await ask(context, {})
        assert [server.url for server in again.servers] == [server.url for server in first.servers]
        await known.close()


@pytest.mark.postgres
async def test_who_wants_to_hears_what_was_read_and_nothing_else(migrated_dsn: str) -> None:
    async with open_services(migrated_dsn) as services:
        heard: list[list[str]] = []
        known = KnownGateways(Gateways(services.database), SystemClock(), Settings())
        known.on_read(lambda rows: heard.append([row.id for row in rows]))
        await Gateways(services.database).beat(gateway("01", 5))
        await known.advise("demo")
        assert heard == [["01"]]
        await services.database.close()
        known._tried_s = None
        await known.refresh()
        while known.is_reading:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        assert heard == [["01"]]
        await known.close()


@pytest.mark.postgres
async def test_nobody_waits_for_a_database_that_stands_still(migrated_dsn: str) -> None:
    async with open_services(migrated_dsn) as services:
        known = services.known_gateways
        async with frozen(migrated_dsn):
            answer = Connect.model_validate_json((await known.advise("demo"))[0])
            assert answer.servers == []
            assert known.is_reading, "the answer came after the database's"
        await known.close()


async def ask(context: Context, params: dict[str, str]) -> Connect:
    """What a caller is told, held against the model of the documents."""
    result = await invoke(OPERATIONS[0], context, params)
    assert isinstance(result, Json)
    return Connect.model_validate_json(result.body)


def answer_of(
    gateways: list[GatewayRow], program_id: str | None = None, account: str = "demo", **settings: str
) -> Connect:
    """The first answer of a directory."""
    known = Settings(**settings)  # type: ignore[arg-type]  # texts alone
    directory = Directory(
        url=url_template(known), public_host=known.public_host, default_account=known.default_account
    )
    directory.set([(row.id, row.url, row.connections, row.draining) for row in gateways])
    return Connect.model_validate_json(directory.advise(account, program_id)[0])


def url_of_row(row: GatewayRow) -> str:
    return row.url.replace("{account}", "")


@pytest.mark.parametrize(("account", "host"), [("demo", "localhost"), ("other", "other.localhost")])
def test_url_has_the_label_of_the_account(account: str, host: str) -> None:
    assert answer_of([gateway("01", 0)], account=account).url == f"ws://{host}:8001/api/v1/ws"


def test_draining_gateway_is_not_named() -> None:
    answer = answer_of([gateway("01", 0, draining=True), gateway("02", 7)])
    assert [server.connections for server in answer.servers] == [7]
    assert answer.retry_after_ms == 0


@pytest.mark.parametrize(
    "gateways",
    [
        [],
        [gateway("01", 0, draining=True)],
        [gateway("01", 0, draining=True), gateway("02", 1, draining=True), gateway("03", 2)],
    ],
)
def test_clients_are_told_to_wait_while_gateways_leave(gateways: list[GatewayRow]) -> None:
    answer = answer_of(gateways)
    assert 500 <= answer.retry_after_ms <= 5_000
    assert answer.url.startswith("ws://localhost:80")


def test_public_url_may_say_where_the_account_goes() -> None:
    answer = answer_of([], account="other", public_ws_url="wss://{account}live.example/api/v1/ws")
    assert answer.url == "wss://other.live.example/api/v1/ws"


@pytest.mark.postgres
async def test_gateways_that_are_alive_are_named(migrated_dsn: str) -> None:
    async with open_services(migrated_dsn) as services:
        gateways = Gateways(services.database)
        await gateways.beat(gateway("01", 5))
        await gateways.beat(gateway("02", 2))
        await gateways.beat(gateway("01", 1))
        async with services.database.connection() as connection:
            await connection.execute(
                "INSERT INTO gateways VALUES ('03', 'ws://x', 0, false, '{}', now() - interval '11 s')"
            )
        context = Context(services, Principal("demo"), "request")
        answer = await ask(context, {})
        named = {(server.url[-15:-10], server.connections) for server in answer.servers}
        assert named == {(":8001", 1), (":8002", 2)}
        await gateways.remove("01")
        assert [row.id for row in await gateways.list_alive()] == ["02"]
