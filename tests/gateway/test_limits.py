"""What is bounded for each connection, in a gateway whose bounds are small."""

import asyncio

import pytest
from websockets.exceptions import InvalidStatus

from tests.gateway.world import RpcError, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {
    "ws_messages_per_s": 20,
    "ws_messages_burst": 30,
    "ws_subscriptions": 3,
    "ws_ping_s": 0.4,
    "ws_pong_s": 4.0,  # longer than a slow consumer is waited for, which answers none
    "ws_lag_bytes": 64 << 10,
    "ws_connections_per_address": 8,
    "trusted_proxies": (),
}


async def test_too_many_messages_are_slowed(world: World) -> None:
    viewer = await world.join()
    numbers = [await viewer.send("servertime") for _ in range(40)]
    answers = await asyncio.gather(*(viewer.answer(number) for number in numbers), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RpcError)]
    assert 5 <= len(refused) <= 10
    assert {(error.code, error.name) for error in refused} == {(429, "slow_down")}


async def test_subscriptions_of_a_connection_are_bounded(world: World) -> None:
    programs = [await world.program() for _ in range(4)]
    viewer = await world.join()
    for program in programs[:3]:
        await viewer.call("subscribe", programId=program)
    with pytest.raises(RpcError) as caught:
        await viewer.call("subscribe", programId=programs[3])
    assert caught.value.code == 429
    await viewer.call("unsubscribe", programId=programs[0])
    await viewer.call("subscribe", programId=programs[3])


async def test_connections_of_an_address_are_bounded(world: World) -> None:
    for _ in range(8):
        await world.join()
    with pytest.raises(InvalidStatus) as caught:
        await world.join()
    assert caught.value.response.status_code in {429, 503}


async def test_connection_that_answers_no_ping_is_closed(world: World) -> None:
    reader, writer = await open_raw(world)
    async with asyncio.timeout(20):
        data = await reader.read()
    assert b"\x89" in data[:200] or data[:1] == b"\x89"
    writer.close()
    await writer.wait_closed()


async def test_slow_consumer_is_closed_and_holds_up_nobody(world: World) -> None:
    program = await world.program()
    _, writer = await open_raw(world, subscribe=program)
    viewer = await world.join()
    epoch = (await viewer.call("subscribe", programId=program))["epoch"]
    before = world.gateway.stats()["slow_consumers"]
    seen = 0
    async with asyncio.timeout(20):
        while world.gateway.stats()["slow_consumers"] == before:
            await world.publish(program, 5, bytes_each=50_000)
            assert await viewer.pushes(5) == list(range(seen + 1, seen + 6))
            seen += 5
            await asyncio.sleep(0.3)  # the rate limit of this world, where each event counts
    writer.close()
    back = await world.join()
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
