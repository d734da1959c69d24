"""The ways into a running product, and a client and viewers at each."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT
from bench.measure import find_faults
from bench.product import PROGRAM, VIEWERS, Product, ProductError, check, log_in
from bench.rest.instance import read_environment

METADATA = {"sent": 0, "filler": "x" * 60}
STAMP = '"sent":0' + " " * 18
"""Where the client writes when an event was due."""
ROUND_S = 60.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
"""RFC 6455 section 1.3's; nothing here guards against caches."""
_LISTENING = "0A"
_DIRECT = "RAY_SERVE_DIRECT_INGRESS_{}_HTTP_PORT"
_INGRESS_HEADERS = [
    "x-request-timeout-seconds: 0",
    "x-request-disconnect-disabled: ?1",
    "x-request-id: bench",
    "x-broker-ingress: {key} public 127.0.0.1",
]
"""What our HAProxy adds to a request; `key` is its secret."""

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """What one round gave: the client's report, the viewers', and what they missed."""

    client: Report
    viewers: Report
    faults: list[str]


@dataclass(frozen=True, slots=True)
class ReplicaDoor:
    """The way to a replica past the ingress."""

    port: int
    key: str

    @property
    def headers(self) -> list[str]:
        """What a request needs there."""
        return [line.format(key=self.key) for line in _INGRESS_HEADERS]


class Doors:
    """Clients, one for each way in, and the viewers of the program that all of them publish to."""

    def __init__(self, product: Product, token: str, replica: ReplicaDoor, stack: ExitStack) -> None:
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        self._host = f"localhost:{product.http_port}"
        self._token = token
        self._replica = replica
        upgrade = self._directory / "upgrade"
        upgrade.write_text(build_upgrade(f"localhost:{product.ws_port}", token))
        ways: dict[str, list[str | Path]] = {
            "HTTP": [f"127.0.0.1:{product.http_port}"],
            "replica": [f"127.0.0.1:{replica.port}"],
            "WebSocket": [f"127.0.0.1:{product.ws_port}", upgrade],
        }
        self._clients = {
            name: stack.enter_context(Child([EXAMPLES / "http_load", *way], ROOT))
            for name, way in ways.items()
        }
        self._viewers = stack.enter_context(open_viewers(product))

    def publish(self, door: str, batch: int, in_flight: int, requests: int, per_s: int = 0) -> Published:
        """Publish `requests` times, `in_flight` at a time at most, and wait until all viewers have all of it.

        Args:
            door: `HTTP`, `WebSocket`, or `replica` for HTTP past the ingress.
            per_s: requests a second; 0 is as fast as they are answered.

        Raises:
            ProductError: a request was refused.
            ChildError: a client has failed.
        """
        file = self._directory / f"{door}-{batch}.json"
        file.write_text(json.dumps([self._request(door, batch)]))
        self.expect(requests * batch)
        client = self._clients[door]
        client.send(f"publish {file} {in_flight} {requests} {per_s}")
        report = client.receive()
        if report["failures"]:
            raise ProductError(
                f"{door}: {report['failures']} of {requests} refused; {report['first_failure'][-300:]}"
            )
        viewers, faults = self.wait(f"{door}, {batch} a request, {in_flight} in flight")
        return Published(report, viewers, faults)

    def expect(self, events: int) -> None:
        """Tell the viewers how many events come."""
        self._viewers.send(f"expect {events} {ROUND_S}")
        self._viewers.receive()

    def wait(self, what: str) -> tuple[Report, list[str]]:
        """Wait until the viewers have them; what they saw, and what went wrong."""
        report = self._viewers.receive()
        return report, find_faults(what, report)

    def _request(self, door: str, batch: int) -> str:
        body = build_body(batch)
        if door == "WebSocket":
            params = f'{{"programId":"{PROGRAM}",{body[1:]}'
            return f'{{"jsonrpc":"2.0","id":1,"method":"producer","params":{params}}}'
        lines = [
            f"POST /api/v1/programs/{PROGRAM}/events HTTP/1.1",
            f"Host: {self._host}",
            f"Authorization: Bearer {self._token}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(self._replica.headers if door == "replica" else []),
        ]
        return "\r\n".join([*lines, "", body])


@contextmanager
def open_doors(product: Product, titles: dict[int, str]) -> Iterator[Doors]:
    """Make the program, its viewers and the clients.

    Args:
        titles: command lines of the product's processes.
    """
    with httpx.Client(base_url=product.base_url, timeout=30) as client:
        token = log_in(client, product.password)
        headers = {"Authorization": f"Bearer {token}"}
        check(client.post("/programs", json={"id": PROGRAM, "name": "Bench"}, headers=headers))
    with ExitStack() as stack:
        yield Doors(product, token, find_replica(titles), stack)


@contextmanager
def open_viewers(product: Product) -> Iterator[Child]:
    """The load client with its viewers, all subscribed."""
    command: list[str | Path] = [EXAMPLES / "load", f"127.0.0.1:{product.ws_port}"]
    command += ["--connections", str(VIEWERS), "--host", f"localhost:{product.ws_port}"]
    command += ["--subscribe", json.dumps({"programId": PROGRAM})]
    with Child(command, ROOT) as viewers:
        viewers.receive()
        yield viewers


def build_body(batch: int) -> str:
    """The JSON object of one event, or of a list of so many."""
    event = json.dumps({"event": "Score#update", "metadata": METADATA}, separators=(",", ":"))
    event = event.replace('"sent":0', STAMP)
    return event if batch == 1 else f'{{"events":[{",".join([event] * batch)}]}}'


def build_metadata(sent_ns: int) -> bytes:
    """The metadata of such an event, as an owner gets it."""
    return json.dumps(METADATA | {"sent": sent_ns}, separators=(",", ":")).encode()


def build_upgrade(host: str, token: str) -> str:
    """The request that opens a WebSocket."""
    lines = ["GET /api/v1/ws HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}", f"Authorization: Bearer {token}"]
    return "\r\n".join([*lines, "", ""])


def find_replica(titles: dict[int, str]) -> ReplicaDoor:
    """Where the replica itself listens for HTTP, and as whom it lets us in.

    Raises:
        ProductError: it does not.
    """
    (replica,) = (pid for pid, title in titles.items() if "ray::ServeReplica:broker:" in title)
    environment = read_environment(titles)
    first, last = (int(environment[_DIRECT.format(end)]) for end in ("MIN", "MAX"))
    sockets = list_sockets(replica)
    for line in Path(f"/proc/{replica}/net/tcp").read_text().splitlines()[1:]:
        port = parse_listening(line, sockets)
        if port is not None and first <= port <= last:
            return ReplicaDoor(port, environment["BROKER_INGRESS_KEY"])
    raise ProductError("no replica listens for HTTP")


def list_sockets(pid: int) -> set[str]:
    """The inodes of a process' sockets."""
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def parse_listening(line: str, inodes: set[str]) -> int | None:
    """The port of a line of /proc/net/tcp (proc_pid_net(5)), if it is one of these sockets and listens."""
    words = line.split()
    if words[3] != _LISTENING or words[9] not in inodes:
        return None
    return int(words[1].rpartition(":")[2], 16)
