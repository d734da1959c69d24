"""The product on a cluster of two nodes that it has joined, each with an address of its own, for tests.

As an operator sets it up: nodes by `ray start` with `deploy/node.env`, then `broker up`.
"""

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.adversity.two_nodes import HEAD, SECOND, Node, open_cluster
from tests.cluster import front_door
from tests.deployments.haproxy_servers import list_replicas
from tests.deployments.instance import PASSWORD, Instance

NODES = (HEAD, SECOND)
LOGIN_TRIES = 3
BACK_S = 120.0  # until what has ended is there again
BROKER = Path(sys.executable).with_name("broker")
API = "ServeReplica:broker:Api"
"""What API replicas have in their command lines."""
_SETTINGS = {
    "BROKER_BIND_HOST": "node",
    "BROKER_OPS_HOST": "node",
    "BROKER_LOGIN_TRIES_PER_ADDRESS": str(LOGIN_TRIES),
    "BROKER_RELAY_FROM": "3",
}


class Cluster:
    """Two nodes with the product."""

    def __init__(
        self, instance: Instance, nodes: list[Node], directory: Path, environment: dict[str, str]
    ) -> None:
        self.instance = instance
        self.environment = environment
        self.nodes = nodes
        self.directory = directory

    def url(self, node: str) -> str:
        """Of the HTTP port of `node`."""
        return f"http://{node}:{self.instance.http_port}"

    def configurations(self) -> list[Path]:
        """Of the HAProxy of each node."""
        return list((self.directory / "i").glob("*/haproxy.cfg"))

    def replicas(self, application: str = "broker") -> set[tuple[str, int]]:
        """Where the HAProxy of any node looks for a replica."""
        return {
            place
            for path in self.configurations()
            for place in list_replicas(path.read_text(), application).values()
        }

    def token(self) -> dict[str, str]:
        """The header of the admin."""
        form = {"grant_type": "password", "username": "admin", "password": PASSWORD, "client_id": "Test"}
        reply = httpx.post(f"{self.url(HEAD)}/api/v1/token", data=form, timeout=20).raise_for_status()
        return {"Authorization": f"Bearer {reply.json()['access_token']}"}

    def listening(self) -> list[tuple[str, str, int]]:
        """Name, address and port of each TCP socket that listens and of each UDP socket of all nodes."""
        found = []
        for node in self.nodes:
            for process in node.processes():
                with suppress(Exception):
                    found += [
                        (process.name(), each.laddr.ip, each.laddr.port)
                        for each in process.net_connections("inet")
                        if each.laddr and (each.type == socket.SOCK_DGRAM or each.status == "LISTEN")
                    ]
        return found

    @property
    def settings_file(self) -> Path:
        """What a reload reads again."""
        return self.directory / "broker.env"

    @contextmanager
    def front_door(self) -> Iterator[None]:
        """What spreads connections over both nodes, at their ports of 127.0.0.1."""
        path, instance = self.directory / "front-door.cfg", self.instance
        front_door.write_configuration(path, NODES, instance.http_port, instance.ws_port, instance.ops_port)
        process = front_door.start(path)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def joined_cluster() -> Iterator[Cluster]:
    """A cluster while the block lasts."""
    # A short path: sockets lie below it.
    with (
        tempfile.TemporaryDirectory(prefix="bj-", dir="/tmp", ignore_cleanup_errors=True) as name,
        asyncio.Runner() as runner,
    ):
        file = Path(name) / "broker.env"
        file.touch(0o600)
        opened = open_cluster(Path(name), **_SETTINGS, BROKER_SETTINGS_FILE=str(file))
        instance, nodes, environment = runner.run(opened.__aenter__())
        try:
            yield Cluster(instance, nodes, Path(name), environment)
        finally:
            runner.run(opened.__aexit__(None, None, None))


def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so."""
    deadline_s = time.monotonic() + BACK_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
