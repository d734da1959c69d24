from typing import Any

import pytest

from broker.domain.users import Principal
from broker.operations.connect import OPERATIONS, advise
from broker.operations.context import Context
from broker.operations.invoke import invoke
from broker.settings import Settings
from broker.storage.gateways import GatewayRow, Gateways
from tests.auth.services import open_services

pytestmark = pytest.mark.anyio

URL = "ws://{account}localhost:8001/api/v1/ws"


def gateway(name: str, connections: int, *, draining: bool = False) -> GatewayRow:
    return GatewayRow(name, URL.replace("8001", f"80{name}"), connections, draining)


def test_least_loaded_gateway_comes_first() -> None:
    gateways = [gateway("01", 3), gateway("02", 5), gateway("03", 9)]
    answer = advise(gateways, "demo", Settings())
    assert answer.url == "ws://localhost:8001/api/v1/ws"
    assert answer.servers[0].connections == 3
    assert {server.connections for server in answer.servers} == {3, 5, 9}
    assert answer.retry_after_ms == 0


def test_the_others_are_spread() -> None:
    gateways = [gateway(f"{index:02}", index) for index in range(8)]
    orders = {tuple(server.url for server in advise(gateways, "demo", Settings()).servers) for _ in range(20)}
    assert len(orders) > 1


@pytest.mark.parametrize(("account", "host"), [("demo", "localhost"), ("other", "other.localhost")])
def test_url_has_the_label_of_the_account(account: str, host: str) -> None:
    assert advise([gateway("01", 0)], account, Settings()).url == f"ws://{host}:8001/api/v1/ws"


def test_draining_gateway_is_not_named() -> None:
    answer = advise([gateway("01", 0, draining=True), gateway("02", 7)], "demo", Settings())
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
    answer = advise(gateways, "demo", Settings())
    assert 500 <= answer.retry_after_ms <= 5_000
    assert answer.url.startswith("ws://localhost:80")


def test_public_url_may_say_where_the_account_goes() -> None:
    settings = Settings(public_ws_url="wss://{account}live.example/api/v1/ws")
    assert advise([], "other", settings).url == "wss://other.live.example/api/v1/ws"


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
        answer: Any = await invoke(OPERATIONS[0], context, {})
        assert [(server.url[-15:-10], server.connections) for server in answer.servers] == [
            (":8001", 1),
            (":8002", 2),
        ]
        await gateways.remove("01")
        assert [row.id for row in await gateways.list_alive()] == ["02"]
