"""The product on a cluster of two nodes that it has joined, each with an address of its own, from outside."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Timer

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from broker.deployments.ray_internals.joined_spares import SPARES
from tests.adversity.faults import COUNTER, TITLES, find, hit
from tests.adversity.two_nodes import HEAD, SECOND, Node
from tests.deployments.hostile import HARMLESS, HOSTILE
from tests.deployments.ingress_stage import read_all
from tests.deployments.joined import API, BACK_S, BROKER, LOGIN_TRIES, NODES, Cluster, until
from tests.owners.support import fetch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

IDLE = "ray::IDLE"
THIRD = "127.0.0.13"
IN_NODE_ENV = "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS"
HOOK = Path(__file__).parents[2] / "deploy" / "kuberay" / "base" / "leave.sh"
GUIDE = Path(__file__).parents[2] / "docs" / "ports.md"
ROUTE_OF_IMAGES = "/api/v2/imgproxy"
ROUTES = {"/": "broker", ROUTE_OF_IMAGES: "broker-images"}
FORGED = {"X-Forwarded-For": "192.0.2.7", "X-Broker-Ingress": "0123456789abcdef operations 192.0.2.7"}
SLOW_START_S = 8.0  # shorter than Ray takes to give up a node that does not answer


def assert_ours(reply: httpx.Response) -> None:
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert 1 <= len(reply.headers["x-request-id"]) <= 128
    if reply.status_code != 200:
        assert reply.json()["status"] == reply.status_code
        assert reply.json()["error_description"]


@pytest.mark.parametrize("node", NODES)
def test_every_node_answers_in_our_words(cluster: Cluster, node: str) -> None:
    expected = {
        "/api/v1/version": 200,
        "/healthz": 200,
        "/api/v1/programs": 401,
        "/api/v1/nothing": 404,
        "/metrics": 404,
        "/-/routes": 404,
        "/-/healthz": 404,
        "/stats": 404,
    }
    for path, status in expected.items():
        reply = httpx.get(cluster.url(node) + path, timeout=20)
        assert reply.status_code == status, path
        assert_ours(reply)
    assert httpx.request("TRACE", cluster.url(node), timeout=20).status_code == 405
    for name, request in HOSTILE.items():
        with socket.create_connection((node, cluster.instance.http_port), 60) as peer:
            with suppress(OSError):
                peer.sendall(request)
                peer.shutdown(socket.SHUT_WR)
            reply_bytes = read_all(peer)
        if reply_bytes:
            head, _, body = reply_bytes.lower().partition(b"\r\n\r\n")
            assert 400 <= int(head.split(b" ")[1]) < 500 or name in HARMLESS, head
            assert b"x-content-type-options: nosniff" in head
            assert b"\r\nx-request-id: " in head
            assert b'"error"' in body or name in HARMLESS


@pytest.mark.parametrize("node", NODES)
def test_pages_for_operators_are_at_their_own_port_of_every_node(cluster: Cluster, node: str) -> None:
    url = f"http://{node}:{cluster.instance.ops_port}"
    assert httpx.get(f"{url}/-/routes", timeout=20).json() == ROUTES
    assert httpx.get(f"{url}/readyz", timeout=20).json()["status"] == "ok"
    assert "broker_" in httpx.get(f"{url}/metrics", timeout=20).text


def test_the_ingress_of_every_node_reaches_every_replica(cluster: Cluster) -> None:
    """None goes on over Ray Serve's own proxy, which takes ten times as long."""
    places = cluster.replicas()
    assert {host for host, _ in places} == {"127.0.0.1", HEAD, SECOND}, "each node has a replica"
    for place in places:
        socket.create_connection(place, 10).close()


def test_who_reaches_a_replica_itself_is_refused(cluster: Cluster) -> None:
    for host, port in cluster.replicas():
        for path in ("/api/v1/version", "/metrics", "/readyz", "/api/v1/storage/own/x"):
            for headers in ({}, FORGED):
                reply = httpx.get(f"http://{host}:{port}{path}", headers=headers, timeout=20)
                assert (reply.status_code, reply.json()["error"]) == (403, "insufficient_scope"), path
    replicas = cluster.replicas("broker-images")
    assert replicas
    for host, port in replicas:
        url = f"http://{host}:{port}{ROUTE_OF_IMAGES}/demo/-?url=http://example.org/a.jpg"
        for headers in ({}, FORGED):
            reply = httpx.get(url, headers=headers, timeout=20)
            assert (reply.status_code, reply.json()["error"]) == (403, "insufficient_scope")


def log_in(cluster: Cluster, node: str, address: str, headers: dict[str, str]) -> int:
    form = {"grant_type": "password", "client_id": "Test", "username": f"u{time.monotonic_ns()}"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=30) as client:
        url = f"{cluster.url(node)}/api/v1/token"
        return client.post(url, data=form | {"password": "x"}, headers=headers).status_code


# The last two are the ingresses' own: who has one is a caller like any other.
@pytest.mark.parametrize("address", ["127.0.0.2", HEAD, SECOND])
def test_a_caller_has_its_own_address_at_every_node_whatever_it_writes(
    cluster: Cluster, address: str
) -> None:
    for number in range(LOGIN_TRIES):
        forged = {"X-Forwarded-For": f"192.0.2.{number}"}
        assert log_in(cluster, NODES[number % 2], address, forged) == 401
    for node in NODES:
        assert log_in(cluster, node, address, FORGED) == 429
        assert log_in(cluster, node, address, {"X-Forwarded-For": f"{HEAD}, {SECOND}"}) == 429
        other = address.replace("127.0.0.", "127.0.1.")
        assert log_in(cluster, node, other, {"X-Forwarded-For": address}) == 401


def test_an_event_that_one_node_takes_reaches_viewers_of_the_other(cluster: Cluster) -> None:
    """Programs enough that owners of both nodes have some."""
    token = cluster.token()
    names = [f"show-{number}" for number in range(8)]
    for publishing, viewing in (NODES, NODES[::-1]):
        url = f"ws://{viewing}:{cluster.instance.ws_port}/api/v1/ws"
        with (
            httpx.Client(base_url=f"{cluster.url(publishing)}/api/v1", headers=token, timeout=30) as producer,
            connect(url, additional_headers=token) as viewer,
        ):
            for name in names:
                made = producer.post("/programs", json={"id": f"{name}-{publishing[-2:]}", "name": "n"})
                assert made.status_code == 201, made.text
                program = made.json()["id"]
                call = {"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {"programId": program}}
                viewer.send(json.dumps(call))
                answer = json.loads(viewer.recv(20))
                assert "result" in answer, answer
                event = {"event": "Score#update", "metadata": {"of": program}}
                sent = producer.post(f"/programs/{program}/events", json=event)
                assert sent.status_code == 201, sent.text
                assert sent.json()["id"] in str(viewer.recv(20))


def test_every_socket_is_where_the_guide_says(cluster: Cluster) -> None:
    lines = GUIDE.read_text().split("## A cluster")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    ports = re.compile(r"\d[\d,]*\d")
    numbers = {row[0]: ports.findall(row[2]) for row in rows if row[3:]}
    table = {what: [int(text.replace(",", "")) for text in texts] for what, texts in numbers.items()}
    [first, last] = table["actors: Ray's port"]
    workers = range(first, last + 1)
    [first, last] = table["API replicas"]
    replicas = range(first, last + 1)
    [fallback] = table["Ray Serve's fallback proxy, on the head"]
    instance, places = cluster.instance, cluster.listening()
    ours = {
        (name, host, port)
        for name, host, port in places
        # Each worker of Ray's has a port of Ray's on every interface.
        if name.startswith(("ray::", "haproxy")) and not (host == "::" and port in workers)
        if not name.startswith(("ray::DashboardA", "ray::RuntimeEnv"))
    }
    doors: dict[int, set[str]] = {
        port: set() for port in (instance.http_port, instance.ops_port, instance.ws_port)
    }
    for name, host, port in ours:
        if port in doors:
            doors[port].add(host)
        elif name.startswith("ray::ServeRepli"):
            assert port in replicas
            assert host in ("127.0.0.1", *NODES)
        elif name.startswith("ray::ProxyActor"):
            assert (host, port) == ("127.0.0.1", fallback)
        else:
            links = ("ray::OwnerAct", "ray::CounterAct", "ray::GatewayAct")  # of gateways that feed others
            assert name.startswith(links), (name, host, port)
            assert host in NODES
    assert all(hosts == set(NODES) for hosts in doors.values()), doors
    assert not {8404, 9101} & {port for _, _, port in places}


def test_no_process_and_no_log_of_ray_tells_the_secret_of_the_ingress(cluster: Cluster) -> None:
    """Every user of a node can read the command lines, and what Ray logs unless its directory is closed."""
    found = [re.search(r'x-broker-ingress "(\S+) ', path.read_text()) for path in cluster.configurations()]
    [key] = {match[1] for match in found if match}
    texts = []
    for process in (each for node in cluster.nodes for each in node.processes()):
        with suppress(psutil.NoSuchProcess):  # some end meanwhile
            texts.append("\0".join(process.cmdline()))
    texts += [path.read_text(errors="replace") for path in (cluster.directory / "r").rglob("*.log")]
    assert any("env_vars" in text for text in texts), "the log of Ray's helper for environments"
    assert not [text for text in texts if key in text]


def test_files_of_every_ingress_are_for_the_user_of_ray(cluster: Cluster) -> None:
    assert len(cluster.configurations()) == len(NODES)
    for path in cluster.configurations():
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.stat().st_uid == os.geteuid()
        assert path.stat().st_mode & 0o777 == 0o600
        assert (path.parent / "admin").stat().st_mode & 0o777 == 0o600


def _await_gateway(cluster: Cluster, node: str) -> None:
    deadline_s = time.monotonic() + BACK_S
    while True:
        with suppress(OSError, WebSocketException):
            with connect(f"ws://{node}:{cluster.instance.ws_port}/api/v1/ws", open_timeout=10) as viewer:
                viewer.send('{"jsonrpc":"2.0","id":1,"method":"getVersion"}')
                assert "version" in json.loads(viewer.recv(30))["result"]
            return
        assert time.monotonic() < deadline_s, node
        time.sleep(0.2)


def test_gateways_that_die_or_hang_come_back_without_a_conductor(cluster: Cluster) -> None:
    """`broker up` is gone, and what it started on the cluster is all that there is."""
    instance = cluster.instance
    instance.process.kill()
    instance.process.wait()
    gateways = [process for node in cluster.nodes for process in node.processes(TITLES["gateway"])]
    assert len(gateways) == len(NODES)
    for process in gateways:
        process.kill()
    for node in NODES:
        _await_gateway(cluster, node)
    [hung] = cluster.nodes[1].processes(TITLES["gateway"])
    hung.suspend()
    hung.wait(BACK_S)  # until it has been killed
    _await_gateway(cluster, SECOND)
    instance.start()
    living = [process for node in cluster.nodes for process in node.processes(TITLES["gateway"])]
    assert len(living) == len(NODES), "the next one exchanges them"


def test_a_conductor_that_was_slow_cuts_nobody_off_who_has_come_back(cluster: Cluster) -> None:
    """A gateway has died, and viewers are at the one that Ray has started before the conductor sees it."""
    instance = cluster.instance
    [conductor] = find(instance, TITLES["Ray with everything on it"])
    [gateway] = cluster.nodes[1].processes(TITLES["gateway"])
    conductor.suspend()
    try:
        gateway.kill()
        gateway.wait(BACK_S)
        viewer = _connect_in_time(f"ws://{SECOND}:{instance.ws_port}/api/v1/ws")
    finally:
        conductor.resume()
    with viewer:
        assert _hear_end(viewer) == 1012
    _await_gateway(cluster, SECOND)


def _hear_end(viewer: ClientConnection) -> int:
    """The close code of a viewer who is sent away."""
    with pytest.raises(ConnectionClosed) as closed:
        while "reconnect" in viewer.recv(BACK_S):  # which says when, before the end
            continue
    assert closed.value.rcvd is not None, "the connection was closed, not cut"
    return closed.value.rcvd.code


@pytest.fixture(scope="module")
def third(cluster: Cluster) -> Iterator[Node]:
    """Another node, whose Ray was started with an older `node.env`."""
    environment = {name: text for name, text in cluster.environment.items() if name != IN_NODE_ENV}
    node = Node(THIRD, environment, [f"--address={cluster.environment['BROKER_RAY_ADDRESS']}"])
    yield node
    node.kill()


def test_an_owner_begins_in_a_worker_that_was_ready_and_others_are_made_ready(cluster: Cluster) -> None:
    def list_all(title: str) -> set[int]:
        return {process.pid for node in cluster.nodes for process in node.processes(title)}

    def are_ready() -> bool:
        return all(len(node.processes(IDLE)) >= SPARES for node in cluster.nodes)

    until(are_ready)
    ready, owners = list_all(IDLE), list_all(TITLES["owner"])
    os.kill(min(owners), signal.SIGKILL)
    until(lambda: len(list_all(TITLES["owner"]) - {min(owners)}) == len(owners))
    assert list_all(TITLES["owner"]) - owners <= ready
    until(are_ready)


def test_doctor_names_the_node_that_is_set_up_otherwise(cluster: Cluster, third: Node) -> None:
    with _connect_in_time(f"ws://{THIRD}:{cluster.instance.ws_port}/api/v1/ws"):
        pass  # the node is there
    command = [BROKER, "doctor", "--json", "--data-dir", str(cluster.directory / "doctor")]
    done = subprocess.run(command, env=cluster.environment, timeout=BACK_S, capture_output=True)
    [nodes] = [finding for finding in json.loads(done.stdout) if finding["check"] == "nodes"]
    assert nodes == {
        "check": "nodes",
        "verdict": "error",
        "detail": f"{THIRD}: Ray was started with another {IN_NODE_ENV} than deploy/node.env has",
    }
    assert done.returncode == 1


def test_a_gateway_of_three_is_fed_by_another_and_by_none_that_has_died(
    cluster: Cluster, third: Node
) -> None:
    """Two of three relay, so one of the two that are killed does. Everybody else gets all events."""
    fleet = {HEAD: cluster.nodes[0], SECOND: cluster.nodes[1], THIRD: third}
    with httpx.Client(
        base_url=f"{cluster.url(HEAD)}/api/v1", headers=cluster.token(), timeout=30
    ) as producer:
        made = producer.post("/programs", json={"id": "relayed", "name": "n"})
        assert made.status_code == 201, made.text
        for dying in NODES:
            with ExitStack() as stack:
                viewers = {node: stack.enter_context(_viewing(cluster, node, "relayed")) for node in fleet}
                until(lambda: _count_relays(cluster) == 2)
                before = _list_gateways(cluster)
                heard: dict[str, list[str]] = {node: [] for node in fleet if node != dying}
                sent = []
                for number in range(40):
                    if number == 20:
                        [gateway] = fleet[dying].processes(TITLES["gateway"])
                        gateway.kill()
                    event = {"event": "Score#update", "metadata": {"number": number}}
                    reply = producer.post("/programs/relayed/events", json=event).raise_for_status()
                    sent.append(reply.json()["id"])
                for node, ids in heard.items():
                    while len(ids) < len(sent):
                        ids.append(json.loads(viewers[node].recv(BACK_S))["params"]["id"])
                    assert ids == sent, node
            _await_exchange(cluster, fleet[dying], before)


def test_a_node_that_drains_sends_all_away_and_takes_no_more(cluster: Cluster, third: Node) -> None:
    """By the hook that Kubernetes calls before it ends a pod."""
    instance, address = cluster.instance, cluster.environment["BROKER_RAY_ADDRESS"]
    environment = cluster.environment | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_ADDRESS": address,
        "POD_IP": THIRD,
    }
    slots = (TITLES["owner"], COUNTER)
    with (
        _connect_in_time(f"ws://{THIRD}:{instance.ws_port}/api/v1/ws") as leaving,
        connect(f"ws://{HEAD}:{instance.ws_port}/api/v1/ws") as staying,
    ):
        words = ("scale", "owners=5", "--database-url", str(instance.database_url))
        subprocess.run([BROKER, *words], env=environment, timeout=BACK_S, check=True)
        assert third.processes(TITLES["owner"]), "three more go to three nodes"
        programs = [f"leaving-{number}" for number in range(8)]  # enough for every owner
        _publish(cluster, programs)
        subprocess.run(["/bin/bash", HOOK], env=environment, timeout=BACK_S, check=True)
        assert not [process for title in slots for process in third.processes(title)]
        _publish(cluster, programs)
        assert _hear_end(leaving) == 1012
        staying.send('{"jsonrpc":"2.0","id":1,"method":"getVersion"}')
        assert "version" in json.loads(staying.recv(30))["result"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((THIRD, instance.ws_port), 10)


@contextmanager
def _viewing(cluster: Cluster, node: str, program: str) -> Iterator[ClientConnection]:
    """A viewer of a program at the gateway of a node."""
    with _connect_in_time(f"ws://{node}:{cluster.instance.ws_port}/api/v1/ws") as viewer:
        call = {"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {"programId": program}}
        viewer.send(json.dumps(call))
        assert "result" in json.loads(viewer.recv(20))
        yield viewer


def _await_exchange(cluster: Cluster, node: Node, before: set[str]) -> None:
    """Return when there is a gateway of the conductor's again, and none that Ray has started meanwhile."""
    until(lambda: bool(_list_gateways(cluster) - before) and len(node.processes(TITLES["gateway"])) == 1)


def _list_gateways(cluster: Cluster) -> set[str]:
    """The actors of the gateways that take connections; a restart by Ray changes no name."""
    statement = "SELECT actor FROM gateways WHERE NOT draining"
    rows = asyncio.run(fetch(str(cluster.instance.database_url), statement))
    return {row["actor"] for row in rows}


def _count_relays(cluster: Cluster) -> int:
    """How many gateways feed any, themselves among them. The nodes of one machine share their page."""
    text = httpx.get(f"http://{HEAD}:{cluster.instance.ops_port}/metrics", timeout=20).text
    return len(re.findall(r"^broker_gateway_relay_sessions\b.* [1-9]", text, re.MULTILINE))


def _publish(cluster: Cluster, programs: list[str]) -> None:
    with httpx.Client(
        base_url=f"{cluster.url(HEAD)}/api/v1", headers=cluster.token(), timeout=30
    ) as producer:
        for program in programs:
            made = producer.post("/programs", json={"id": program, "name": program})
            assert made.status_code in (201, 409), made.text  # there since an earlier call
            producer.post(f"/programs/{program}/events", json={"event": "Score#update"}).raise_for_status()


def _connect_in_time(url: str) -> ClientConnection:
    """To a gateway that is about to start."""
    deadline_s = time.monotonic() + BACK_S
    while True:
        with suppress(OSError, WebSocketException):
            # One that has a full queue does not see that the gateway is gone, and takes ten seconds to close.
            return connect(url, open_timeout=10, max_queue=None)
        assert time.monotonic() < deadline_s, url
        time.sleep(0.2)


def _api_replicas(node: Node) -> list[psutil.Process]:
    return node.processes(API)


def test_every_node_answers_in_our_words_while_replicas_are_away(cluster: Cluster) -> None:
    """Also on a node that is slow to start another."""
    replicas = [process for node in cluster.nodes for process in _api_replicas(node)]
    assert len(replicas) == len(NODES)
    [raylet] = cluster.nodes[1].processes("raylet/raylet")
    raylet.suspend()
    starting = Timer(SLOW_START_S, raylet.resume)
    starting.start()
    hit(replicas, signal.SIGKILL)
    deadline_s = time.monotonic() + BACK_S
    told: set[tuple[str, int, str]] = set()
    answering: set[str] = set()
    while len(answering) < len(NODES) or not all(_api_replicas(node) for node in cluster.nodes):
        assert time.monotonic() < deadline_s
        for node in NODES:
            for method in ("GET", "POST"):
                reply = httpx.request(method, f"{cluster.url(node)}/api/v1/servertime", timeout=60)
                assert_ours(reply)
                told.add((method, reply.status_code, reply.json().get("error", "")))
            if httpx.get(f"{cluster.url(node)}/api/v1/version", timeout=60).status_code == 200:
                answering.add(node)
            else:
                answering.discard(node)
    assert {kind for kind in told if kind[1] not in (200, 405)} <= {
        ("GET", 503, "unavailable"),
        ("POST", 503, "unavailable"),
        ("POST", 503, "outcome_unknown"),
    }
    assert 503 in {status for _, status, _ in told}
