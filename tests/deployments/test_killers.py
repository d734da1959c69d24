"""Requests and frames that once stopped a process, through the real ingress and the real gateway.

Strangers send them, of the largest size that the doors take, while another client is served. Afterwards the
same processes are there, and they have used a bounded time and memory for it. What each reader costs, by
size, is in `tests/bad_input/test_cost.py`.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import orjson
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.adversity.faults import TITLES, find
from tests.bad_input.cost import REPLY_BYTES
from tests.bad_input.test_cost import JSON
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(480)]

SIZE = (1 << 20) - 1_000
FRAMES = 900_000, 250_000  # with the call around it, and names that are longer than they are counted
SERVED_S = 10.0  # the other client's patience; the machine of a test has other things to do
# Of a process for each mebibyte: reading plain JSON takes 0.01 s, what was mended here took 7.5 to 500 s.
SPENT_S = 0.5
GROWN_BYTES = 300 << 20  # in all; what was mended here took 1.6 GB for 268 KB


@pytest.fixture(scope="module", autouse=True)
def _shown(instance: Instance) -> None:
    """The program that is asked for."""
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.token(), timeout=20) as admin:
        admin.post("/programs", json={"id": "shown", "name": "n"}).raise_for_status()


class Watch:
    """The processes of one kind: that they stay, and what they use."""

    def __init__(self, instance: Instance, title: str) -> None:
        self._instance, self._title = instance, title
        for process in find(instance, title):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the most memory counts from now
        self._before = self._look()

    def require_unharmed(self, sent: int) -> None:
        """Assert that each is there still, and used a bounded time and memory for `sent` inputs."""
        now = self._look()
        assert now.keys() >= self._before.keys(), "a process was exchanged"
        for pid, (spent_s, used_bytes) in self._before.items():
            assert now[pid][0] - spent_s < SPENT_S * sent + 5
            assert now[pid][1] - used_bytes < GROWN_BYTES

    def _look(self) -> dict[int, tuple[float, int]]:
        found: dict[int, tuple[float, int]] = {}
        for process in find(self._instance, self._title):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system, _peak_bytes(process)
        assert found
        return found


def _peak_bytes(process: psutil.Process) -> int:
    """The most memory that the process has had (`VmHWM`)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@asynccontextmanager
async def served(ask: Callable[[], object]) -> AsyncIterator[None]:
    """Another client that asks on and on, and fails if it is not answered."""
    over = asyncio.Event()
    answers = 0

    async def go_on() -> None:
        nonlocal answers
        while not over.is_set():
            async with asyncio.timeout(SERVED_S):
                await ask()  # type: ignore[misc]  # it is a coroutine function
            answers += 1

    asking = asyncio.create_task(go_on())
    try:
        yield
    finally:
        over.set()
        await asking
    assert answers


PATHS = [
    ("POST", "/programs"),
    ("PUT", "/programs/shown"),
    ("POST", "/programs/shown/events"),
    ("POST", "/programs/shown/events/import"),
    ("POST", "/responses/demo/undefined/shown"),
    ("POST", "/token"),
    ("POST", "/storage/none"),
    ("POST", "/servertime"),
    ("PATCH", "/projects/none/application/revisions/none"),
]
WRONG = {
    "a list of numbers": b'{"responses":[' + b"0," * (SIZE // 2) + b"0]}",
    "empty entries": b'{"responses":[' + b"{}," * (SIZE // 3) + b"{}]}",
    "names that nobody knows": b"{" + b",".join(b'"%x":0' % n for n in range(SIZE // 9)) + b"}",
    "a long name": b'{"' + b"k" * SIZE + b'":0}',
}


async def test_no_body_holds_up_others_or_ends_a_replica(instance: Instance) -> None:
    watch, sent = Watch(instance, TITLES["API replica"]), 0
    async with httpx.AsyncClient(base_url=f"{instance.url}/api/v1", timeout=60) as stranger:

        async def version() -> None:
            async with httpx.AsyncClient(timeout=SERVED_S) as other:
                (await other.get(f"{instance.url}/api/v1/version")).raise_for_status()

        async with served(version):
            bodies = [make(SIZE) for make in JSON.values()] + list(WRONG.values())
            for number, body in enumerate(bodies):
                for method, path in (PATHS[number % len(PATHS)], PATHS[4]):
                    told = await stranger.request(
                        method, path, content=body, headers={"Content-Type": _type(method)}
                    )
                    assert 400 <= told.status_code < 500, (number, path, told.text[:200])
                    assert len(told.content) <= REPLY_BYTES
                    assert told.json()["status"] == told.status_code
                    sent += 1
    watch.require_unharmed(sent)


def test_a_connection_goes_on_after_a_body_that_nobody_wanted(instance: Instance) -> None:
    """Who is not known is refused before the body is read, which is put aside."""
    body = WRONG["a list of numbers"]
    connection = HTTPConnection(urlsplit(instance.url).netloc, timeout=60)
    with closing(connection):
        for _ in range(20):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/api/v1/programs/shown/events/import", body, headers)
            refused = connection.getresponse()
            assert (refused.status, refused.will_close, refused.read() != b"") == (401, False, True)
            connection.request("GET", "/api/v1/version")
            served = connection.getresponse()
            assert (served.status, served.read() != b"") == (200, True)


def _type(method: str) -> str:
    return "application/merge-patch+json" if method == "PATCH" else "application/json"


CALLS = ["respond", "subscribe", "login", "addResponses", "getStoredValue", "producer"]
TREES: dict[str, Callable[[int], bytes]] = {
    "a long name before many values": lambda size: (
        b'{"query":{"' + b"k" * (size // 2) + b'":[' + b"[]," * (size // 6) + b"[]]}}"
    ),
    "names": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 9)) + b"}",
    "numbers": lambda size: b'{"responses":[' + b"0," * (size // 2) + b"0]}",
}


async def test_no_frame_holds_up_others_or_ends_a_gateway(instance: Instance) -> None:
    watch, sent = Watch(instance, TITLES["gateway"]), 0
    url = f"ws://{instance.host}:{instance.ws_port}/api/v1/ws"
    async with (
        connect(url, proxy=None, max_size=None) as stranger,
        connect(url, proxy=None) as viewer,
    ):
        await _call(viewer, "subscribe", b'{"programId":"shown"}')
        async with served(lambda: _call(viewer, "getVersion", b"{}")):
            # A message of the largest size may be refused for its many values; a smaller one is read.
            sizes = ((make, size) for make in (*JSON.values(), *TREES.values()) for size in FRAMES)
            for number, (make, size) in enumerate(sizes):
                for method in (CALLS[number % len(CALLS)], "addResponses", "getApplicationRequest"):
                    params = make(size)
                    told = await _call(stranger, method, params)
                    assert "error" in told
                    assert len(orjson.dumps(told)) <= REPLY_BYTES
                    sent += 1
    watch.require_unharmed(sent)


async def _call(socket: ClientConnection, method: str, params: bytes) -> dict[str, object]:
    """The answer to a call; a message that is no JSON is answered too."""
    text = b'{"jsonrpc":"2.0","id":1,"method":"' + method.encode() + b'","params":' + params + b"}"
    try:
        await socket.send(text.decode(), text=True)
    except UnicodeDecodeError:
        return {"error": "no text message has such bytes"}
    async with asyncio.timeout(60):
        return dict(orjson.loads(await socket.recv()))


HOST = "Host: demo.localhost"
BODY = ["Content-Type: application/json", "Transfer-Encoding: chunked", "", "2", "{}", "0"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["POST /api/v1/servertime HTTP/1.1", HOST, *BODY, "Host: nobody.localhost"], 200),
        (["POST /api/v1/servertime HTTP/1.1", HOST, *BODY, "Authorization: Bearer x"], 200),
        (["POST /api/v1/servertime HTTP/1.1", HOST, "Host: nobody.localhost", *BODY], 400),
        (["GET /api/v1/version HTTP/1.1", HOST, "Authorization: Bearer x", "Authorization: Bearer y"], 400),
        (["GET http://nobody.localhost/api/v1/version HTTP/1.1", HOST], 400),
        (["GET /api/v1/version HTTP/1.1", HOST, "Content-Length: 0", "Content-Length: 1"], 400),
        (["GET /api/v1/version HTTP/1.1", HOST, "Content-Type: a/b", "Content-Type: application/json"], 400),
    ],
)
def test_headers_end_where_the_body_begins(instance: Instance, lines: Sequence[str], status: int) -> None:
    with socket.create_connection((instance.host, instance.http_port), timeout=SERVED_S) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode())
        told = b""
        while b"\r\n\r\n" not in told:
            part = raw.recv(65536)
            if not part:
                break
            told += part
    # A head that the ingress itself finds malformed may be closed without a word.
    assert told.startswith(b"HTTP/1.1 %d " % status) or (status == 400 and not told)
