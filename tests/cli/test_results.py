"""`broker results --watch`, against a real gateway whose connections can be cut."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from broker.cli.main import run
from tests.client.peer import Answer, Asked, serving
from tests.client.test_gateway import Relay
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

POLL = {"title": "Who wins?", "options": ["Home", "Away"]}


@pytest.fixture
async def world(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn) as world:
        yield world


class Screen:
    """The totals that the command has written."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.totals: list[int] = []

    async def shows(self, total: int) -> None:
        async with asyncio.timeout(20):
            while total not in self.totals:
                await asyncio.sleep(0.05)
                lines = self._capsys.readouterr().out.splitlines()
                self.totals += [orjson.loads(line)["total"] for line in lines]


async def test_watched_results_go_on_over_lost_connections(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    program, admin = await world.program(), await world.admin()
    asked = await admin.call("producer", programId=program, event="Poll#show", metadata=POLL)
    place = {"programId": program, "measureName": "whoWins", "contextId": asked["id"], "measureValue": 1}
    relay = Relay(world.port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]

    async def answer(asked: Asked) -> Answer:
        if asked.target.endswith("/connect"):
            return Answer(200, {"url": f"ws://demo.localhost:{relay.port}/api/v1/ws", "servers": []})
        async with world.product.door("user") as door:
            reply = await door.get(asked.target.removeprefix("/api/v1"))
        return Answer(reply.status_code, reply.json())

    screen = Screen(capsys)
    await admin.call("respond", **place, visitorId="a")
    async with server, serving(answer) as api:
        token = world.product.tokens["user"]
        options = ["--watch", "--json", "--url", api.url, "--token", token]
        watching = asyncio.create_task(asyncio.to_thread(run, ["results", program, *options]))
        await screen.shows(1)
        await admin.call("respond", **place, visitorId="b")
        await screen.shows(2)
        relay.is_open = False
        relay.cut()
        await admin.call("respond", **place, visitorId="c")
        await asyncio.sleep(0.2)
        relay.is_open = True
        await screen.shows(3)
        await admin.call("admin/deleteProgram", programId=program)
        async with asyncio.timeout(20):
            assert await watching == 1
    assert screen.totals == [1, 2, 3]
    # of the end the channel tells, or a report that is just being read
    assert capsys.readouterr().err.startswith("error: ")
