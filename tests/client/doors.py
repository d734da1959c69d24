"""Both doors of a world under one URL, the gateway's connections through a relay that can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.client.peer import Answer, Asked, serving
from tests.client.relay import Relay
from tests.gateway.world import World


@dataclass(frozen=True)
class Doors:
    """The base URL for a client, and what its WebSocket connections go through."""

    url: str
    relay: Relay


@asynccontextmanager
async def open_doors(world: World) -> AsyncIterator[Doors]:
    """Serve the product's HTTP door, but for where to connect."""
    relay = Relay(world.port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]

    async def answer(asked: Asked) -> Answer:
        if asked.target.endswith("/connect"):
            return Answer(200, {"url": f"ws://demo.localhost:{relay.port}/api/v1/ws", "servers": []})
        headers = {name: asked.headers[name] for name in ("authorization",) if name in asked.headers}
        if asked.body:
            headers["content-type"] = "application/json"
        async with world.product.door(None, **headers) as door:
            path = asked.target.removeprefix("/api/v1")
            reply = await door.request(asked.method, path, content=asked.body)
        return Answer(reply.status_code, reply.json())

    try:
        async with serving(answer) as api:
            yield Doors(api.url, relay)
    finally:
        relay.cut()
        server.close()
