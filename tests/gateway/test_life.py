"""Closing, draining, limits: one world for each, with settings of its own."""

import asyncio
import contextlib
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from broker.storage.gateways import Gateways
from tests.gateway.world import WAIT_S, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def test_message_up_to_the_limit_is_taken(world: World) -> None:
    viewer = await world.join()
    head, tail = '{"jsonrpc":"2.0","id":"big","method":"shout","params":{"x":"', '"}}'
    await viewer.socket.send(head + "x" * ((1 << 20) - len(head) - len(tail)) + tail)
    assert (await viewer.next("unasked"))["error"]["code"] == -32601


async def test_message_over_the_limit_closes_1009(world: World) -> None:
    viewer = await world.join()
    with contextlib.suppress(ConnectionClosed):
        await viewer.socket.send("x" * ((1 << 20) + 1))
    assert (await viewer.closed())[0] == 1009


async def test_binary_message_closes_1003(world: World) -> None:
    viewer = await world.join()
    await viewer.socket.send(b"{}")
    assert (await viewer.closed())[0] == 1003


async def test_invalid_utf8_closes_1007(world: World) -> None:
    viewer = await world.join()
    await viewer.socket.send(b"\xff\xfe", text=True)
    assert (await viewer.closed())[0] == 1007


async def test_deflate_is_agreed_on_and_used(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    assert "permessage-deflate" in viewer.socket.response.headers["Sec-WebSocket-Extensions"]  # type: ignore[union-attr]
    plain = await world.join(compression=None)
    for each in (viewer, plain):
        await each.call("subscribe", programId=program)
    await world.publish(program, 3, bytes_each=2_000)
    assert await viewer.pushes(3) == await plain.pushes(3) == [1, 2, 3]


async def test_connections_are_beaten_into_the_table(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    await world.publish(program, 3)
    await viewer.pushes(3)
    await world.gateway._beat()
    rows = await Gateways(world.product.services.database).list_alive()
    assert sum(row.connections for row in rows) >= 2
    async with asyncio.timeout(10):  # what a process knows of gateways may be a second old
        answer = await viewer.call("connect")
        while answer["servers"][0]["connections"] < 2:
            await asyncio.sleep(0.1)
            answer = await viewer.call("connect")
    assert answer["retryAfterMs"] == 0


async def test_figures_tell_what_clients_do(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    await world.publish(program, 3)
    await viewer.pushes(3)
    before = read_figures(world)
    flooded = await world.join()
    await flooded.socket.send(b"binary")
    assert (await flooded.closed())[0] == 1003
    await viewer.close()
    lost = await world.join()
    lost.socket.transport.abort()
    now = await figures_after(world, before, ("broker_gateway_closes_total", "lostlost"))
    assert before["broker_gateway_deliveries_total", ""] >= 3
    assert before["broker_gateway_subscriptions", ""] >= 1
    for code in ("1003binary", "clientclient"):
        ended = "broker_gateway_closes_total", code
        assert now[ended] == before[ended] + 1
    assert (now["broker_gateway_dead_loops", ""], world.gateway.find_fault()) == (0, "")
    assert 0 <= now["broker_gateway_loop_lag_seconds", "0"] < WAIT_S


async def test_a_gateway_keeps_as_many_bytes_of_a_program_as_it_may(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn, history_bytes=1 << 20, ws_messages_per_s=0) as world:
        program = await world.program()
        viewer = await world.join()
        await viewer.call("subscribe", programId=program)
        for _ in range(6):
            await world.publish(program, 20, bytes_each=50_000)
        assert await viewer.pushes(120) == list(range(1, 121))
        kept = read_figures(world)["broker_gateway_log_bytes", ""]
        assert 500_000 < kept < 5_000_000  # a burst may be four times as long for a second


async def figures_after(
    world: World, before: dict[tuple[str, str], Any], name: tuple[str, str]
) -> dict[tuple[str, str], Any]:
    """The figures once one of them has changed."""
    async with asyncio.timeout(WAIT_S):
        while (now := read_figures(world))[name] == before[name]:  # noqa: ASYNC110 - native code tells nobody
            await asyncio.sleep(0.01)
    return now


def read_figures(world: World) -> dict[tuple[str, str], Any]:
    """What the gateway tells, by name and label."""
    return {(sample.name, "".join(sample.labels)): sample.value for sample in world.gateway.figures()}


async def test_draining_gateway_sends_its_clients_away(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        viewers = [await world.join() for _ in range(5)]
        draining = asyncio.create_task(world.gateway.drain(0.5))
        told = [await viewer.next("reconnect") for viewer in viewers]
        assert [each for each in told if not 0 <= each["afterMs"] <= 500] == []
        closes = await asyncio.gather(*(viewer.closed() for viewer in viewers))
        assert {code for code, _ in closes} == {1012}
        await draining
        with pytest.raises((OSError, InvalidStatus)):
            await world.join()
        rows = await Gateways(world.product.services.database).list_alive()
        assert [row.draining for row in rows] == [True]


async def test_stopped_gateway_leaves_nothing_behind(migrated_dsn: str) -> None:
    before = asyncio.all_tasks()
    async with open_world(migrated_dsn) as world:
        viewer = await world.join()
        await viewer.call("subscribe", programId=await world.program())
        await world.gateway.stop()
        assert (await viewer.closed())[0] in {1001, 1006, 1012}
        rows = await Gateways(world.product.services.database).list_alive()
        assert rows == []
    left = [task.get_coro().cr_code.co_filename for task in asyncio.all_tasks() - before]
    assert [name for name in left if "broker/gateway" in name or "linked_feed" in name] == []


async def test_idle_view_of_the_programs_is_left(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        viewer = await world.join("user")
        views = world.gateway._views
        for _ in range(2):
            await viewer.call("subscribe", channel="programs")
            (topic,) = views._views["demo/channel/programs"]
            views.close_if_idle(topic)
            assert views.is_view(topic)
            await viewer.call("unsubscribe", channel="programs")
            views.close_if_idle(topic)
            assert not views.is_view(topic)
            assert world.gateway.stats()["logs"] == 0


async def test_idle_program_is_left(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        program = await world.program()
        topic = f"demo/program/{program}"
        viewer = await world.join()
        await viewer.call("subscribe", programId=program)
        await viewer.call("unsubscribe", programId=program)
        assert world.gateway._topics.close_if_idle(topic)
        assert world.gateway.stats()["logs"] == 0
        await world.publish(program, 2)
        assert (await viewer.call("subscribe", programId=program))["seq"] == 2
        await world.publish(program, 1)
        assert await viewer.pushes(1) == [3]
