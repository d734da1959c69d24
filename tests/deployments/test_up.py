"""The whole product in its processes. Each start takes long, so one run proves several things in turn."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest
from websockets.sync.client import ClientConnection, connect

from broker.deployments.ports import free_port
from broker.deployments.ray_internals.haproxy import find_haproxy
from broker.settings import child_environment
from tests.adversity.faults import TITLES, find
from tests.deployments.hostile import assert_refused
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SETTINGS = "broker.env"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    (tmp_path / SETTINGS).touch()
    file = {"BROKER_SETTINGS_FILE": str(tmp_path / SETTINGS)}
    instance = Instance(tmp_path / "data", environment=file)
    yield instance
    instance.end()


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Instance]:
    neighbour = Instance(tmp_path / "neighbour")
    yield neighbour
    neighbour.end()


def publish(instance: Instance, count: int) -> list[str]:
    """Publish to the program `show`, made when it is missing; returns the ids that were acknowledged."""
    headers = instance.token()
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=headers, timeout=20) as client:
        client.post("/programs", json={"id": "show", "name": "Show"})
        replies = [
            client.post("/programs/show/events", json={"event": "Score#update", "metadata": {"n": n}})
            for n in range(count)
        ]
    assert {reply.status_code for reply in replies} == {201}
    return [reply.json()["id"] for reply in replies]


def read_ids(instance: Instance) -> list[str]:
    reply = httpx.get(f"{instance.url}/api/v1/programs/show/events", timeout=20)
    return [event["id"] for event in reply.raise_for_status().json()]


def wait_until_ready(instance: Instance) -> None:
    deadline_s = time.monotonic() + 60
    while httpx.get(f"{instance.ops_url}/readyz", timeout=20).status_code != 200:
        assert time.monotonic() < deadline_s, instance.log()
        time.sleep(0.2)


def assert_requests_are_named(instance: Instance) -> None:
    """Every reply has one id; an id that cannot be one is exchanged where Ray Serve is not asked first."""
    told = {path: get_ids(instance, path, "mine") for path in ("/api/v1/version", "/healthz")}
    assert told == {"/api/v1/version": ["mine"], "/healthz": ["mine"]}
    (given,) = get_ids(instance, "/api/v1/version", "not mine")
    assert (given != "not mine") == (find_haproxy() is not None)
    logs = [path.read_text() for path in (instance.data_dir / "log").iterdir() if path.is_file()]
    assert "requests_go_through_serve" not in "".join(logs)


def get_ids(instance: Instance, path: str, told: str) -> list[str]:
    reply = httpx.get(f"{instance.url}{path}", headers={"X-Request-Id": told}, timeout=20)
    return reply.raise_for_status().headers.get_list("x-request-id")


def assert_timers_may_be_late(instance: Instance) -> None:
    """Nothing on Ray has a timer that the kernel cannot put together with others; what serves is exact."""
    found = {name: find(instance, TITLES[name])[0].pid for name in ("owner", "gateway", "Serve controller")}
    for pid in found.values():
        assert "anon_inode:[timerfd]" not in list_open(pid)
        assert "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text()
    if os.geteuid() == 0:  # nobody else may read it
        assert set(read_slacks(found["gateway"], "broker-loop")) == {50_000}
        assert set(read_slacks(found["owner"], "worker.io")) == {300_000_000}
        assert max(read_slacks(found["Serve controller"])) == 1_000_000_000


def list_open(pid: int) -> set[str]:
    """What a process' descriptors are."""
    names = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(str(path.readlink()))
    assert "anon_inode:[eventpoll]" in names
    return names


def read_slacks(pid: int, name: str = "") -> list[int]:
    """How late, in nanoseconds, timers may be of the threads of a process whose names begin so."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    tids = [task.name for task in tasks if (task / "comm").read_text().startswith(name)]
    return [int(Path(f"/proc/{tid}/timerslack_ns").read_text()) for tid in tids]


def send_slowly(url: str, is_over: Event) -> set[int]:
    """Send one request after the other, with bodies that take a second; returns the statuses."""

    def body() -> Iterator[bytes]:
        yield b"{"
        time.sleep(1)
        yield b"}"

    statuses = set()
    while not is_over.is_set():
        headers = {"Content-Type": "application/json"}
        reply = httpx.post(f"{url}/api/v1/servertime", content=body(), headers=headers, timeout=20)
        statuses.add(reply.status_code)
    return statuses


def assert_revoked_keys_are_refused(instance: Instance) -> None:
    """Rotation ends no token, revocation ends all of them at both doors, within five seconds."""

    def is_good(token: dict[str, str]) -> bool:
        return httpx.get(f"{instance.url}/api/v1/users/me", headers=token, timeout=20).status_code == 200

    def keys(*arguments: str) -> list[str]:
        command = [Path(sys.executable).with_name("broker"), "keys", *arguments, "--json"]
        where = ["--data-dir", str(instance.data_dir)]
        done = subprocess.run(
            [*command, *where], capture_output=True, text=True, check=True, env=child_environment({})
        )
        return [json.loads(line)["kid"] for line in done.stdout.splitlines()]

    token = instance.token()
    with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", additional_headers=token) as viewer:
        (first, second) = keys("rotate")
        assert is_good(token)
        keys("revoke", first, second)
        revoked_s = time.monotonic()
        while is_good(token) or "result" in ask(viewer, "getCurrentUser"):
            assert time.monotonic() - revoked_s < 5
            time.sleep(0.1)
        assert ask(viewer, "getCurrentUser")["error"]["code"] == 401
    published = httpx.get(f"{instance.url}/.well-known/jwks.json", timeout=20).json()["keys"]
    assert [key["kid"] for key in published] == [kid for kid in keys("list") if kid not in (first, second)]
    again = instance.token()
    assert is_good(again)
    entries = httpx.get(f"{instance.url}/api/v1/audit?action=key.revoked", headers=again, timeout=20).json()
    assert sorted(entry["targetId"] for entry in entries["items"]) == sorted((first, second))


def assert_api_tokens_go_on_after_a_restore(instance: Instance) -> None:
    """At both doors, which knew them before; access tokens end."""

    def broker(*words: str) -> None:
        command = [Path(sys.executable).with_name("broker"), *words, "--data-dir", str(instance.data_dir)]
        subprocess.run(command, capture_output=True, check=True, env=child_environment({}))

    def status(token: dict[str, str]) -> int:
        return httpx.get(f"{instance.url}/api/v1/users/me", headers=token, timeout=20).status_code

    access = instance.token()
    made = httpx.post(f"{instance.url}/api/v1/users/me/tokens", json={"name": "mixer"}, headers=access)
    device = {"Authorization": f"Bearer {made.raise_for_status().json()['token']}"}
    with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", additional_headers=device) as viewer:
        assert (status(access), status(device)) == (200, 200)
        assert "result" in ask(viewer, "getCurrentUser")
        file = str(instance.data_dir.with_name("all.backup"))
        broker("backup", file)
        broker("restore", file, "--account", "demo", "--replace")
        deadline_s = time.monotonic() + 30
        while status(access) != 401:  # every replica has heard of it in five seconds
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        time.sleep(5)
        assert {status(device) for _ in range(10)} == {200}
        assert "result" in ask(viewer, "getCurrentUser")


def maintain(instance: Instance, *words: str) -> None:
    """Run `broker maintenance`, and wait until every process that takes changes knows."""
    command = [Path(sys.executable).with_name("broker"), "maintenance", *words]
    where = ["--data-dir", str(instance.data_dir)]
    subprocess.run([*command, *where], capture_output=True, check=True, env=child_environment({}))
    wanted, deadline_s = {1.0} if words[0] == "on" else {0.0}, time.monotonic() + 60
    while told_of_maintenance(instance) != wanted:
        assert time.monotonic() < deadline_s, instance.log()
        time.sleep(0.1)


def told_of_maintenance(instance: Instance) -> set[float]:
    page = httpx.get(f"{instance.ops_url}/metrics", timeout=20).raise_for_status().text
    return {float(line.split()[-1]) for line in page.splitlines() if line.startswith("broker_maintenance{")}


def assert_changes_are_refused(instance: Instance, acknowledged: list[str]) -> None:
    """Both doors refuse them, with the operator's words; reading, log-in and readiness go on."""
    token = instance.token()
    reply = httpx.post(
        f"{instance.url}/api/v1/programs/show/events",
        json={"event": "Score#update"},
        headers=token,
        timeout=20,
    )
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "7")
    assert reply.json() == {"error": "maintenance", "error_description": "back at ten", "status": 503}
    with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", additional_headers=token) as viewer:
        for method in ("producer", "respond"):
            told = ask(viewer, method)["error"]
            assert (told["code"], told["message"], told["data"]["retryAfter"]) == (503, "maintenance", 7)
        assert "result" in ask(viewer, "getCurrentUser")
    assert read_ids(instance) == acknowledged
    ready = httpx.get(f"{instance.ops_url}/readyz", timeout=20)
    assert (ready.status_code, ready.json()["maintenance"]["message"]) == (200, "back at ten")


def reload(instance: Instance) -> tuple[int, str]:
    """The exit status of `broker reload`, and what it told where that is looked for."""
    command = [Path(sys.executable).with_name("broker"), "reload", "--data-dir", str(instance.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment({}))
    return done.returncode, done.stderr if done.returncode else done.stdout


def list_parts(instance: Instance) -> set[int]:
    """The processes of what a reload exchanges."""
    return {each.pid for kind in ("owner", "gateway", "API replica") for each in find(instance, TITLES[kind])}


def assert_batches_have_two_events(instance: Instance) -> None:
    """Both doors refuse a third, which the usual limit would let in."""
    token, events = instance.token(), [{"event": "Score#update"}] * 3
    reply = httpx.post(
        f"{instance.url}/api/v1/programs/show/events", json={"events": events}, headers=token, timeout=20
    )
    assert reply.status_code == 413, reply.text
    with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", additional_headers=token) as viewer:
        assert ask(viewer, "producer", programId="show", events=events)["error"]["code"] == 413


def ask(viewer: ClientConnection, method: str, **params: object) -> dict[str, Any]:
    viewer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    answer: dict[str, Any] = json.loads(viewer.recv(timeout=10))
    return answer


def test_life_of_an_instance(instance: Instance, neighbour: Instance) -> None:
    instance.start()
    parts = [line.split()[0] for line in instance.lines]
    assert set(parts) >= {"postgresql", "schema", "account", "ray", "owners", "counters", "gateways", "api"}
    assert instance.lines[-1] == f"ready {instance.url} ws://localhost:{instance.ws_port}/api/v1/ws"
    assert httpx.get(f"{instance.ops_url}/readyz", timeout=20).json()["status"] == "ok"
    acknowledged = publish(instance, 20)
    assert_refused(instance.url)
    assert_requests_are_named(instance)
    assert_timers_may_be_late(instance)
    assert_revoked_keys_are_refused(instance)

    # Nobody else gets at the directory or the ports of one that runs.
    refused = {
        "in use by another `broker up`": Instance(instance.data_dir),
        "--http-port": Instance(neighbour.data_dir, http_port=instance.http_port),
        "--ws-port": Instance(neighbour.data_dir.with_name("third"), ws_port=instance.ws_port),
    }
    with ThreadPoolExecutor() as pool:
        reasons = pool.map(Instance.fail, refused.values())
        assert [told for told, reason in zip(refused, reasons, strict=True) if told not in reason] == []

    # Maintenance is switched on, and everything is killed at once. Both are as before after the next start:
    # changes are refused, and what was acknowledged is there.
    maintain(instance, "on", "--message", "back at ten", "--retry-after", "7")
    assert_changes_are_refused(instance, acknowledged)
    instance.kill_everything()
    instance.start()
    wait_until_ready(instance)
    assert_changes_are_refused(instance, acknowledged)
    maintain(instance, "off")
    acknowledged += publish(instance, 1)
    assert read_ids(instance) == acknowledged

    # An exchange of gateways and replicas for some with other settings, with both doors open all the time.
    settings = instance.data_dir.with_name(SETTINGS)
    settings.write_text("BROKER_BATCH_LIMIT_EVENTS=2\nBROKER_HTTP_TIMEOUT_S=60\n")
    replicas, is_over = find(instance, TITLES["API replica"]), Event()
    with ThreadPoolExecutor() as pool:
        sending = [pool.submit(send_slowly, instance.url, is_over) for _ in range(4)]
        reloading = pool.submit(reload, instance)
        for _ in range(20):
            socket.create_connection(("127.0.0.1", instance.ws_port), timeout=5).close()
            time.sleep(0.2)
        _, left = psutil.wait_procs(replicas, 90)
        is_over.set()
    assert left == []
    assert [statuses.result() for statuses in sending] == [{200}] * 4
    status, told = reloading.result()
    assert (status, told.splitlines()) == (
        0,
        [
            "applied: BROKER_BATCH_LIMIT_EVENTS",
            "BROKER_HTTP_TIMEOUT_S: takes effect at the next start of `broker up`",
            "all parts are exchanged",
        ],
    )
    wait_until_ready(instance)
    assert read_ids(instance) == acknowledged
    assert_batches_have_two_events(instance)

    # Nonsense changes nothing, and is named.
    before = list_parts(instance)
    settings.write_text("BROKER_BATCH_LIMIT_EVENTS=none\n")
    status, told = reload(instance)
    assert (status, "BROKER_BATCH_LIMIT_EVENTS=none: must be a whole number" in told) == (1, True)
    assert list_parts(instance) <= before
    assert_batches_have_two_events(instance)
    settings.write_text("")

    # Another one comes and goes, and neither notices.
    neighbour.start()
    assert publish(neighbour, 2) == read_ids(neighbour)
    assert read_ids(instance) == acknowledged
    assert_api_tokens_go_on_after_a_restore(neighbour)
    assert neighbour.stop(signal.SIGINT) < 15
    assert neighbour.leaves_nothing()
    acknowledged += publish(instance, 1)
    assert read_ids(instance) == acknowledged

    assert instance.stop() < 15
    assert instance.leaves_nothing()


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        (f"postgresql://broker@127.0.0.1:{free_port()}/x", "error: PostgreSQL: "),
        (
            "mysql://broker:secret@localhost/x",
            "error: BROKER_DATABASE_URL: must be a URL such as postgresql://",
        ),
    ],
)
def test_wrong_dsn_is_one_line_and_leaves_nothing(instance: Instance, dsn: str, reason: str) -> None:
    line = instance.fail("--database-url", dsn)
    assert line.startswith(reason)
    assert "secret" not in line
    assert instance.leaves_nothing()


def test_bad_setting_is_one_line(instance: Instance) -> None:
    assert "BROKER_WS_PORT: must differ" in instance.fail("--ws-port", str(instance.http_port))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "BROKER_HTTP_PORTT",
            "9000",
            "BROKER_HTTP_PORTT: there is no such setting; did you mean BROKER_HTTP_PORT?",
        ),
        ("BROKER_HISTORY_EVENTS", "0", "BROKER_HISTORY_EVENTS=0: must be 1 to 1000000"),
        ("BROKER_TRUSTED_PROXIES", "10.0.0.0/33", "BROKER_TRUSTED_PROXIES=10.0.0.0/33: must be IP addresses"),
    ],
)
def test_bad_variable_is_one_line(tmp_path: Path, name: str, value: str, told: str) -> None:
    assert told in Instance(tmp_path, environment={name: value}).fail()
