"""What an operator changes on a cluster of two nodes while producers publish and viewers follow."""

import json
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio.to_thread
import httpx
import pytest
from websockets.sync.client import connect

from broker.settings import child_environment
from tests.adversity.faults import COUNTER, TITLES
from tests.adversity.soak import Size, open_show
from tests.adversity.two_nodes import Node, second_node
from tests.deployments.joined import API, BROKER, NODES, Cluster, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DOORS = (TITLES["gateway"], API)
PARTS = (*DOORS, TITLES["owner"], COUNTER)
SIZE = Size(producers=8, viewers=16, programs=4, events_per_s=300.0, gives_up=0.0)
OVER_WEBSOCKET = 4  # of the producers: of two for each program, the second
LIMIT = 100  # events of one batch after the reload; no producer has as many
CHECK_S = 0.1
TRIES = 8  # of an ingress, which leads to the replicas by turns


@pytest.mark.anyio
async def test_a_reload_reaches_every_node_while_events_flow(cluster: Cluster) -> None:
    create_program(cluster, "changed")
    assert batch_statuses(cluster, "changed") == {200}
    before = {node: list_parts(node) for node in cluster.nodes}
    with cluster.front_door():
        async with open_show(cluster.instance, SIZE) as show:
            cluster.settings_file.write_text(f"BROKER_BATCH_LIMIT_EVENTS={LIMIT}\n")
            with replies_to_health_checks(cluster) as checks:
                status, told = await anyio.to_thread.run_sync(reload, cluster)
            assert (status, told) == (
                0,
                ["applied: BROKER_BATCH_LIMIT_EVENTS", "all parts are exchanged"],
            )
            await show.until_at_work(time.monotonic())
            await show.until_ready()
            verdict = await show.close()
    assert set(checks) == {200}  # by two others an ingress leaves a replica out that it still leads to
    assert verdict.findings == []
    assert verdict.reconnects <= SIZE.viewers
    assert [cause for cause in show.tally["causes"] if cause.startswith("HttpDoor")] == []
    assert verdict.failures <= OVER_WEBSOCKET
    for node, former in before.items():
        assert not former & list_parts(node)
        assert [title for title in DOORS if not node.processes(title)] == []
    assert batch_statuses(cluster, "changed") == {413}


def test_a_node_that_comes_back_has_a_gateway_and_all_else_after_a_reload(cluster: Cluster) -> None:
    """Ray Serve moves no replica that runs, and starts an ingress where a replica is."""
    head, second = NODES
    cluster.nodes[1].kill()
    until(lambda: len(cluster.nodes[0].processes(API)) == len(NODES))
    cluster.nodes[1] = second_node(cluster.environment, cluster.environment["BROKER_RAY_ADDRESS"])
    until(lambda: is_open(second, cluster.instance.ws_port))
    assert not is_open(second, cluster.instance.http_port)
    cluster.settings_file.write_text("")  # also for the gateway that has just begun
    status, told = reload(cluster)
    assert status == 0, told
    titles = (*DOORS, TITLES["owner"], TITLES["ingress"])
    assert [title for title in titles if not cluster.nodes[1].processes(title)] == []
    for node in (head, second):
        assert httpx.get(f"{cluster.url(node)}/api/v1/version", timeout=20).status_code == 200
    page = httpx.get(f"http://{second}:{cluster.instance.ops_port}/metrics", timeout=20)
    assert "broker_" in page.raise_for_status().text
    create_program(cluster, "back")
    assert batch_statuses(cluster, "back") == {200}


def is_open(node: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((node, port), 10).close()
    except OSError:
        return False
    return True


def reload(cluster: Cluster) -> tuple[int, list[str]]:
    """The exit status of `broker reload`, and the lines it told."""
    command = [BROKER, "reload", "--data-dir", str(cluster.instance.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment({}))
    return done.returncode, (done.stdout + done.stderr).splitlines()


@contextmanager
def replies_to_health_checks(cluster: Cluster) -> Iterator[Counter[int]]:
    """What the replicas that an ingress leads to answer to health checks while the block lasts."""
    statuses: Counter[int] = Counter()
    is_over = threading.Event()

    def check() -> None:
        with httpx.Client(timeout=20) as client:
            while not is_over.wait(CHECK_S):
                for host, port in cluster.replicas():
                    with suppress(httpx.TransportError):  # it has ended
                        statuses[client.get(f"http://{host}:{port}/-/healthz").status_code] += 1

    checking = threading.Thread(target=check)
    checking.start()
    try:
        yield statuses
    finally:
        is_over.set()
        checking.join()


def list_parts(node: Node) -> set[int]:
    """The processes of a node that a reload exchanges."""
    return {process.pid for title in PARTS for process in node.processes(title)}


def create_program(cluster: Cluster, program: str) -> None:
    body = {"id": program, "name": program}
    url = f"{cluster.url(NODES[0])}/api/v1/programs"
    httpx.post(url, json=body, headers=cluster.token(), timeout=20).raise_for_status()


def batch_statuses(cluster: Cluster, program: str) -> set[int]:
    """What both doors of each node answer to a batch of one event more than `LIMIT`; 200 is success."""
    token, events = cluster.token(), [{"event": "Score#update"}] * (LIMIT + 1)
    call = {"jsonrpc": "2.0", "id": 1, "method": "producer"}
    call |= {"params": {"programId": program, "events": events}}
    statuses = set()
    for node in NODES:
        for _ in range(TRIES):
            url = f"{cluster.url(node)}/api/v1/programs/{program}/events"
            reply = httpx.post(url, json={"events": events}, headers=token, timeout=20)
            statuses.add(200 if reply.is_success else reply.status_code)
        with connect(f"ws://{node}:{cluster.instance.ws_port}/api/v1/ws", additional_headers=token) as peer:
            peer.send(json.dumps(call))
            answer = json.loads(peer.recv(20))
            statuses.add(200 if "result" in answer else answer["error"]["code"])
    return statuses
