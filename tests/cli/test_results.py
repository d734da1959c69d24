"""`broker results --watch`, against a real gateway whose connections can be cut."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from broker.cli.main import run
from tests.client.doors import open_doors
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
    screen = Screen(capsys)
    await admin.call("respond", **place, visitorId="a")
    async with open_doors(world) as doors:
        token = world.product.tokens["user"]
        options = ["--watch", "--json", "--url", doors.url, "--token", token]
        watching = asyncio.create_task(asyncio.to_thread(run, ["results", program, *options]))
        await screen.shows(1)
        await admin.call("respond", **place, visitorId="b")
        await screen.shows(2)
        doors.relay.is_open = False
        doors.relay.cut()
        await admin.call("respond", **place, visitorId="c")
        await asyncio.sleep(0.2)
        doors.relay.is_open = True
        await screen.shows(3)
        await admin.call("admin/deleteProgram", programId=program)
        async with asyncio.timeout(20):
            assert await watching == 1
    assert screen.totals == [1, 2, 3]
    # of the end the channel tells, or a report that is just being read
    assert capsys.readouterr().err.startswith("error: ")
