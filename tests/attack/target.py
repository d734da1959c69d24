"""One instance with something in it to attack, and what its processes cost."""

import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.settings import child_environment
from tests.auth.visitor_tokens import pem
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import PASSWORD, Instance

PUBLIC_HOST = "localhost"
HOST = f"demo.{PUBLIC_HOST}"
OTHER_HOST = f"other.{PUBLIC_HOST}"
WITNESSED = "witnessed"
BULK = "bulk"
PRIVATE = "private"
PROJECT = "show"
POLLED = "polled"
ROLES = ("admin", "producer", "user", "client")

# What must live through every attack, by a word of its command line: Ray names workers for their actors.
_KINDS = {
    "ServeReplica": "api",
    "OwnerActor": "owner",
    "CounterActor": "counter",
    "GatewayActor": "gateway",
    "haproxy": "ingress",
    "deployments.conductor": "conductor",
}
_SAMPLE_S = 0.02
_TICKS_PER_S = 100  # of /proc/PID/stat; the same on every Linux
_PAGE_BYTES = 4096


def environment_of(image_server: ImageServer) -> dict[str, str]:
    """The settings of an instance: a wait that attacks sit out, and whose images it may fetch."""
    return {"BROKER_WS_HANDSHAKE_S": "2", "BROKER_IMAGES_ALLOW_HOSTS": image_server.host}


@dataclass
class Target:
    """The instance with an account `demo` (users of all roles, programs, a project) and one `other`."""

    instance: Instance
    image_server: ImageServer
    tokens: dict[str, str] = field(default_factory=dict)
    other_token: str = ""
    event_id: str = ""
    signed_id: str = ""
    issued_id: str = ""
    signer: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    revision_id: str = ""
    user_id: str = ""

    @property
    def http_port(self) -> int:
        return self.instance.http_port

    @property
    def ws_port(self) -> int:
        return self.instance.ws_port

    def prepare(self) -> None:
        """Fill the instance."""
        self._run("account", "add", "other")
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:
            key.write(pem(self.signer))
            key.flush()
            self._run("account", "visitors", "demo", "--public-key", key.name)
        self._run("user", "add", "rival", "--role", "admin", "--password", PASSWORD, "--account", "other")
        with httpx.Client(base_url=f"{self.instance.url}/api/v1", timeout=120) as door:
            self.tokens["admin"] = self._log_in("admin", HOST)
            door.headers["Host"] = HOST
            door.headers["Authorization"] = f"Bearer {self.tokens['admin']}"

            def make(path: str, body: object) -> dict[str, str]:
                reply = door.post(path, json=body).raise_for_status()
                told: dict[str, str] = reply.json()
                return told

            make("/projects", {"id": PROJECT, "name": "The show"})
            for name in ROLES[1:]:
                user = {"username": name, "password": PASSWORD, "role": name, "projectIds": [PROJECT]}
                self.user_id = make("/users", user)["id"]
                self.tokens[name] = self._log_in(name, HOST)
            for program, access in (
                (WITNESSED, "public"), (BULK, "public"), (PRIVATE, "private"), (POLLED, "public"),
            ):  # fmt: skip
                make("/programs", {"id": program, "name": program, "access": access, "projectId": PROJECT})
            event = {"event": "Poll#show", "metadata": {"title": "Who?", "options": ["a", "b"]}}
            self.event_id = make(f"/programs/{POLLED}/events", event)["id"]

            def ask(visitors: str) -> str:
                asked = {"title": visitors, "options": ["a", "b"], "visitors": visitors}
                body = {"event": "Poll#show", "metadata": asked}
                return make(f"/programs/{POLLED}/events", body)["id"]

            self.signed_id, self.issued_id = ask("signed"), ask("issued")
            source = {"id": "inside", "name": "x", "type": "api", "url": "http://127.0.0.1:1/"}
            content = {
                "title": "T",
                "status": "published",
                "version": "1",
                "content": {"dataSources": [source]},
            }
            self.revision_id = make(f"/projects/{PROJECT}/application/revisions", content)["id"]
            make(f"/storage/{PROJECT}", {"id": "kept", "metadata": {"of": "demo"}})
            lines = [{"event": "Filler#add", "metadata": {"text": "x" * 2_000}}] * 8_000
            door.post(f"/programs/{BULK}/events/import", json={"events": lines}).raise_for_status()
        self.other_token = self._log_in("rival", OTHER_HOST)

    def processes(self) -> dict[int, str]:
        """Number → kind of each process of ours that must live on."""
        found = {}
        for pid in self.instance.processes():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                kind = next((kind for word, kind in _KINDS.items() if word in line), None)
                if kind is not None:
                    found[pid] = kind
        return found

    def _log_in(self, username: str, host: str) -> str:
        form = {"grant_type": "password", "username": username, "password": PASSWORD, "client_id": "Test"}
        url = f"{self.instance.url}/api/v1/token"
        reply = httpx.post(url, data=form, headers={"Host": host}, timeout=60)
        return str(reply.raise_for_status().json()["access_token"])

    def _run(self, *words: str) -> None:
        """A command of the command line, on the instance's database."""
        command = [sys.executable, "-c", "from broker.cli.main import main; main()", *words]
        subprocess.run(
            [*command, "--data-dir", str(self.instance.data_dir)], check=True, env=child_environment({}),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip


@dataclass
class Cost:
    """What one process has spent: seconds of processor time, and the most bytes beyond the start."""

    kind: str
    cpu_s: float
    growth_bytes: int


class Meter:
    """Looks at all processes of a target while a block runs."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kinds = target.processes()
        self._before = {pid: _cpu_s(pid) for pid in self._kinds}
        self._first = {pid: _resident_bytes(pid) for pid in self._kinds}
        self._most = dict(self._first)
        self.costs: list[Cost] = []
        self.faults: list[str] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the block; `costs` and `faults` are there after it."""
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), daemon=True)
        sampler.start()
        try:
            yield
        finally:
            done.set()
            sampler.join()
        for pid, kind in self._kinds.items():
            growth = self._most[pid] - self._first[pid]
            self.costs.append(Cost(kind, _cpu_s(pid) - self._before[pid], growth))

    def see_who_lives(self, *, may_scale: bool) -> None:
        """Note processes that have died, and API replicas that were added unless they may be.

        HAProxy is another process after each change of the replicas; the one before ends when its connections
        have ended, which may be during a later attack.
        """
        now = self._target.processes()
        died = _by_kind({pid: kind for pid, kind in self._kinds.items() if pid not in now})
        new = _by_kind({pid: kind for pid, kind in now.items() if pid not in self._kinds})
        new.pop("ingress", None)
        if "ingress" in now.values():
            died.pop("ingress", None)
        self.faults += [f"{count} {kind} died" for kind, count in died.items()]
        if not may_scale:
            self.faults += [f"{count} {kind} started" for kind, count in new.items()]

    def _sample(self, done: threading.Event) -> None:
        while not done.wait(_SAMPLE_S):
            for pid, most in self._most.items():
                self._most[pid] = max(most, _resident_bytes(pid))


def _by_kind(processes: Mapping[int, str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for kind in processes.values():
        counts[kind] += 1
    return counts


def _cpu_s(pid: int) -> float:
    """Processor time of a process; of one that has died, nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
