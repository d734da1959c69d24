"""Several notifications as one message, for clients that ask for it with `?batch=true`."""

import asyncio
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

EVENTS = 300


async def subscribe(world: World, program: str, compression: str | None) -> ClientConnection:
    """A subscriber that wants batches."""
    socket = await connect(
        f"ws://demo.localhost:{world.port}/api/v1/ws?batch=true",
        host="127.0.0.1",
        port=world.port,
        compression=compression,
        proxy=None,
    )
    call = {"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {"programId": program}}
    await socket.send(orjson.dumps(call).decode())
    assert orjson.loads(await socket.recv())["result"]["seq"] == 0
    return socket


async def receive(socket: ClientConnection, count: int) -> list[Any]:
    """Messages with `count` notifications in all."""
    messages: list[Any] = []
    async with asyncio.timeout(10):
        while sum(len(each) if isinstance(each, list) else 1 for each in messages) < count:
            messages.append(orjson.loads(await socket.recv()))
    return messages


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_events_that_come_together_are_one_array(world: World, compression: str | None) -> None:
    program = await world.program()
    socket = await subscribe(world, program, compression)
    viewer = await world.join()
    await viewer.call("subscribe", programId=program)
    await world.publish(program, EVENTS, bytes_each=200)
    messages = await receive(socket, EVENTS)
    await socket.close()
    expected = [await viewer.next() for _ in range(EVENTS)]
    flat = [each for message in messages for each in (message if isinstance(message, list) else [message])]
    assert flat == expected
    assert [each["params"]["seq"] for each in flat] == list(range(1, EVENTS + 1))
    assert len(messages) < EVENTS / 2
