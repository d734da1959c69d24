"""Closing, draining, limits: one world for each, with settings of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from broker.operations.gateway_figures import total
from broker.storage.gateways import Gateways
from tests.gateway.world import RpcError, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module")
async def patient(module_dsn: str) -> AsyncIterator[World]:
    """Nothing but the limits under test is small here."""
    async with open_world(
        module_dsn,
        ws_messages_per_s=20,
        ws_messages_burst=30,
        ws_subscriptions=3,
        ws_ping_s=0.4,
        ws_pong_s=0.4,
        ws_lag_bytes=64 << 10,
        ws_connections_per_address=8,
        trusted_proxies=(),
    ) as world:
        yield world


@pytest.fixture
async def strict(patient: World) -> AsyncIterator[World]:
    yield patient
    await patient.leave()


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


async def test_too_many_messages_are_slowed(strict: World) -> None:
    viewer = await strict.join()
    numbers = [await viewer.send("servertime") for _ in range(40)]
    answers = await asyncio.gather(*(viewer.answer(number) for number in numbers), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RpcError)]
    assert 5 <= len(refused) <= 10
    assert {(error.code, error.name) for error in refused} == {(429, "slow_down")}


async def test_subscriptions_of_a_connection_are_bounded(strict: World) -> None:
    programs = [await strict.program() for _ in range(4)]
    viewer = await strict.join()
    for program in programs[:3]:
        await viewer.call("subscribe", programId=program)
    with pytest.raises(RpcError) as caught:
        await viewer.call("subscribe", programId=programs[3])
    assert caught.value.code == 429
    await viewer.call("unsubscribe", programId=programs[0])
    await viewer.call("subscribe", programId=programs[3])


async def test_connections_of_an_address_are_bounded(strict: World) -> None:
    for _ in range(8):
        await strict.join()
    with pytest.raises(InvalidStatus) as caught:
        await strict.join()
    assert caught.value.response.status_code in {429, 503}


async def test_connection_that_answers_no_ping_is_closed(strict: World) -> None:
    reader, writer = await open_raw(strict)
    async with asyncio.timeout(5):
        data = await reader.read()
    assert b"\x89" in data[:200] or data[:1] == b"\x89"
    writer.close()
    await writer.wait_closed()


async def test_slow_consumer_is_closed_and_holds_up_nobody(strict: World) -> None:
    program = await strict.program()
    _, writer = await open_raw(strict, subscribe=program)
    viewer = await strict.join()
    epoch = (await viewer.call("subscribe", programId=program))["epoch"]
    before = strict.gateway.stats()["slow_consumers"]
    seen = 0
    async with asyncio.timeout(20):
        while strict.gateway.stats()["slow_consumers"] == before:
            await strict.publish(program, 5, bytes_each=50_000)
            assert await viewer.pushes(5) == list(range(seen + 1, seen + 6))
            seen += 5
            await asyncio.sleep(0.06)  # the rate limit of this world
    writer.close()
    back = await strict.join()
    answer = await back.call("subscribe", programId=program, since={"epoch": epoch, "seq": seen - 1})
    assert answer["recovered"]


async def open_raw(
    world: World, subscribe: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket after its handshake, whose owner never reads by itself nor answers pings."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1 << 14)
    writer.write(
        b"GET /api/v1/ws HTTP/1.1\r\nHost: demo.localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    if subscribe is not None:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{{"programId":"{subscribe}"}}}}'
        writer.write(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode())
        await reader.readexactly(4)
    return reader, writer


async def test_figures_are_beaten_into_the_table(world: World) -> None:
    program = await world.program()
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    await world.publish(program, 3)
    await viewer.pushes(3)
    await world.gateway._beat()
    rows = await Gateways(world.product.services.database).list_alive()
    assert total(rows, "connections") >= 2
    assert total(rows, "subscriptions") >= 1
    assert total(rows, "deliveries") >= 3
    answer = await viewer.call("connect")
    assert answer["servers"][0]["connections"] >= 2
    assert answer["retryAfterMs"] == 0


async def test_draining_gateway_sends_its_clients_away(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        viewers = [await world.join() for _ in range(5)]
        began = asyncio.get_running_loop().time()
        draining = asyncio.create_task(world.gateway.drain(0.5))
        told = [await viewer.next("reconnect") for viewer in viewers]
        assert all(0 <= each["afterMs"] <= 500 for each in told)
        closes = await asyncio.gather(*(viewer.closed() for viewer in viewers))
        assert {code for code, _ in closes} == {1012}
        await draining
        assert asyncio.get_running_loop().time() - began < 4
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
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert left <= {asyncio.current_task()}


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
