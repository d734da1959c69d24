"""A running native server with two accounts, and clients that speak JSON-RPC to it."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from websockets.sync.client import ClientConnection, connect

from broker._native import Server

if TYPE_CHECKING:
    from broker._native import Entry, Upcall

PROGRAM = "main/program/final"
WAIT_S = 10.0


def push(seq: int, epoch: str = "e1", pad: int = 0) -> Entry:
    """The push number `seq`, an event, with `pad` bytes of ballast."""
    params: dict[str, object] = {"seq": seq, "epoch": epoch, "id": f"id-{seq}"}
    if pad:
        params["pad"] = "x" * pad
    return (0, epoch, seq, "event", json.dumps(params).encode())


class Gateway:
    """A started server with the accounts `main` (the default) and `demo`."""

    def __init__(self, **settings: Any) -> None:
        self.speaks_tls = "certificate" in settings
        self.server = Server(host="127.0.0.1", port=0, **{"loops": 2, **settings})
        self.port = self.server.start()
        self.server.set_accounts("broker.test", "main", {"main": None, "demo": ["https://demo.test"]})

    def url(self, query: str = "") -> str:
        scheme = "wss" if self.speaks_tls else "ws"
        return f"{scheme}://127.0.0.1:{self.port}/api/v1/ws{query}"

    @contextmanager
    def client(self, query: str = "", **options: Any) -> Iterator[Client]:
        with connect(
            self.url(query), compression=options.pop("compression", None), proxy=None, **options
        ) as socket:
            yield Client(socket)

    def upcall(self) -> Upcall:
        """The next question of the server."""
        readable, _, _ = select.select([self.server.upcall_fd()], [], [], WAIT_S)
        assert readable, "no upcall came"
        (upcall,) = self.server.take(1)
        return upcall


class Client:
    """One JSON-RPC client."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.ids = 0

    def send(self, method: str, params: object = None) -> int:
        """Send a request and return its id."""
        self.ids += 1
        self.raw({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params})
        return self.ids

    def raw(self, message: object) -> None:
        self.socket.send(message if isinstance(message, str) else json.dumps(message))

    def receive(self) -> Any:
        return json.loads(self.socket.recv(timeout=WAIT_S))

    def call(self, method: str, params: object = None) -> Any:
        """Send a request and return the answer, which comes next."""
        number = self.send(method, params)
        answer = self.receive()
        assert answer["id"] == number, answer
        return answer.get("result", answer.get("error"))

    def subscribe(self, program: str = "final", **more: object) -> Any:
        return self.call("subscribe", {"programId": program, **more})

    def seqs(self, count: int) -> list[int]:
        """The seqs of the next `count` notifications."""
        return [self.receive()["params"]["seq"] for _ in range(count)]

    def quiet(self) -> bool:
        """Whether nothing is on its way: an answer overtakes nothing."""
        number = self.send("servertime")
        return bool(self.receive().get("id") == number)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail when it does not in time."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the state was not reached in time"
        time.sleep(0.005)
