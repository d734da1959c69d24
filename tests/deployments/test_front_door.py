"""Callers of a running product from several loopback addresses, with a front door and without."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import websockets
from websockets.exceptions import InvalidStatus

from broker.deployments.ports import free_port
from tests import proxy_header
from tests.deployments.front_door_client import offered_protocol, use
from tests.deployments.front_doors import FRONT_DOORS, HOST, Place, loop_from, naming_door
from tests.deployments.haproxy_servers import list_replicas
from tests.deployments.hostile import HARMLESS, HOSTILE
from tests.deployments.ingress_stage import call, read_all
from tests.deployments.instance import Instance
from tests.fetching.upstream import make_certificate

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(480)]

FRONT_DOOR = "127.0.0.9"
NAMING_DOOR = "127.0.0.10"
"""A front door that begins its connections with a PROXY header."""
OWN_DOOR = "127.0.0.1"
"""Where front doors on the product's machine come from."""
SOCKETS = 2  # of one address
BURST = 3
REPLICAS = 2  # one, and its spare
# A data source at an address that nobody may ask: the request is counted and goes nowhere.
CONTENT = {"dataSources": [{"id": "a", "type": "api", "url": "http://127.0.0.1:1/"}]}
ENTRY = {"measureName": "m", "contextId": "00000000-0000-7000-8000-000000000000", "measureValue": 0}
SETTINGS = {
    "BROKER_TRUSTED_PROXIES": f"{FRONT_DOOR}/32,{NAMING_DOOR},{OWN_DOOR}",
    "BROKER_PROXY_PROTOCOL": NAMING_DOOR,
    "BROKER_WS_CONNECTIONS_PER_ADDRESS": str(SOCKETS),
    "BROKER_LOGIN_TRIES_PER_ADDRESS": str(BURST),
    "BROKER_STORAGE_RATE_PER_ADDRESS": "0.001",
    "BROKER_STORAGE_BURST_PER_ADDRESS": str(BURST),
    "BROKER_RESPONSES_RATE_PER_ADDRESS": "0.001",
    "BROKER_RESPONSES_BURST_PER_ADDRESS": str(BURST),
    "BROKER_FETCH_RATE_PER_ADDRESS": "0.001",
    "BROKER_FETCH_BURST_PER_ADDRESS": str(BURST),
}

Ask = Callable[[httpx.Client, dict[str, str]], httpx.Response]


@pytest.fixture(scope="module")
def tls_port() -> int:
    """Where the front doors listen, one after the other."""
    return free_port()


@pytest.fixture(scope="module")
def instance(tls_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    public = {"BROKER_PUBLIC_WS_URL": f"wss://{HOST}:{tls_port}/api/v1/ws"}
    instance = Instance(tmp_path_factory.mktemp("front") / "data", environment=SETTINGS | public)
    with instance.running():
        # What a replica counts begins anew in another one, and the one that is ready first may be the spare.
        await_replicas(instance)
        yield instance


@pytest.fixture(scope="module")
def token(instance: Instance) -> dict[str, str]:
    """The admin's; with it the project is made that the limits are tried on."""
    token = instance.token()
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=token, timeout=30) as client:
        client.post("/projects", json={"id": "own", "name": "n"}).raise_for_status()
        path = "/projects/own/application/revisions"
        client.post(path, json={"version": "1", "content": CONTENT}).raise_for_status()
        client.post("/programs", json={"id": "show", "name": "n"}).raise_for_status()
    return token


def from_address(instance: Instance, address: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(
        base_url=f"http://127.0.0.1:{instance.http_port}/api/v1", transport=transport, timeout=30
    )


def log_in(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    form = {
        "grant_type": "password",
        "client_id": "Test",
        "username": f"u{time.monotonic_ns()}",
        "password": "x",
    }
    return client.post("/token", json=form, headers=headers)


def store(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    return client.post("/storage/own", json={"metadata": {}}, headers=headers)


def respond(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    entry = ENTRY | {"visitorId": f"v{time.monotonic_ns()}"}
    body = {"responses": [entry], "impressions": []}
    return client.post("/responses/demo/undefined/show", json=body, headers=headers)


def fetch(token: dict[str, str]) -> Ask:
    def ask(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
        return client.get("/projects/own/application/requests/1/a", headers=headers | token)

    return ask


@pytest.fixture(params=["log-in", "stored values", "answers", "data sources"])
def ask(request: pytest.FixtureRequest, token: dict[str, str]) -> Ask:
    asks: dict[str, Ask] = {
        "log-in": log_in, "stored values": store, "answers": respond, "data sources": fetch(token),
    }  # fmt: skip
    return asks[request.param]


def test_an_address_has_its_limit_whatever_it_writes(instance: Instance, ask: Ask) -> None:
    with from_address(instance, "127.0.0.2") as stranger, from_address(instance, "127.0.0.3") as other:
        for number in range(BURST):
            assert ask(stranger, {"X-Forwarded-For": f"192.0.2.{number}"}).status_code != 429
        for number in range(5):
            forged = {
                "X-Forwarded-For": f"198.51.100.{number}",
                "X-Broker-Ingress": f"key public 1.1.1.{number}",
            }
            assert ask(stranger, forged).status_code == 429
        assert ask(other, {}).status_code != 429
        assert ask(other, {"X-Forwarded-For": "127.0.0.2"}).status_code != 429


def test_callers_of_a_front_door_have_limits_of_their_own(instance: Instance, ask: Ask) -> None:
    with from_address(instance, FRONT_DOOR) as door:
        for number in range(BURST + 2):
            # What stands in front was written by the caller itself.
            told = ask(door, {"X-Forwarded-For": f"6.6.6.{number}, 203.0.113.1"})
            assert (told.status_code == 429) == (number >= BURST), told.text
        assert ask(door, {"X-Forwarded-For": "203.0.113.2"}).status_code != 429
    with from_address(instance, "127.0.0.4") as stranger:
        assert ask(stranger, {"X-Forwarded-For": "203.0.113.1"}).status_code != 429


def test_the_access_log_has_the_address_of_the_caller(instance: Instance) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.77"}
    expected = {"stranger-1": "127.0.0.6", "door-1": "203.0.113.77"}
    for name, source in (("stranger-1", "127.0.0.6"), ("door-1", FRONT_DOOR)):
        with from_address(instance, source) as client:
            client.get("/version", headers=forwarded | {"X-Request-Id": name}).raise_for_status()
    deadline_s = time.monotonic() + 20
    found: dict[str, str] = {}
    while found != expected:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
        lines = [line for line in access_lines(instance) if line.get("requestId") in expected]
        found = {line["requestId"]: line["address"] for line in lines}


@pytest.mark.parametrize("version", [proxy_header.line, proxy_header.binary])
def test_callers_that_a_proxy_header_names_have_limits_of_their_own(
    instance: Instance, ask: Ask, version: Callable[[str], bytes]
) -> None:
    named, other = (
        ("192.0.2.101", "192.0.2.102") if version is proxy_header.line else ("2001:db8:1::1", "2001:db8:2::1")
    )
    for number in range(BURST + 2):
        with through_door(instance, version(named)) as client:
            # Its own word counts for nothing.
            told = ask(client, {"X-Forwarded-For": f"6.6.6.{number}"})
            assert (told.status_code == 429) == (number >= BURST), told.text
    with through_door(instance, version(other)) as client:
        assert ask(client, {}).status_code != 429
    with from_address(instance, "127.0.0.4") as stranger:
        assert ask(stranger, {}).status_code != 429


@contextmanager
def through_door(instance: Instance, header: bytes) -> Iterator[httpx.Client]:
    with (
        naming_door(instance.http_port, NAMING_DOOR, header) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30) as client,
    ):
        yield client


def test_the_access_log_has_the_address_of_the_proxy_header(instance: Instance) -> None:
    with through_door(instance, proxy_header.binary("203.0.113.78")) as client:
        headers = {"X-Forwarded-For": "6.6.6.6", "X-Request-Id": "named-1"}
        client.get("/version", headers=headers).raise_for_status()
    assert logged_address(instance, "named-1") == "203.0.113.78"


def logged_address(instance: Instance, name: str) -> str:
    """The address in the access log of the request with this id."""
    deadline_s = time.monotonic() + 20
    while True:
        for line in access_lines(instance):
            if line.get("requestId") == name:
                return str(line["address"])
        assert time.monotonic() < deadline_s, name
        time.sleep(0.1)


async def test_gateways_limit_the_address_of_the_proxy_header(instance: Instance) -> None:
    async with AsyncExitStack() as stack:
        doors = []
        for caller in ("203.0.113.79", "203.0.113.80"):
            header = proxy_header.binary(caller)
            doors.append(stack.enter_context(naming_door(instance.ws_port, NAMING_DOOR, header)))
        for port in doors:
            for _ in range(SOCKETS):
                await stack.enter_async_context(websockets.connect(gateway_at(port)))
            with pytest.raises(InvalidStatus) as refused:
                await websockets.connect(gateway_at(port), additional_headers={"X-Forwarded-For": "6.6.6.6"})
            assert refused.value.response.status_code == 429


def gateway_at(port: int) -> str:
    return f"ws://127.0.0.1:{port}/api/v1/ws"


@pytest.mark.parametrize("source", ["127.0.0.4", FRONT_DOOR, OWN_DOOR])
def test_a_proxy_header_of_anybody_else_is_refused(instance: Instance, source: str) -> None:
    for version in (proxy_header.line, proxy_header.binary):
        request = version("192.0.2.7") + b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert call(instance.http_port, request, source) == b""
        assert call(instance.ws_port, request, source).startswith(b"HTTP/1.1 400 ")
    plain = b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for port in (instance.http_port, instance.ws_port):
        assert call(port, plain, NAMING_DOOR) == b"", "a front door that sends headers always does"


@pytest.mark.parametrize("number", range(len(FRONT_DOORS)), ids=FRONT_DOORS)
def test_the_sdk_works_through_a_front_door_as_it_stands(
    instance: Instance, tls_port: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    name, source = list(FRONT_DOORS)[number], f"127.0.1.{number + 1}"
    place = Place(tls_port, free_port(), instance.http_port, instance.ws_port, NAMING_DOOR, certificate)
    with FRONT_DOORS[name](place, tmp_path):
        with asyncio.Runner(loop_factory=loop_from(source)) as runner:
            runner.run(use(f"https://{HOST}:{tls_port}", f"through-{number}"))
        assert logged_address(instance, f"through-{number}") == source
        assert offered_protocol(tls_port, certificate) == "h2"
        plain = httpx.get(f"http://127.0.0.1:{place.plain_port}/docs", headers={"Host": HOST}, timeout=20)
        assert plain.status_code == 308
        assert plain.headers["location"].startswith(f"https://{HOST}")


def test_one_replica_has_all_requests_while_it_has_few(instance: Instance) -> None:
    sent = {f"one-{number}": b"{}" + b" " * (20_000 * (number % 2)) for number in range(12)}
    for name, body in sent.items():
        headers = {"X-Request-Id": name, "Content-Type": "application/json"}
        httpx.post(f"{instance.url}/api/v1/servertime", content=body, headers=headers, timeout=20)
    deadline_s = time.monotonic() + 20
    served: dict[str, int] = {}
    while served.keys() != sent.keys():
        assert time.monotonic() < deadline_s, served
        time.sleep(0.2)
        lines = [line for line in access_lines(instance) if line.get("requestId") in sent]
        served = {line["requestId"]: line["pid"] for line in lines}
    assert len(set(served.values())) == 1


def access_lines(instance: Instance) -> Iterator[dict[str, Any]]:
    for path in (instance.data_dir / "log").rglob("*"):
        if path.is_file():
            for line in path.read_bytes().splitlines():
                if b'"broker.access"' in line:
                    with suppress(orjson.JSONDecodeError):
                        yield orjson.loads(line)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_our_reply_or_none(instance: Instance, name: str) -> None:
    with socket.create_connection(("127.0.0.1", instance.http_port), 60) as peer:
        with suppress(OSError):
            peer.sendall(HOSTILE[name])
            peer.shutdown(socket.SHUT_WR)
        reply = read_all(peer)
    if reply:
        head, _, body = reply.lower().partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        assert 400 <= status < 500 or name in HARMLESS, head
        assert b"x-content-type-options: nosniff" in head
        assert b"\r\nx-request-id: " in head
        assert b"content-type: application/json" in head
        assert status == 200 or b'"error"' in body


def test_pages_for_operators_are_at_their_own_address(instance: Instance) -> None:
    for path in ("/metrics", "/readyz", "/-/routes", "//metrics", "/%6detrics", "/-/healthz", "/%2d/routes"):
        reply = httpx.get(f"{instance.url}{path}", timeout=20)
        assert (reply.status_code, reply.json()["error"]) == (404, "not_found"), path
    assert "broker_" in httpx.get(f"{instance.ops_url}/metrics", timeout=20).text
    assert httpx.get(f"{instance.ops_url}/readyz", timeout=20).json()["status"] == "ok"
    routes = {"/": "broker", "/api/v2/imgproxy": "broker-images"}
    assert httpx.get(f"{instance.ops_url}/-/routes", timeout=20).json() == routes
    assert httpx.get(f"{instance.url}/healthz", timeout=20).status_code == 200


def test_who_reaches_a_replica_itself_is_refused(instance: Instance) -> None:
    forged = {"X-Forwarded-For": "192.0.2.7", "X-Broker-Ingress": "0123456789abcdef operations 192.0.2.7"}
    for port in replica_ports(instance):
        for path in ("/api/v1/version", "/metrics", "/readyz", "/healthz", "/api/v1/storage/own/x"):
            for headers in ({}, forged):
                reply = httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=20)
                assert (reply.status_code, reply.json()["error"]) == (403, "insufficient_scope"), path
        # What Serve itself tells there is whether the replica lives.
        assert httpx.get(f"http://127.0.0.1:{port}/-/healthz", timeout=20).text == "success"


def replica_ports(instance: Instance) -> set[int]:
    """Where HAProxy looks for replicas."""
    assert instance.scratch is not None
    (configuration,) = instance.scratch.glob("ha/*/haproxy.cfg")
    return {port for _, port in list_replicas(configuration.read_text()).values()}


def await_replicas(instance: Instance) -> None:
    """Until the ingress knows both replicas."""
    deadline_s = time.monotonic() + 60
    while len(replica_ports(instance)) != REPLICAS:
        assert time.monotonic() < deadline_s, instance.log()
        time.sleep(0.2)


def test_a_hundred_slow_bodies_bring_no_replica(instance: Instance) -> None:
    assert len(replica_ports(instance)) == REPLICAS
    head = "POST /api/v1/servertime HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for length in (1_000, 900_000):
            for _ in range(50):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", instance.http_port), 60))
                peer.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + b" " * (length // 2))
        deadline_s = time.monotonic() + 9  # Serve adds one after three seconds
        while time.monotonic() < deadline_s:
            assert httpx.get(f"{instance.url}/api/v1/version", timeout=20).status_code == 200
            time.sleep(0.5)
        assert len(replica_ports(instance)) == REPLICAS


def test_a_start_that_the_ingress_refuses_says_why(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "data", environment={"BROKER_INGRESS_KEY": "not a key"})
    try:
        assert "the ingress cannot be started: BROKER_INGRESS_KEY: must be" in instance.fail()
    finally:
        instance.end()
