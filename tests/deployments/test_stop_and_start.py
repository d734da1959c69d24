"""An ordinary stop and start under an audience: whoever publishes, votes and follows goes on by itself.

Each of them is a process of its own that is at it the whole time, for about a minute: before the stop, while
the instance drains, while nothing listens, while it starts, and afterwards.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.settings import child_environment
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AROUND_S = 6.0  # of work before the stop, and after the start
DOWN_S = 3.0
VIEWERS = 10

MAIN = "from broker.cli.main import main; main()"

# Each ends when its input does, and then tells in one line what it has done.
_BODY = """
import asyncio, itertools, json, sys
from broker.client import Answer, AsyncClient

url, program, poll = sys.argv[1:4]

async def until_told(work):
    task = asyncio.create_task(work)
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
        raise SystemExit("it ended by itself")
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()

async def main():
    done = []
    async with AsyncClient(url, username="admin", password="{password}") as client:
        await client.login()
        print("begun", flush=True)
        await until_told(work(client, done))
    print(json.dumps(done), flush=True)

{work}
asyncio.run(main())
"""
_PUBLISHER = """
async def work(client, done):
    for n in itertools.count():
        event = await asyncio.shield(client.publish(program, "Score#update", {"n": n}))
        done.append([n, event.seq])
        await asyncio.sleep(0.1)
"""
_VOTER = """
async def work(client, done):
    for n in itertools.count():
        counted = await client.add_responses(program, [Answer("whoWins", poll, n % 2, f"visitor-{n}")])
        done.append(counted.accepted + counted.duplicates)
        await asyncio.sleep(0.1)
"""
_VIEWERS = """
async def work(client, done):
    async def watch(seen):
        async for event in client.subscribe(program):
            seen.append(event.seq)
    done += [[] for _ in range({viewers})]
    await asyncio.gather(*map(watch, done))
"""


class Worker:
    """A process that is at it until `end`, or that ends by itself if it cannot go on."""

    def __init__(self, instance: Instance, work: str, poll: str) -> None:
        work = work.replace("{viewers}", str(VIEWERS))
        code = _BODY.replace("{password}", PASSWORD).replace("{work}", work)
        self._process = _spawn([sys.executable, "-c", code, instance.url, "show", poll])
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n", self._process.communicate()

    def end(self) -> Any:
        """What it has done. Fails when it has ended already."""
        assert self._process.poll() is None, self._process.communicate()
        told, errors = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, errors
        return json.loads(told)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _spawn(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment({"BROKER_USERNAME": "admin", "BROKER_PASSWORD": PASSWORD}),
    )


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance(tmp_path / "data", environment={"BROKER_DRAIN_S": "4"})
    yield instance
    instance.end()


def test_everybody_goes_on_over_a_stop_and_a_start(instance: Instance) -> None:
    instance.start()
    poll = _prepare(instance)
    tail = _spawn([sys.executable, "-c", MAIN, "tail", "show", "--json", "--url", instance.url])
    workers = [Worker(instance, work, poll) for work in (_VIEWERS, _PUBLISHER, _VOTER)]
    try:
        time.sleep(AROUND_S)
        instance.stop()
        time.sleep(DOWN_S)
        instance.start()
        time.sleep(AROUND_S)
        assert tail.poll() is None, tail.communicate()
        published, voted = workers[1].end(), workers[2].end()
        newest = published[-1][1]
        time.sleep(2)
        seen = workers[0].end()
        tail.terminate()
        tailed = [json.loads(line)["seq"] for line in tail.communicate()[0].splitlines()]
    finally:
        tail.kill()
        tail.wait()
        for worker in workers:
            worker.kill()

    assert [n for n, _ in published] == list(range(len(published)))
    stored = _events(instance)
    # One publish may have been under way when its process was told to end.
    assert [event["metadata"]["n"] for event in stored] == list(range(len(stored)))
    assert len(stored) - len(published) in (0, 1)
    for viewed in (*seen, tailed):
        assert viewed == list(range(viewed[0], viewed[-1] + 1))
        assert viewed[0] <= published[5][1]
        assert viewed[-1] >= newest
    assert set(voted) == {1}
    assert _votes(instance) - len(voted) in (0, 1)


def _prepare(instance: Instance) -> str:
    """Makes the program `show` and asks its audience; the id of the poll."""
    with _api(instance) as api:
        assert api.post("/programs", json={"id": "show", "name": "Show"}).status_code == 201
        question = {"title": "Who wins", "options": ["Home", "Away"]}
        asked = api.post("/programs/show/events", json={"event": "Poll#show", "metadata": question})
        assert asked.status_code == 201
        return str(asked.json()["id"])


def _events(instance: Instance) -> list[Any]:
    with _api(instance) as api:
        events = api.get("/programs/show/events").json()
        return [event for event in events if event["event"] == "Score#update"]


def _votes(instance: Instance) -> int:
    time.sleep(1.5)  # what live results may be behind
    with _api(instance) as api:
        return int(api.get("/responses/demo/whoWins/results", params={"programId": "show"}).json()["total"])


def _api(instance: Instance) -> httpx.Client:
    return httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.token(), timeout=20)
