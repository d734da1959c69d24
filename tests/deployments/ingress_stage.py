"""HAProxy as Ray Serve starts it, with what Ray's own code writes for it, and replicas that do as told."""

import json
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import psutil

from broker import timers
from broker.deployments.ports import free_port
from broker.deployments.ray_internals import haproxy
from broker.deployments.worker_setup import LATE_S
from broker.settings import child_environment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Serve's use of pydantic is its own business
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig

KEY = "0123456789abcdef"
FRONT_DOOR = "127.0.0.9"
NAMING_DOOR = "127.0.0.10"
"""A front door that begins its connections with a PROXY header."""
_OURS = "X-Content-Type-Options: nosniff\r\n"
_START_S = 30.0
_NO_REPLY = {
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "half": f"HTTP/1.1 200 OK\r\n{_OURS}Content-Le".encode(),
    "huge": f"HTTP/1.1 200 OK\r\n{_OURS}X-Long: {'x' * 60_000}\r\n\r\n".encode(),
    "lengths": f"HTTP/1.1 200 OK\r\n{_OURS}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx".encode(),
}
"""What a replica may send that is no response, or none that an ingress can take."""


class Replica(ThreadingTCPServer):
    """A server behind HAProxy; the first part of a path says what it does. Counts what reaches it."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, name: str, host: str = "127.0.0.1", *, has_file: bool = True) -> None:
        super().__init__((host, 0), _Handler)
        self.host = host
        self._has_file = has_file and host == "127.0.0.1"
        self._doors: list[socket.socket] = []
        self.name = name
        self.seen: list[str] = []
        self.heads: list[bytes] = []
        self._taken: list[socket.socket] = []
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def listen_at_file(self, directory: Path) -> None:
        """Listen beside the configuration of an ingress, too, as ours do on its node."""
        file = directory / haproxy.socket_file(self.port)
        if not self._has_file or file.exists():
            return
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(file))
        door.listen(self.request_queue_size)
        self._doors.append(door)
        threading.Thread(target=self._accept, args=(door,), daemon=True).start()

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):  # it is closed in the end
            while True:
                self.process_request(*door.accept())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections are cut on purpose."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and remember it."""
        self._taken.append(request)
        super().process_request(request, client_address)

    def die(self) -> None:
        """End as a process does that is killed: its connections end too."""
        self.end()
        for request in self._taken:
            with suppress(OSError):  # it has ended before
                request.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Refuse connections from now on."""
        for door in self._doors:
            with suppress(OSError):  # it has been shut before
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        self.shutdown()
        self.server_close()


class _Handler(StreamRequestHandler):
    server: Replica

    def handle(self) -> None:
        while line := self.rfile.readline():
            _, target, _ = line.decode("latin-1").split(" ")
            headers: dict[str, list[str]] = {}
            head = line
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                head += line
                name, _, value = line.decode("latin-1").partition(":")
                headers.setdefault(name.lower(), []).append(value.strip())
            if target == "/-/healthz":
                self._reply(200, "ok", "")
                continue
            self.server.seen.append(target)
            self.server.heads.append(head + line)
            self.rfile.read(int(headers.get("content-length", ["0"])[0]))
            act, _, rest = target[1:].partition("/")
            if act == "drop":
                return
            if act == "end":
                self.server.end()
                return
            if act == "never":
                threading.Event().wait(20)
                return
            if act in _NO_REPLY:
                self.wfile.write(_NO_REPLY[act])
                return
            if act == "plain":  # as Serve and its servers answer
                self._reply(int(rest), f"{rest} in plain text", "")
            else:
                way = self.connection.family.name
                told = {"by": self.server.name, "path": target, "headers": headers, "way": way}
                self._reply(int(rest) if act == "ours" else 200, json.dumps(told), _OURS)

    def _reply(self, status: int, body: str, headers: str) -> None:
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nContent-Type: text/plain\r\n{headers}\r\n"
        )
        self.wfile.write((head + body).encode())


class Ingress:
    """One HAProxy, reloaded as Ray reloads it."""

    def __init__(self, directory: str = "bi-", **settings: str) -> None:
        """`directory`: begins the name of its own. `settings`: of ours, without their prefix."""
        self.port, self.ops_port = free_port(), free_port()
        self._kept = tempfile.TemporaryDirectory(prefix=directory, dir="/tmp")
        self.directory = Path(self._kept.name)
        environment = haproxy.install_start_script(self.directory)
        self.start_program = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
        given = {
            "INGRESS_KEY": KEY,
            "HTTP_PORT": str(self.port),
            "OPS_PORT": str(self.ops_port),
            "WS_PORT": "1",
            "TRUSTED_PROXIES": f"{FRONT_DOOR},{NAMING_DOOR}",
            "PROXY_PROTOCOL": NAMING_DOOR,
            "HTTP_TIMEOUT_S": "1",
            **settings,
        }
        self._environment = child_environment({f"BROKER_{name}": value for name, value in given.items()})
        self._api = HAProxyApi(
            HAProxyConfig(
                socket_path=str(self.directory / "admin"),
                server_state_base=str(self.directory),
                server_state_file=str(self.directory / "state"),
                is_head=True,
            ),
            config_file_path=str(self.directory / "haproxy.cfg"),
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def config(self) -> Path:
        """Where Ray writes what it wants, and HAProxy reads what we make of it."""
        return self.directory / "haproxy.cfg"

    def write_as_ray(self, applications: dict[str, tuple[str, Iterable[Replica]]]) -> None:
        """Let Ray write its configuration. Args: applications: by name, the prefix and the replicas."""
        for replica in (each for _, replicas in applications.values() for each in replicas):
            replica.listen_at_file(self.directory)
        self._api.set_backend_configs(
            {
                f"http-{name}": BackendConfig(
                    name=f"http-{name}",
                    path_prefix=prefix,
                    app_name=name,
                    servers=[
                        ServerConfig(f"SERVE_REPLICA__{name}-{each.name}", each.host, each.port)
                        for each in replicas
                    ],
                )
                for name, (prefix, replicas) in applications.items()
            }
        )
        self._api._generate_config_file_internal()

    def run(self, applications: dict[str, tuple[str, Iterable[Replica]]], *, knows: bool = True) -> None:
        """Start HAProxy, or let a new process take over from the one before; returns when it has.

        Args:
            knows: false as a manager that has begun again knows of no process.
        """
        self.write_as_ray(applications)
        arguments = ["-db", "-f", str(self.config)]
        if self.processes and knows:
            (self.directory / "state").write_text(self.ask("show servers state"))
            arguments += ["-sf", str(self.processes[-1].pid), "-x", str(self.directory / "admin")]
        process = self.start(arguments)
        self.processes.append(process)
        deadline_s = time.monotonic() + _START_S
        while f"Pid: {process.pid}\n" not in self.ask("show info"):
            assert process.poll() is None, self.said()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def start(self, arguments: list[str]) -> "subprocess.Popen[bytes]":
        """Our program, as Ray starts it: from a worker whose timers may be late."""
        with (self.directory / "said").open("wb") as said, timers.late(LATE_S):
            return subprocess.Popen(
                [self.start_program, *arguments], env=self._environment, stdout=said, stderr=said
            )

    def said(self) -> str:
        """What the last process wrote."""
        return (self.directory / "said").read_text()

    def ask(self, command: str) -> str:
        """Ask HAProxy at its socket for operators; empty while nobody answers."""
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(self.directory / "admin"))
                peer.sendall(f"{command}\n".encode())
                return b"".join(iter(lambda: peer.recv(65_536), b"")).decode()
        except OSError:
            return ""

    def connections(self) -> int:
        """How many clients are connected."""
        lines = self.ask("show info").splitlines()
        return int(next(line.split(": ")[1] for line in lines if line.startswith("CurrConns: ")))

    def until_up(self, replicas: int) -> None:
        """Until so many servers can take requests."""
        deadline_s = time.monotonic() + _START_S
        while (
            sum(
                ",UP," in line and line.startswith("http-") and "SERVE_" in line
                for line in self.ask("show stat").splitlines()
            )
            != replicas
        ):
            assert time.monotonic() < deadline_s, self.ask("show stat")
            time.sleep(0.02)

    def listens(self) -> set[tuple[str, int]]:
        """Where the newest process takes connections."""
        found = psutil.Process(self.processes[-1].pid).net_connections("inet")
        return {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}

    def end(self) -> None:
        """Leave nothing."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._kept.cleanup()


@contextmanager
def running_ingress(replica: Replica, **settings: str) -> Iterator[Ingress]:
    """An ingress in front of one replica, when it takes requests."""
    ingress = Ingress(**settings)
    try:
        ingress.run({"broker": ("/", [replica])})
        ingress.until_up(1)
        yield ingress
    finally:
        ingress.end()


def call(port: int, request: bytes, source: str = "127.0.0.1", wait_s: float = 20.0) -> bytes:
    """Send bytes and read until the other side closes; the request must ask for that."""
    with socket.create_connection(("127.0.0.1", port), wait_s, (source, 0)) as peer:
        peer.sendall(request)
        return read_all(peer)


def read_all(peer: socket.socket) -> bytes:
    """What comes until the connection ends, which may be with a reset."""
    told = b""
    try:
        while part := peer.recv(65_536):
            told += part
    except ConnectionResetError:
        pass
    return told


def get(
    port: int, path: str, source: str = "127.0.0.1", method: str = "GET", headers: str = ""
) -> tuple[int, dict[str, str], Any]:
    """Status, headers in lower case, and JSON body of the reply to one request."""
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    return parse(call(port, request.encode("latin-1"), source))


def parse(reply: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers in lower case, and JSON body."""
    head, _, body = reply.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(line.split(" ")[1]), headers, json.loads(body) if body else None
