"""Callers who take more than their part, and changes that cross, on a running product with two API replicas.

Callers come from loopback addresses of their own, through the real ingress.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROUNDS = 12


def caller(
    instance: Instance, address: str = "127.0.0.1", headers: dict[str, str] | None = None
) -> httpx.Client:
    """A client whose connections come from a loopback address."""
    transport = httpx.HTTPTransport(local_address=address)
    base_url = f"{instance.url}/api/v1"
    known = {"Host": "localhost"} | (headers or {})
    return httpx.Client(transport=transport, base_url=base_url, headers=known, timeout=30)


@pytest.fixture(scope="module")
def admin(instance: Instance) -> Iterator[httpx.Client]:
    with caller(instance, headers=instance.token()) as admin:
        yield admin


def make(admin: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = admin.post(path, json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_rename_never_undoes_private(instance: Instance, admin: httpx.Client) -> None:
    make(admin, "/users", username="producer", password=PASSWORD, role="producer", projectIds=["show"])
    form = {"grant_type": "password", "client_id": "Test", "username": "producer", "password": PASSWORD}
    token = admin.post("/token", json=form).json()["access_token"]
    with (
        caller(instance, headers={"Authorization": f"Bearer {token}"}) as producer,
        ThreadPoolExecutor(2) as pool,
    ):
        for number in range(ROUNDS):
            id_ = f"race-{number}"
            make(admin, "/programs", id=id_, name="Show", projectId="show")
            body = {"id": id_, "name": "Show", "scheduledStartTime": None, "scheduledEndTime": None}
            path = f"/programs/{id_}"
            changes = [
                pool.submit(producer.put, path, json=body | {"name": "Renamed"}),
                pool.submit(admin.put, path, json=body | {"access": "private"}),
            ]
            assert [change.result().status_code for change in changes] == [200, 200]
            assert admin.get(path).json()["access"] == "private"
            assert httpx.get(f"{instance.url}/api/v1{path}/events").status_code == 401


def slow_reader(instance: Instance, path: str, address: str) -> socket.socket:
    """A connection that asks and reads no more than the first bytes of the answer."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.bind((address, 0))
    peer.settimeout(30)
    peer.connect((instance.host, instance.http_port))
    peer.sendall(f"GET /api/v1{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return peer


def test_slow_readers_stop_nobody_else(instance: Instance, admin: httpx.Client) -> None:
    """More of them than the replicas have connections to the database; each has a list of 27 MB begun."""
    for program in ("long", "other"):
        make(admin, "/programs", id=program, name="A")
        for _ in range(30):
            batch = [{"event": "A#b", "metadata": {"x": "x" * 60_000}} for _ in range(15)]
            make(admin, f"/programs/{program}/events", events=batch)
    with ExitStack() as stack:
        for number in range(24):
            peer = slow_reader(instance, "/programs/long/events", f"127.0.1.{number // 4}")
            stack.enter_context(peer)
            assert peer.recv(12) == b"HTTP/1.1 200"
        with caller(instance, "127.0.2.1") as other:
            for _ in range(4):
                assert len(other.get("/programs/other/events").json()) == 450
                assert other.get("/programs/other/events?limit=1").status_code == 200
            assert len(admin.get("/programs/other/events/export").json()["events"]) == 450
        # One address reads so many a replica.
        statuses = set()
        for _ in range(20):
            peer = slow_reader(instance, "/programs/long/events", "127.0.1.9")
            stack.enter_context(peer)
            statuses.add(peer.recv(12))
        assert statuses == {b"HTTP/1.1 200", b"HTTP/1.1 429"}


def test_one_address_fills_no_project(instance: Instance, admin: httpx.Client) -> None:
    make(admin, "/projects", id="filled", name="A")

    def fill(address: str) -> list[int]:
        with caller(instance, address) as stranger:
            return [stranger.post("/storage/filled", json={"metadata": {}}).status_code for _ in range(12)]

    for number in range(10):
        assert fill(f"127.0.3.{number}") == [201] * 10 + [413] * 2
    assert set(fill("127.0.3.99")) == {413}
    ids = [make(admin, "/storage/filled", metadata={})["id"] for _ in range(100)]
    assert admin.post("/storage/filled", json={"metadata": {}}).status_code == 413
    assert admin.delete(f"/storage/filled/{ids[0]}").status_code == 204
    make(admin, "/storage/filled", metadata={})


def test_invented_names_leave_what_an_event_declares(instance: Instance, admin: httpx.Client) -> None:
    make(admin, "/programs", id="asked", name="A")
    events = [
        make(admin, "/programs/asked/events", event="Poll#show", metadata={"title": "Who wins?"})
        for _ in range(2)
    ]

    def answer(address: str, context: str, *names: str) -> int:
        entries = [
            {"measureName": name, "contextId": context, "measureValue": 0, "visitorId": "v"} for name in names
        ]
        with caller(instance, address) as stranger:
            path = "/responses/demo/undefined/asked"
            return stranger.post(path, json={"responses": entries}).status_code

    asked, other = (event["id"] for event in events)
    assert answer("127.0.4.1", asked, *(f"m{number}" for number in range(20))) == 202
    assert answer("127.0.4.2", asked, *(f"n{number}" for number in range(900))) in (413, 429)
    assert answer("127.0.4.3", asked, "n") == 413
    assert answer("127.0.4.3", asked, "whoWins") == 202
    assert answer("127.0.4.3", other, "whoWins", "n") == 202
