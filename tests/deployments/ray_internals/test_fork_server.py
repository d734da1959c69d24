"""`broker.deployments.ray_internals.fork_server`: a server that is a fork of the process that needs it."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from broker.deployments.processes import MARK, end_marked, list_marked
from broker.deployments.ray_internals import fork_client
from broker.deployments.ray_internals.fork_server import ForkedServer

# In processes of their own: only one with a single thread may fork, and Ray reads its environment when it is
# imported.
CONDUCTOR = """
import json, os, pathlib, sys, time
from broker.deployments.ray_internals.fork_server import import_and_fork

server = import_and_fork(pathlib.Path(sys.argv[1]))
threads = len(os.listdir("/proc/self/task"))
from ray.serve._private import controller
variables = sorted({"RAY_JOB_ID", "RAY_RAYLET_PID", "SPT_NOENV"} & os.environ.keys())
told = {"server": server.pid, "threads": threads, "variables": variables}
print(json.dumps(told | {"serve_is_changed": controller.time is not time}), flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""
WORKER = """
import json, os, sys, time
from ray._raylet import setproctitle
from ray.serve._private import controller

setproctitle("ray::IDLE")
told = {"parent": os.getppid(), "arguments": sys.argv[1:], "environment": dict(os.environ)}
print(json.dumps(told | {"serve_is_changed": controller.time is not time}), flush=True)
sys.stdin.read()
"""
MARKED = "a" * 32


@dataclass
class Forked:
    """A process, the server that it has forked, and a worker of that; with what the two others tell."""

    conductor: "Popen[str]"
    server: int
    worker: int
    told: dict[str, Any]
    worker_told: dict[str, Any]


@contextmanager
def running(directory: Path) -> Iterator[Forked]:
    path = directory / "fork"
    script = directory / "worker.py"
    script.write_text(WORKER)
    marked = os.environ | {MARK: MARKED}
    begin = [sys.executable, "-c", CONDUCTOR, str(path)]
    asking = [sys.executable, "-I", "-S", fork_client.__file__, str(path)]
    command = [sys.executable, "setup_worker.py", str(script), "one", "two"]
    asked = {"RAY_JOB_ID": fork_client.JOB, "GREETING": "hello"}
    try:
        with Popen(
            begin, stdin=PIPE, stdout=PIPE, text=True, env=marked, start_new_session=True
        ) as conductor:
            told = read_line(conductor)
            server = told["server"]
            with Popen([*asking, *command], stdin=PIPE, stdout=PIPE, text=True, env=asked) as client:
                worker_told = read_line(client)
                (worker,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
                yield Forked(conductor, server, int(worker), told, worker_told)
    finally:
        end_marked(MARKED)


def read_line(process: "Popen[str]") -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def read_words(pid: int, name: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    with running(tmp_path_factory.mktemp("forks")) as forked:
        yield forked


def test_nothing_that_is_imported_starts_a_thread(forked: Forked) -> None:
    assert forked.told["threads"] == 1


def test_what_workers_need_of_the_environment_stays_with_them(forked: Forked) -> None:
    assert forked.told["variables"] == []
    environment = forked.worker_told["environment"]
    assert (environment["GREETING"], environment["RAY_JOB_ID"]) == ("hello", fork_client.JOB)
    assert not {MARK, "RAY_RAYLET_PID"} & environment.keys()  # but what whoever asked has


def test_serve_is_changed_in_workers_and_not_where_the_server_was_forked(forked: Forked) -> None:
    assert (forked.told["serve_is_changed"], forked.worker_told["serve_is_changed"]) == (False, True)


def test_a_worker_is_a_child_of_the_server_with_its_own_arguments(forked: Forked) -> None:
    assert forked.worker_told["parent"] == forked.server
    assert forked.worker_told["arguments"] == ["one", "two"]


def test_each_is_known_by_its_title(forked: Forked) -> None:
    title = " ".join([sys.executable, "-m", "broker.deployments.ray_internals.fork_server"])
    assert read_words(forked.conductor.pid, "cmdline")[1] == b"-c"
    assert read_words(forked.server, "cmdline")[0] == title.encode()
    assert read_words(forked.worker, "cmdline")[0] == b"ray::IDLE"


def test_titles_leave_the_mark_of_the_instance(forked: Forked) -> None:
    mark = f"{MARK}={MARKED}".encode()
    assert mark in read_words(forked.server, "environ")
    assert mark in read_words(forked.worker, "environ")
    assert set(list_marked(MARKED)) == {forked.conductor.pid, forked.server, forked.worker}
    assert os.getsid(forked.server) == os.getsid(forked.worker) == forked.conductor.pid


def test_server_and_workers_hold_no_stream_of_the_process_that_forked_the_server(forked: Forked) -> None:
    streams = {Path(f"/proc/{forked.conductor.pid}/fd/{number}").readlink() for number in (0, 1)}
    for pid in (forked.server, forked.worker):
        held = {descriptor.readlink() for descriptor in Path(f"/proc/{pid}/fd").iterdir()}
        assert held & streams == set()


def test_the_server_ends_with_the_process_that_forked_it(tmp_path: Path) -> None:
    with running(tmp_path) as forked:
        forked.conductor.kill()
        assert forked.conductor.wait() == -signal.SIGKILL
        deadline_s = time.monotonic() + 30
        while is_alive(forked.server):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@contextmanager
def waiting_process() -> Iterator[ForkedServer]:
    """A child that ends with its standard input."""
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0)]
    pid = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=actions)
    os.close(reading)
    server = ForkedServer(pid, writing)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def test_any_threads_may_wait_for_its_end_at_once() -> None:
    statuses: list[int] = []
    with waiting_process() as server:
        threads = [threading.Thread(target=lambda: statuses.append(server.wait())) for _ in range(16)]
        for thread in threads:
            thread.start()
        server.kill()
        for thread in threads:
            thread.join()
    assert statuses == [-signal.SIGKILL] * 16


def test_one_that_has_ended_may_be_waited_for_and_killed_again() -> None:
    with waiting_process() as server:
        server.kill()
        assert (server.wait(), server.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
        server.kill()
        assert server.wait() == -signal.SIGKILL
