"""`direct_requests`: uvicorn itself, with Serve's own middleware and semaphore."""

import asyncio
import json
import logging
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http import auto

from broker.clock import SystemClock
from broker.deployments.ray_internals.departures import Departure
from broker.deployments.ray_internals.direct_requests import serve_directly, without_request_id
from broker.rest.deadlines import Deadlines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Serve's use of pydantic is its own business
    from ray.serve._private.http_util import RequestIdMiddleware
    from ray.serve._private.utils import Semaphore

pytestmark = pytest.mark.anyio

API = "/api/v1/x"
GUARDS = ("x-request-timeout-seconds", "x-request-disconnect-disabled")


class Figures:
    """Counts as Serve's own figures do."""

    def __init__(self) -> None:
        self.running = 0

    def inc_num_ongoing_requests(self, request: Any) -> None:
        assert request.is_direct_ingress
        self.running += 1

    def dec_num_ongoing_requests(self, request: Any) -> None:
        assert request.is_direct_ingress
        self.running -= 1


class Replica:
    """As much of Serve's replica as takes and counts requests."""

    def __init__(self, limit: int) -> None:
        self._semaphore = Semaphore(lambda: limit)
        self._metrics_manager = Figures()
        self.api = Api(self)

    def get_num_ongoing_requests(self) -> int:
        return self._metrics_manager.running

    async def _direct_ingress_asgi(self, scope: Any, receive: Any, send: Any) -> None:
        await self._semaphore.acquire()
        try:
            await self.api(scope | {"by": "serve"}, receive, without_request_id(send))
        finally:
            self._semaphore.release()


class Api:
    """Answers with what it was told; does something else at some paths."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._deadlines = Deadlines(0.01, SystemClock())
        self.reading = 0
        self.held: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        act = scope["path"].rpartition("/")[2]
        if act == "fail":
            raise LookupError(act)
        if act == "late":
            await self._wait(send)
            return
        body = await self._act(act, scope, receive, send)
        headers = [(b"content-length", b"%d" % len(body)), (b"x-request-id", b"ours")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if act == "break":
            raise LookupError(act)
        await send({"type": "http.response.body", "body": body})

    async def _act(self, act: str, scope: Any, receive: Any, send: Any) -> bytes:
        if act == "hold":
            release = asyncio.Event()
            self.held.put_nowait(release)
            await release.wait()
        if act == "read":
            self.reading += 1
            while (await receive()).get("more_body"):
                pass
            self.reading -= 1
        if act == "leave":
            while (await receive())["type"] != "http.disconnect":
                pass
        told = {
            "by": scope.get("by", "us"),
            "running": self._replica.get_num_ongoing_requests(),
            "client": scope["client"][0],
            "scheme": scope["scheme"],
            "headers": {name.decode(): value.decode("latin-1") for name, value in scope["headers"]},
        }
        return json.dumps(told).encode()

    async def _wait(self, send: Any) -> None:
        """What the API does with a request that takes too long."""
        task = self._deadlines.begin()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert self._deadlines.is_late(task)
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
        finally:
            self._deadlines.end(task)


class OtherMiddleware(RequestIdMiddleware):
    """What an operator of a Ray cluster may put in front of Serve."""


@pytest.fixture
def restored() -> Iterator[None]:
    before = auto.AutoHTTPProtocol
    level = logging.getLogger("uvicorn.error").level
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # as Serve does
    yield
    logging.getLogger("uvicorn.error").setLevel(level)
    auto.AutoHTTPProtocol = before


@asynccontextmanager
async def serving(replica: Replica, app: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server that Serve would start; `app` is what uvicorn is given."""
    app = app or RequestIdMiddleware(replica._direct_ingress_asgi)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(lambda: app, factory=True, lifespan="off", log_level=None, log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        host, port = listening.getsockname()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=20) as client:
            yield client
        server.should_exit = True
        await task


@pytest.fixture
async def replica(restored: None) -> Replica:
    replica = Replica(limit=2)
    serve_directly(replica.api, Departure(None, is_joined=False))
    return replica


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.001)


async def test_a_request_of_the_api_is_counted_while_it_runs(replica: Replica) -> None:
    async with serving(replica) as client:
        reply = await client.get(API)
    assert (reply.json()["by"], reply.json()["running"]) == ("us", 1)
    assert reply.headers.get_list("x-request-id") == ["ours"]
    assert replica.get_num_ongoing_requests() == 0


async def test_other_paths_go_serves_way(replica: Replica) -> None:
    told = dict.fromkeys((*GUARDS, "x-request-id"), "theirs")
    async with serving(replica) as client:
        for path in ("/", "/healthz", "/-/healthz", "/api/v1", "/api/v10/x", "/x/api/v1/x"):
            reply = await client.get(path, headers=told)
            assert reply.json()["by"] == "serve", path
            # Serve neither times nor watches it, whatever the client wants, and names it once.
            assert [reply.json()["headers"][name] for name in GUARDS] == ["0", "?1"]
            assert reply.headers.get_list("x-request-id") == ["theirs"]


async def test_a_websocket_goes_serves_way(replica: Replica) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with serving(replica) as client:
        reply = await client.get(API, headers=upgrade | {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert reply.status_code == 403


async def test_what_is_too_much_goes_serves_way_and_waits_there(replica: Replica) -> None:
    async with serving(replica) as client:
        running = [asyncio.create_task(client.get(f"{API}/hold")) for _ in range(2)]
        releases = [await replica.api.held.get() for _ in running]
        assert replica.get_num_ongoing_requests() == 2
        third = asyncio.create_task(client.get(API))
        await until(lambda: bool(replica._semaphore._waiters))
        assert not third.done()
        releases[0].set()
        assert (await third).json()["by"] == "serve"
        releases[1].set()
        assert [(await reply).json()["by"] for reply in running] == ["us", "us"]
        assert (await client.get(API)).json()["by"] == "us"
    assert replica.get_num_ongoing_requests() == 0


async def test_whom_a_request_comes_from_is_left_to_the_api(replica: Replica) -> None:
    async with serving(replica) as client:
        reply = await client.get(API, headers={"x-forwarded-for": "192.0.2.7"})
    assert reply.json()["client"] == "127.0.0.1"


async def test_what_serve_answers_itself_is_not_for_those_who_come_through_the_ingress(
    replica: Replica,
) -> None:
    async with serving(replica) as client:
        for path in ("/-/healthz", "/-/routes", "/%2d/routes"):
            assert (await client.get(path)).json()["by"] == "serve"
            told = await client.get(path, headers={"x-broker-ingress": "key public 192.0.2.7"})
            assert told.json()["by"] == "us"


async def test_a_request_counts_from_when_its_body_is_there(replica: Replica) -> None:
    async with serving(replica) as client:
        host, port = client.base_url.host, client.base_url.port
        writers = []
        for _ in range(5):  # places: 2
            _, writer = await asyncio.open_connection(host, port)
            writer.write(f"POST {API}/read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab".encode())
            writers.append(writer)
        await until(lambda: replica.api.reading == 5)
        assert (await client.get(API)).json() == {**(await client.get(API)).json(), "by": "us", "running": 1}
        for writer in writers:
            writer.write(b"cde")
        await until(lambda: replica.api.reading == 0)
        assert replica.get_num_ongoing_requests() == 0
        assert not replica._semaphore._value
        for writer in writers:
            writer.close()


async def test_what_is_no_http_is_refused_in_our_words(replica: Replica) -> None:
    async with serving(replica) as client:
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"x-content-type-options: nosniff" in head
    assert b"x-request-id: " in head
    assert json.loads(body)["error"] == "invalid_request"


async def test_a_request_that_fails_runs_no_longer(replica: Replica) -> None:
    async with serving(replica) as client:
        assert (await client.get(f"{API}/fail")).status_code == 500
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"{API}/break")
        assert (await client.get(f"{API}/late")).status_code == 503
        assert (await client.get(API)).json()["running"] == 1
    assert not replica._semaphore._value


async def test_a_request_without_a_client_runs_to_its_end(replica: Replica) -> None:
    async with serving(replica) as client:
        host, port = client.base_url.host, client.base_url.port
        _, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {API}/leave HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until(lambda: replica.get_num_ongoing_requests() == 1)
        writer.close()
        await until(lambda: replica.get_num_ongoing_requests() == 0)
        assert (await client.get(API)).json()["running"] == 1


def _without(name: str) -> Callable[[Replica], Any]:
    return lambda replica: delattr(replica, name)


def _count_nothing(replica: Replica) -> None:
    replica._metrics_manager.inc_num_ongoing_requests = lambda _: None  # type: ignore[method-assign]
    replica._metrics_manager.dec_num_ongoing_requests = lambda _: None  # type: ignore[method-assign]


def _hide_entry(replica: Replica) -> Any:
    async def entry(scope: Any, receive: Any, send: Any) -> None:
        await replica._direct_ingress_asgi(scope, receive, send)

    return RequestIdMiddleware(entry)


def _no_places(replica: Replica) -> None:
    async def acquire() -> None:
        await asyncio.sleep(0)

    replica._semaphore.acquire = acquire


@pytest.mark.parametrize(
    "change",
    [
        _without("_metrics_manager"),
        _count_nothing,
        _hide_entry,
        _no_places,
        lambda replica: OtherMiddleware(replica._direct_ingress_asgi),
    ],
    ids=["no figures", "counts otherwise", "another entry", "waits", "another middleware"],
)
async def test_a_serve_that_is_made_otherwise_takes_all_requests_itself(
    replica: Replica, change: Callable[[Replica], Any], caplog: pytest.LogCaptureFixture
) -> None:
    figures = replica._metrics_manager
    app = change(replica)
    replica.get_num_ongoing_requests = lambda: figures.running  # type: ignore[method-assign]
    async with serving(replica, app) as client:
        replies = [await client.get(API, headers={"connection": "close"}) for _ in range(3)]
    assert [reply.json()["by"] for reply in replies] == ["serve"] * 3
    assert figures.running == 0
    assert [record.message for record in caplog.records].count("requests_go_through_serve") == 1


async def test_an_api_on_another_event_loop_gets_its_requests_through_serve(
    restored: None, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica(limit=2)

    def serve_elsewhere() -> None:
        async def serve() -> None:
            serve_directly(replica.api, Departure(None, is_joined=False))

        asyncio.run(serve())

    await asyncio.to_thread(serve_elsewhere)
    async with serving(replica) as client:
        assert (await client.get(API)).json()["by"] == "serve"
    assert "requests_go_through_serve" in caplog.text


OURS = "frontend public from ours\n"


async def test_a_replica_that_is_to_end_serves_until_no_ingress_names_it(
    restored: None, tmp_path: Path
) -> None:
    replica, place = Replica(limit=2), tmp_path / "haproxy.cfg"
    departure = Departure(place, is_joined=False)
    serve_directly(replica.api, departure)
    app = RequestIdMiddleware(replica._direct_ingress_asgi)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            lambda: app, factory=True, lifespan="off", log_level=None, log_config=None, port=port
        )
        server = uvicorn.Server(config)
        departure.delay(server)
        place.write_text(f"{OURS}    server SERVE_REPLICA__a 127.0.0.1:{port} check")
        task = asyncio.create_task(server.serve(sockets=[listening]))
        kept, running, later = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert b"connection: close" not in await ask(*kept)
        running[1].write(f"GET {API}/hold HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        release = await replica.api.held.get()

        server.should_exit = True
        await until(lambda: departure.has_begun)
        release.set()
        assert b"connection: close" in await running[0].read()  # and its connection has ended
        assert b"connection: close" in await ask(*kept)
        place.write_text("as Ray writes it")  # while the configuration is exchanged
        new = await asyncio.open_connection("127.0.0.1", port)
        assert b"connection: close" in await ask(*new)
        assert not task.done()
        place.write_text(f"{OURS}    server SERVE_REPLICA__b 127.0.0.1:1 check")
        assert b"connection: close" in await ask(*later)
        await asyncio.wait_for(task, 20)
        for _, writer in (kept, running, later, new):
            writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The head of a reply."""
    writer.write(f"GET {API} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head.startswith(b"HTTP/1.1 200 ")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return head


class Memory:
    """Answers at once what begins with the path `/api/v1/at-once`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.running: list[int] = []

    def __call__(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        if not data.startswith(b"GET /api/v1/at-once"):
            return None
        self.running.append(self._replica.get_num_ongoing_requests())
        return [(b"content-length", b"7")], b"at once"


@pytest.fixture
async def memory(restored: None, replica: Replica) -> Memory:
    memory = Memory(replica)
    serve_directly(replica.api, Departure(None, is_joined=False), at_once=memory)
    return memory


@asynccontextmanager
async def connected(client: httpx.AsyncClient) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    yield reader, writer
    writer.close()


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """The body of a reply with status 200."""
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


AT_ONCE = b"GET /api/v1/at-once HTTP/1.1\r\nhost: x\r\n\r\n"
OTHER = f"GET {API} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


async def test_what_is_at_hand_is_answered_between_other_requests(replica: Replica, memory: Memory) -> None:
    async with serving(replica) as client, connected(client) as (reader, writer):
        for _ in range(3):
            for data, body in ((AT_ONCE, b"at once"), (OTHER, b'"by": "us"'), (AT_ONCE, b"at once")):
                writer.write(data)
                assert body in await read_reply(reader)
        assert len(memory.running) == 6
        assert replica.get_num_ongoing_requests() == 0


async def test_requests_of_one_turn_count_until_its_end(replica: Replica, memory: Memory) -> None:
    async with serving(replica) as client:
        async with connected(client) as (reader, writer), connected(client) as (other, others):
            for _ in range(100):  # until both come in one turn
                writer.write(AT_ONCE)
                others.write(AT_ONCE)
                assert (await read_reply(reader), await read_reply(other)) == (b"at once", b"at once")
                if max(memory.running):
                    break
        assert set(memory.running) == {0, 1}
        assert replica.get_num_ongoing_requests() == 0


async def test_nothing_overtakes_a_request_that_is_being_read_or_answered(
    replica: Replica, memory: Memory
) -> None:
    async with serving(replica) as client, connected(client) as (reader, writer):
        writer.write(f"GET {API}/hold HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        release = await replica.api.held.get()
        writer.write(AT_ONCE)  # the API answers it, behind the other
        await asyncio.sleep(0.05)  # a turn of the loop, in which it comes
        release.set()
        assert b'"by": "us"' in await read_reply(reader)
        assert b'"by": "us"' in await read_reply(reader)
        for part in (
            f"POST {API}/read HTTP/1.1\r\nhost: x\r\n".encode(),
            b"content-length: %d\r\n\r\n" % len(AT_ONCE),
        ):
            writer.write(part)
            await asyncio.sleep(0.01)  # so that they come apart
        await until(lambda: replica.api.reading == 1)
        writer.write(AT_ONCE)  # a body
        assert b'"by": "us"' in await read_reply(reader)
        assert memory.running == []
        writer.write(AT_ONCE)
        assert await read_reply(reader) == b"at once"


async def test_a_replica_that_is_full_answers_nothing_at_once(replica: Replica, memory: Memory) -> None:
    async with (
        serving(replica) as client,
        connected(client) as (_, full),
        connected(client) as (_, fuller),
        connected(client) as (reader, writer),
    ):
        for each in (full, fuller):
            each.write(f"GET {API}/hold HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        held = [await replica.api.held.get() for _ in range(2)]
        writer.write(AT_ONCE)
        await asyncio.sleep(0.05)  # a turn of the loop, in which it comes
        for release in held:
            release.set()
        assert b'"by": "serve"' in await read_reply(reader)
        assert memory.running == []
        writer.write(AT_ONCE)
        assert await read_reply(reader) == b"at once"


async def test_a_replica_that_leaves_answers_nothing_at_once(
    restored: None, replica: Replica, memory: Memory
) -> None:
    departure = Departure(None, is_joined=False)
    serve_directly(replica.api, departure, at_once=memory)
    async with serving(replica) as client, connected(client) as (reader, writer):
        writer.write(AT_ONCE)
        assert await read_reply(reader) == b"at once"
        departure.has_begun = True
        writer.write(AT_ONCE)
        async with asyncio.timeout(20):
            reply = await reader.read()
        assert b"connection: close" in reply
        assert b'"by": "us"' in reply
