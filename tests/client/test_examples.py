"""The examples in Python run: one follows and goes on where it stopped, one asks and announces the winner."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.client import Answer, AsyncClient, Conflict, NewEvent
from broker.settings import child_environment
from tests.auth.services import PASSWORD
from tests.client.doors import open_doors
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
TICK_S = 0.1


@pytest.fixture
async def world(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn) as world:
        yield world


async def test_the_examples_follow_and_ask(world: World, tmp_path: Path) -> None:
    async with open_doors(world) as doors:
        await _run_examples(doors.url, tmp_path)


async def _run_examples(url: str, folder: Path) -> None:
    known = {"BROKER_URL": url, "BROKER_USERNAME": "admin", "BROKER_PASSWORD": PASSWORD}
    environment = child_environment(known)

    async def start(name: str, *arguments: str) -> asyncio.subprocess.Process:
        program = (sys.executable, EXAMPLES / name, "examples-final", *arguments)
        return await asyncio.create_subprocess_exec(
            *program,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def read(process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        return (await process.stdout.readline()).decode().strip()

    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        await client.programs.create("examples-final", "The final")
        follower = await start("follow.py")
        life = asyncio.create_task(_publish(client, "examples-final"))
        assert " Clock#tick " in await read(follower)
        life.cancel()
        for votes, announced in (
            ([], "nobody has voted"),
            ([0, 1], "a draw: Home and Away have 1 of 2 votes each"),
            ([1], "Away wins, 1 of 1 votes"),
        ):
            quiz = await start("quiz.py", "Who wins?", "Home", "Away")
            assert await read(quiz) == "asked: Who wins? Press Enter to close the poll."
            while " Poll#show " not in (line := await read(follower)):
                assert line
            events = await client.events.list("examples-final")
            poll = [each for each in events if each.event == "Poll#show"][-1]
            answers = [Answer("quiz", poll.id, vote, f"visitor-{vote}") for vote in votes]
            await client.responses.add("examples-final", answers)
            assert quiz.stdin is not None
            quiz.stdin.write(b"\n")
            assert await read(quiz) == announced
            assert await quiz.wait() == 0
            with pytest.raises(Conflict):  # it is closed, as it has said
                await client.responses.add("examples-final", [Answer("quiz", poll.id, 1, "late")])
            winners = [e for e in await client.events.list("examples-final") if e.event == "Winner#show"]
            assert len(winners) == announced.count("wins")
        place = await read(follower)
        follower.send_signal(signal.SIGINT)
        assert await follower.wait() == 130
        await client.publish("examples-final", "Clock#stop")
        resumed = await start("follow.py")
        assert int((await read(resumed)).split()[0]) > int(place.split()[0])
        resumed.send_signal(signal.SIGINT)
        assert await resumed.wait() == 130
        await client.events.import_all("examples-final", [NewEvent("Clock#set")])
        found = await start("follow.py")
        assert (await read(found)).split()[1] == "Clock#set"
        await client.publish("examples-final", "Clock#start")
        assert (await read(found)).split()[1] == "Clock#start"
        found.send_signal(signal.SIGINT)
        assert await found.wait() == 130


async def _publish(client: AsyncClient, program: str) -> None:
    while True:
        await client.publish(program, "Clock#tick")
        await asyncio.sleep(TICK_S)
