"""An ordinary stop and start under an audience: whoever publishes, votes and follows goes on by itself.

Each of them is a process of its own that is at it the whole time, for about a minute: before the stop, while
the instance drains, while nothing listens, while it starts, and afterwards.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
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
        await client.tokens.create()
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
        counted = await client.responses.add(program, [Answer("whoWins", poll, n % 2, f"visitor-{n}")])
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


class Asker:
    """Asks the HTTP port on and on, in a thread; `told` is what it heard."""

    def __init__(self, instance: Instance) -> None:
        self.told: set[tuple[int, str, bool, bool]] = set()
        self._url = f"{instance.url}/api/v1/version"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.wait(0.01):
            with suppress(httpx.TransportError):
                reply = httpx.get(self._url, timeout=20)
                error = reply.json().get("error", "")
                is_plain = reply.headers.get("x-content-type-options") == "nosniff"
                self.told.add((reply.status_code, error, is_plain, "retry-after" in reply.headers))


@dataclass(frozen=True)
class Restart:
    """What was seen of a stop and a start.

    Attributes:
        published: the number and the sequence number of each event that was acknowledged.
        seen: the sequence numbers that each viewer and `broker tail` got.
        voted: of each call, how many answers were counted.
        told: what the HTTP port said meanwhile.
        left_nothing: whether no process and no file was left while it was stopped.
        logs: a copy of the logs of that time.
        request_id: of a request before the stop that was refused.
    """

    published: list[tuple[int, int]]
    seen: list[list[int]]
    voted: list[int]
    told: set[tuple[int, str, bool, bool]]
    left_nothing: bool
    logs: Path
    request_id: str


@pytest.fixture(scope="module")
def restart(instance: Instance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restart]:
    poll = _prepare(instance)
    refused = httpx.get(f"{instance.url}/api/v1/programs/nowhere", timeout=20)
    assert refused.status_code == 401
    tail = _spawn([sys.executable, "-c", MAIN, "tail", "show", "--json", "--url", instance.url])
    with ExitStack() as stack:
        stack.callback(tail.wait)
        stack.callback(tail.kill)
        workers = []
        for work in (_VIEWERS, _PUBLISHER, _VOTER):
            workers.append(Worker(instance, work, poll))
            stack.callback(workers[-1].kill)
        asker = Asker(instance)
        stack.callback(asker.end)
        time.sleep(AROUND_S)
        instance.stop()
        left_nothing = instance.leaves_nothing()
        logs = tmp_path_factory.mktemp("logs") / "log"
        shutil.copytree(instance.data_dir / "log", logs, symlinks=True)
        time.sleep(DOWN_S)
        instance.start()
        asker.end()
        time.sleep(AROUND_S)
        assert tail.poll() is None, tail.communicate()
        published, voted = workers[1].end(), workers[2].end()
        time.sleep(2)
        seen = workers[0].end()
        tail.terminate()
        seen.append([json.loads(line)["seq"] for line in tail.communicate()[0].splitlines()])
        yield Restart(published, seen, voted, asker.told, left_nothing, logs, refused.headers["x-request-id"])


def test_everybody_goes_on_over_a_stop_and_a_start(instance: Instance, restart: Restart) -> None:
    published = restart.published
    assert [n for n, _ in published] == list(range(len(published)))
    stored = _events(instance)
    # One publish may have been under way when its process was told to end.
    assert [event["metadata"]["n"] for event in stored] == list(range(len(stored)))
    assert len(stored) - len(published) in (0, 1)
    assert len(restart.seen) == VIEWERS + 1
    for viewed in restart.seen:
        assert viewed == list(range(viewed[0], viewed[-1] + 1))
        assert viewed[0] <= published[5][1]
        assert viewed[-1] >= published[-1][1]
    assert set(restart.voted) == {1}
    assert _votes(instance) - len(restart.voted) in (0, 1)


def test_while_it_stops_and_starts_the_port_says_nothing_but_our_words(restart: Restart) -> None:
    assert restart.told == {(200, "", True, False), (503, "unavailable", True, True)}


def test_logs_stay_after_a_stop_for_us_alone_and_a_request_id_finds_its_lines(restart: Restart) -> None:
    assert restart.left_nothing
    lines = [json.loads(line) for line in (restart.logs / "broker.log").read_text().splitlines()]
    [line] = [line for line in lines if line.get("requestId") == restart.request_id]
    assert (line["event"], line["part"], line["status"]) == ("request", "api", 401)
    started = [(line["part"], line["slot"]) for line in lines if line["event"] == "owner_started"]
    assert sorted(started) == [("owner-0", "owner-0"), ("owner-1", "owner-1")]
    [session] = (restart.logs / "ray").iterdir()
    assert {path.name for path in session.iterdir()} >= {"gcs_server.out", "raylet.out", "serve"}
    files = [path for path in restart.logs.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if path.stat().st_mode & 0o077], "closed, whatever is above them"
    assert not [path for path in files if path.suffix == ".err" and "Traceback" in path.read_text()]


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
