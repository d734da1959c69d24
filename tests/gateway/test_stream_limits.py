"""What is bounded for readers of event streams, in a gateway whose bounds are small."""

import asyncio

import orjson
import pytest

from broker.resources.notifications import REFUSALS, STREAM_REFUSALS
from tests.gateway.streams import Stream
from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {
    "ws_messages_per_s": 0,
    "ws_ping_s": 0.4,
    "ws_pong_s": 0.2,
    "ws_handshake_s": 1.0,
    "ws_lag_bytes": 64 << 10,
    "ws_lag_s": 3.0,
    "ws_connections_per_address": 8,
    "trusted_proxies": (),
}


async def test_streams_count_as_connections_of_their_address(world: World) -> None:
    program = await world.program()
    viewers = 1  # the admin's
    streams = [await Stream.open(world.port, program) for _ in range(8 - viewers)]
    async with await Stream.open(world.port, program) as stream:
        status, body = await stream.refused()
        assert (status, body["error"]) == (429, "slow_down")
        assert int(stream.headers["retry-after"]) > 0
    assert world.gateway.stats()["accounts"]["demo"] == 8
    for each in streams:
        await each.close()


async def test_silent_stream_has_comments(world: World) -> None:
    program = await world.program()
    async with await Stream.open(world.port, program) as stream:
        await stream.next("subscribed")
        await asyncio.sleep(1.5)
        await world.publish(program)
        await stream.next("event")
        assert stream.comments >= 2


@pytest.mark.parametrize("path", [b"/api/v1/programs/p/events/stream", b"/api/v1/ws"])
async def test_request_that_comes_too_slowly_is_ended(world: World, path: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(b"GET %s HTTP/1.1\r\nHost: demo.localhost\r\n" % path)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    told = orjson.loads(body)
    assert (head.split()[1], told["error"]) == (b"408", "request_timeout")
    for refusals in (REFUSALS, STREAM_REFUSALS):
        assert (told["status"], told["error"]) in {(each.status, each.error) for each in refusals}


async def test_slow_reader_is_closed_and_holds_up_nobody(world: World) -> None:
    program = await world.program()
    slow = await Stream.open(world.port, program, limit=1 << 14)
    seen_id = (await slow.next("subscribed")).id
    stream = await Stream.open(world.port, program)
    await stream.next("subscribed")
    before = world.gateway.stats()["slow_consumers"]
    seen = 0
    async with asyncio.timeout(30):
        while world.gateway.stats()["slow_consumers"] == before:
            await world.publish(program, 5, bytes_each=50_000)
            assert await stream.seqs(5) == list(range(seen + 1, seen + 6))
            seen += 5
            await asyncio.sleep(0.1)
    await stream.close()
    await slow.close()
    assert seen_id is not None
    async with await Stream.open(world.port, program, headers={"Last-Event-ID": seen_id}) as back:
        assert (await back.next("subscribed")).data["recovered"]
        assert await back.seqs(seen) == list(range(1, seen + 1))
