"""The client in Go, written from docs/protocol.md alone, recovers across a gateway's kill and a lost history.

Across a rolling update and a stop and start it does so in `tests/javascript/`, beside the other clients.
"""

import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adversity.faults import TITLES, kill
from tests.deployments.go_client import build_follower
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(480),
    pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go on this machine"),
]

WAIT_S = 120.0  # on a machine that does other things too; alone a gateway is back in two seconds
EVENTS = 40


class Follower:
    """The client in a process of its own; `read` is what it prints."""

    def __init__(self, binary: Path, instance: Instance, program: str) -> None:
        environment = os.environ | {"BROKER_USER": "admin", "BROKER_PASSWORD": PASSWORD}
        self._process = subprocess.Popen(
            [binary, instance.url, program], env=environment, text=True, stdout=subprocess.PIPE
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._follow, daemon=True).start()

    def read(self) -> dict[str, Any]:
        change: dict[str, Any] = json.loads(self._lines.get(timeout=WAIT_S))
        return change

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_follower(tmp_path_factory.mktemp("go") / "follow")


@pytest.fixture
def api(instance: Instance) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.token(), timeout=60) as api:
        yield api


def test_it_recovers_across_a_gateways_kill(binary: Path, instance: Instance, api: httpx.Client) -> None:
    program = f"go-{secrets.token_hex(4)}"
    api.post("/programs", json={"id": program, "name": "n", "access": "private"}).raise_for_status()
    follower = Follower(binary, instance, program)

    def publish(number: int) -> None:
        body = {"event": "Count#up", "metadata": {"n": number}}
        api.post(f"/programs/{program}/events", json=body).raise_for_status()

    try:
        seen = [first_told(follower, publish)]
        for number in range(1, EVENTS + 1):
            publish(number)
            if number == EVENTS // 2:
                assert kill(instance, TITLES["gateway"])
        while seen[-1]["params"]["metadata"]["n"] < EVENTS:
            seen.append(follower.read())
        places = [change["seq"] for change in seen]
        assert places == list(range(places[0], places[0] + len(places)))
        told = [change["params"]["metadata"]["n"] for change in seen]
        assert [number for number in told if number] == list(range(1, EVENTS + 1))
        history = [{"event": "Count#set", "metadata": {"n": 0}}]
        api.post(f"/programs/{program}/events/import", json={"events": history}).raise_for_status()
        replaced = follower.read()
        assert (replaced["method"], len(replaced["params"])) == ("events", 1)
        publish(1)
        assert follower.read()["params"]["metadata"] == {"n": 1}
        # Nothing tells it of the next import: its connection has ended before, and it is frozen until after.
        follower.freeze()
        assert kill(instance, TITLES["gateway"])
        history = [{"event": "Count#set", "metadata": {"n": n}} for n in (0, 0)]
        api.post(f"/programs/{program}/events/import", json={"events": history}).raise_for_status()
        follower.thaw()
        lost = follower.read()
        assert (lost["method"], len(lost["params"])) == ("events", 2)
        assert lost["epoch"] != replaced["epoch"]
        publish(2)
        assert follower.read()["params"]["metadata"] == {"n": 2}
    finally:
        follower.end()


def first_told(follower: Follower, publish: Any) -> dict[str, Any]:
    """The first event that it prints; until then it may not follow yet."""
    for _ in range(600):
        publish(0)
        try:
            return json.loads(follower._lines.get(timeout=0.2))
        except queue.Empty:
            continue
    raise AssertionError("the client tells nothing")
