"""`GET /connect` by the gateway at its socket file: it answers as the API does, and what HAProxy sends it."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.deployments import connect_door, ingress
from broker.deployments.connect_door import ConnectDoor
from broker.deployments.ingress import CONNECT
from broker.deployments.ray_internals.haproxy import CONNECT_FILE
from broker.domain import values
from broker.metrics.counts import HTTP_RESPONSES, OPERATIONS
from broker.rest import access_log
from broker.rest.callers import HEADER
from broker.setup_error import SetupError
from broker.storage.gateways import GatewayRow, Gateways
from tests.asgi import ask
from tests.deployments.ingress_stage import KEY, Ingress, Replica, call, parse
from tests.gateway.world import World, open_world

pytestmark = pytest.mark.anyio

WAIT_S = 20.0
FROM_INGRESS = f"{KEY} public 203.0.113.9"


@asynccontextmanager
async def open_door(world: World, path: Path) -> AsyncIterator[ConnectDoor]:
    """A door of the world's gateway."""
    services = world.product.services
    door = ConnectDoor(world.gateway, services.known_gateways, services.clock, KEY)
    door.open(path)
    try:
        yield door
    finally:
        await door.close()


@pytest.fixture
async def world(migrated_dsn: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn, ingress_key=KEY) as world:
        for each in world.gateway._rounds:  # it is no longer listed from now on
            await each.stop()
        await Gateways(world.product.services.database).remove(world.gateway._id)
        yield world


async def ask_file(path: Path, target: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Ask the door as the ingress does."""
    reader, writer = await asyncio.open_unix_connection(path)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        told = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        body = await reader.readexactly(int(told["content-length"]))
    writer.close()
    return int(first.split()[1]), told, body


GATEWAYS = {
    "none": [],
    "one": [("01", 5, False)],
    "one that leaves": [("01", 5, True)],
    "most leave": [("01", 0, True), ("02", 1, True), ("03", 2, False)],
    "three, of which a program has one": [("01", 100, False), ("02", 100, False), ("03", 1_000, False)],
}


@pytest.mark.parametrize("gateways", GATEWAYS.values(), ids=GATEWAYS)
async def test_both_ways_answer_alike(
    world: World, tmp_path: Path, gateways: list[tuple[str, int, bool]]
) -> None:
    services = world.product.services
    known = services.known_gateways
    for name, connections, draining in gateways:
        url = f"ws://{{account}}{name}.localhost:8001/api/v1/ws"
        await Gateways(services.database).beat(GatewayRow(name, url, connections, draining))
    await known._read()
    async with open_door(world, tmp_path / "door"):
        for account in ("demo", "other", "nobody", "a.b", "DEMO"):
            for target in (CONNECT, f"{CONNECT}?", f"{CONNECT}?programId=final-2026"):
                headers = {"Host": f"{account}.localhost:8000", "X-Request-Id": "r-1", HEADER: FROM_INGRESS}
                told = await ask(world.product.app, "GET", target, headers=headers)
                status, said, body = await ask_file(tmp_path / "door", target, headers)
                assert (status, said) == (told.status, told.headers | {"content-length": str(len(body))})
                assert settle(body) == settle(told.body), target


async def test_a_directory_that_others_can_write_gets_no_door(world: World, tmp_path: Path) -> None:
    """They could put a file of theirs in the place of ours."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SetupError, match="open can be written by others"):
        async with open_door(world, tmp_path / "open" / "door"):
            pass
    assert not list((tmp_path / "open").iterdir())


def settle(body: bytes) -> Any:
    """An answer without what chance and the answers before have done."""
    answer = orjson.loads(body)
    if "servers" in answer:
        answer["servers"] = sorted((each["url"], each["streamUrl"]) for each in answer["servers"])
        answer["retryAfterMs"] = answer["retryAfterMs"] > 0
        if answer["streamUrl"] is None and len(answer["servers"]) > 1:
            del answer["url"]
    return answer


async def test_who_has_no_secret_and_what_is_no_such_request_is_refused(world: World, tmp_path: Path) -> None:
    async with open_door(world, tmp_path / "door"):
        host = {"Host": "demo.localhost:8000", "X-Request-Id": "r-1"}
        for secret in ({}, {HEADER: f"{KEY[:-1]}x public 203.0.113.9"}, {HEADER: KEY}):
            headers = host | secret
            status, _, body = await ask_file(tmp_path / "door", CONNECT, headers)
            assert (status, orjson.loads(body)["error"]) == (403, "insufficient_scope")
        told = await ask(world.product.app, "GET", CONNECT, headers=host)
        assert orjson.loads(body) == orjson.loads(told.body)
        headers = host | {HEADER: FROM_INGRESS}
        status, head, body = await ask_file(tmp_path / "door", f"{CONNECT}?programId=a%20b", headers)
        assert (status, orjson.loads(body)["error"]) == (400, "invalid_request")
        assert head["connection"] == "close"  # it does so
        assert (tmp_path / "door").stat().st_mode & 0o777 == 0o600


async def test_what_is_answered_is_logged_and_counted(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = count(OPERATIONS, ("connect", "ok")), count(HTTP_RESPONSES, ("4xx",))
    with caplog.at_level(logging.INFO, access_log.NAME):
        async with open_door(world, tmp_path / "door"):
            for account in ("demo", "nobody"):
                headers = {"Host": f"{account}.localhost:8000", HEADER: FROM_INGRESS}
                headers["X-Request-Id"] = f"for-{account}"
                _, _, body = await ask_file(tmp_path / "door", CONNECT, headers)
        lines = [orjson.loads(line) for record in caplog.records for line in record.getMessage().split("\n")]
    line = next(line for line in lines if line["requestId"] == "for-nobody")
    told = {name: line[name] for name in ("address", "method", "host", "path", "status", "sentBytes")}
    assert told == {
        "address": "203.0.113.9",
        "method": "GET",
        "host": "nobody.localhost:8000",
        "path": "/api/v1/connect",
        "status": 404,
        "sentBytes": len(body),
    }
    assert abs(time.time() - values.parse_time(line["time"]).timestamp()) < 86_400
    after = count(OPERATIONS, ("connect", "ok")), count(HTTP_RESPONSES, ("4xx",))
    assert after == (before[0] + 1, before[1] + 1)


async def test_what_is_too_much_for_the_log_is_counted_and_told(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_door, "_WRITE_S", 3_600.0)
    before = count(OPERATIONS, ("connect", "ok"))
    headers = f"Host: localhost\r\nX-Request-Id: r\r\n{HEADER}: {FROM_INGRESS}\r\n\r\n"
    request = f"GET {CONNECT} HTTP/1.1\r\n{headers}".encode()
    async with open_door(world, tmp_path / "door"):
        await asyncio.to_thread(flood, tmp_path / "door", request, 30_007)
    assert [record.missing for record in caplog.records if record.message == "access_log_incomplete"] == [7]
    assert count(OPERATIONS, ("connect", "ok")) == before + 30_007


def flood(path: Path, request: bytes, times: int) -> None:
    """Ask one request after the other, a hundred at a time."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WAIT_S)
        peer.connect(str(path))
        answers, sent = 0, 0
        while answers < times:
            several = min(100, times - sent)
            peer.sendall(request * several)
            sent += several
            while answers < sent:
                answers += peer.recv(1 << 20).count(b"HTTP/1.1 200")


def count(counts: Any, labels: tuple[str, ...]) -> float:
    return next((sample.value for sample in counts.samples() if sample.labels == labels), 0)


def test_what_the_ingress_takes_for_an_id_is_one() -> None:
    assert set(ingress.RESERVED_IDS) == values.RESERVED_IDS
    (rule,) = [line for line in ingress._connect_route() if "acl is_of_gateway" in line]
    assert values._ID.pattern in rule


# -- behind HAProxy. The gateway is a process of its own, so that it can be stopped and killed.

_GATEWAY = """
import sys, time
from broker._native import Gateways, Server
from broker.rest.callers import HEADER
path, key = sys.argv[1:]
server = Server(host="127.0.0.1", port=0, loops=1)
server.set_accounts("localhost", "demo", {"demo": None})
known = Gateways(url="ws://x/ws", public_host="localhost", default_account="demo")
known.set([("one", "ws://here/ws", 0, False)])
fixed = b"x-content-type-options: nosniff\\r\\nx-by: gateway\\r\\n"
replies = [
    (status, b"HTTP/1.1 %d X\\r\\n" % status + fixed, body)
    for status, body in ((200, b""), (404, b"{}"), (403, b"{}"), (400, b"{}"))
]
server.answer_connects(path, known, header=HEADER, key=key, replies=replies)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stage() -> Iterator[tuple[Ingress, Replica]]:
    stage, replica = Ingress(), Replica("api")
    try:
        stage.run({"broker": ("/", [replica])})
        stage.until_up(1)
        yield stage, replica
    finally:
        stage.end()
        replica.end()


class Gateway:
    """A process that answers in a gateway's place; used as a context it is gone in the end."""

    def __init__(self, stage: Ingress) -> None:
        arguments = [sys.executable, "-c", _GATEWAY, str(stage.directory / CONNECT_FILE), KEY]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def halt(self) -> None:
        """Stop all its threads. They stop some time after the signal, each by itself."""
        self._process.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + WAIT_S
        states = Path(f"/proc/{self._process.pid}/task").glob
        while {each.read_text().rpartition(") ")[2][0] for each in states("*/stat")} != {"T"}:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()


def by_whom(stage: Ingress, target: str = CONNECT, *lines: str, line: str = "GET {} HTTP/1.1") -> str:
    """Who answers a request: `gateway`, `api`, or `ingress` with its status."""
    head = "".join(f"{each}\r\n" for each in (line.format(target), "Host: localhost", *lines))
    status, headers, _ = parse(call(stage.port, f"{head}Connection: close\r\n\r\n".encode()))
    if headers.get("x-by") == "gateway":
        assert status == 200
        return "gateway"
    return "api" if status == 200 else f"ingress {status}"


def until(stage: Ingress, whom: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while (by := by_whom(stage)) != whom:
        assert by in ("gateway", "api"), by
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_the_gateway_gets_what_it_answers_and_the_api_everything_else(stage: tuple[Ingress, Replica]) -> None:
    door, _ = stage
    assert by_whom(door) == "api"
    with Gateway(door):
        until(door, "gateway")
        for target in (CONNECT, f"{CONNECT}?", f"{CONNECT}?programId=a", f"{CONNECT}?programId=a.B_~:-9"):
            assert by_whom(door, target) == "gateway", target
        for lines in (["Accept: */*"], ["Accept: application/json"], ["Origin: https://a.test"]):
            assert by_whom(door, CONNECT, *lines) == "gateway", lines
        for target in (
            f"{CONNECT}/", f"{CONNECT}?programId=", f"{CONNECT}?programId=a%20b", f"{CONNECT}?access_token=x",
            f"{CONNECT}?programId=a&access_token=x", f"{CONNECT}?programId=filter", f"{CONNECT}?programId=..",
            f"{CONNECT}?programId={'a' * 129}", f"{CONNECT}?x=1", "/api/v1/connected", "/api/v1/Connect",
            f"http://localhost{CONNECT}",
        ):  # fmt: skip
            assert by_whom(door, target) == "api", target
        for lines in (
            ["Authorization: Bearer x"], ["Accept: text/html"], ["Content-Length: 0"],
            ["Origin: a", "Origin: b"], ["X-Request-Id: a", "X-Request-Id: b"],
        ):  # fmt: skip
            assert by_whom(door, CONNECT, *lines) == "api", lines
        for method in ("HEAD", "OPTIONS", "POST", "DELETE"):
            assert by_whom(door, line=f"{method} {{}} HTTP/1.1") == "api", method


def test_an_id_of_the_client_is_kept_and_the_secret_is_not_shown(stage: tuple[Ingress, Replica]) -> None:
    door, _ = stage
    with Gateway(door):
        until(door, "gateway")
        head = ("Host: localhost", "X-Request-Id: mine", "Connection: close", "", "")
        reply = call(door.port, "\r\n".join((f"GET {CONNECT} HTTP/1.1", *head)).encode())
        assert b"x-request-id: mine\r\n" in reply
        assert KEY.encode() not in reply


def test_no_request_is_lost_when_the_gateway_is_killed_or_replaced(stage: tuple[Ingress, Replica]) -> None:
    door, _ = stage
    seen = []
    with Gateway(door) as first:
        until(door, "gateway")
        with Gateway(door) as second:  # takes the file; the first one still has its connections
            seen += [by_whom(door) for _ in range(20)]
            first.kill()
            seen += [by_whom(door) for _ in range(20)]
            until(door, "gateway")
            second.kill()
            seen += [by_whom(door) for _ in range(20)]
            assert by_whom(door) == "api"
    with Gateway(door):
        until(door, "gateway")
    assert set(seen) == {"gateway", "api"}


def test_a_gateway_that_hangs_costs_one_request_a_second(stage: tuple[Ingress, Replica]) -> None:
    door, _ = stage
    with Gateway(door) as gateway:
        until(door, "gateway")
        gateway.halt()
        assert {by_whom(door) for _ in range(20)} == {"api"}
        gateway.go_on()
        until(door, "gateway")
