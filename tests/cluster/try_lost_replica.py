"""What becomes of requests to a replica whose node loses its power; prints JSON. For `network.isolated`."""

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.network import Host, Network
from tests.deployments.ingress_stage import Ingress, get, parse, read_all

_SERVE = """
import sys, threading
from tests.deployments.ingress_stage import Replica
print(Replica("far", sys.argv[1]).port, flush=True)
threading.Event().wait()
"""
_HELD = b"POST /never HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class _Far:
    """A replica on a host, as Ray tells of it."""

    name: str
    host: str
    port: int

    def listen_at_file(self, directory: Path) -> None:
        """Do nothing: only replicas of the ingress's own node have a file."""


def main() -> None:
    """Cut the node of a replica off while one request waits there and another comes."""
    network = Network()
    host = network.add()
    ingress = Ingress(HTTP_TIMEOUT_S="3600")
    try:
        print(json.dumps(_try(host, ingress)))  # noqa: T201
    finally:
        ingress.end()
        network.close()


def _try(host: Host, ingress: Ingress) -> dict[str, object]:
    command = [*host.prefix, sys.executable, "-c", _SERVE, host.ip]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    far = _Far("far", host.ip, int(serving.stdout.readline()))
    ingress.run({"broker": ("/", [far])})  # type: ignore[list-item]  # which has all of a `Replica` that is used
    ingress.until_up(1)
    before = get(ingress.port, "/ours/200")[0]
    waiting = _send(ingress)
    _until_connected(ingress)
    host.cut()
    began_s = time.monotonic()
    coming = _send(ingress)  # over the connection that was kept, or a new one
    replies = [parse(read_all(peer)) for peer in (waiting, coming)]
    over_s = time.monotonic() - began_s
    host.heal()
    ingress.until_up(1)
    return {
        "before": before,
        "errors": [body["error"] for _, _, body in replies],
        "statuses": [status for status, _, _ in replies],
        "over_s": over_s,
        "after": get(ingress.port, "/ours/200")[0],
    }


def _send(ingress: Ingress) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", ingress.port), _PATIENCE_S)
    peer.sendall(_HELD)
    return peer


def _until_connected(ingress: Ingress) -> None:
    """Until the request has reached the replica: HAProxy waits for its response."""
    while not any(
        line.split(",")[1] == "SERVE_REPLICA__broker-far" and line.split(",")[4] == "1"
        for line in ingress.ask("show stat").splitlines()
        if line.startswith("http-broker")
    ):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
