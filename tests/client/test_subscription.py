"""Subscriptions against a scripted gateway that cuts, repeats, skips, moves and refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from broker.client import (
    AsyncClient,
    Backoff,
    Client,
    ConnectionFailed,
    ConnectionLost,
    Cursor,
    Event,
    EventDeleted,
    HistoryLost,
    InsufficientScope,
    NotFound,
    ProgramDeleted,
    RetryPolicy,
    RpcError,
    Unauthenticated,
)
from broker.client.socket import SocketConfig
from broker.client.subscription import SubscriptionConfig
from tests.client.peer import event

pytestmark = pytest.mark.anyio

RETRY = RetryPolicy(deadline_s=0.2, timeout_s=2.0, backoff=Backoff(0.001, 0.01))
RETURN = SubscriptionConfig(backoff=Backoff(0.001, 0.01), first_deadline_s=0.2)


class Line:
    """One connection to the scripted gateway."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection

    async def asked(self) -> dict[str, Any]:
        message: dict[str, Any] = orjson.loads(await self.connection.recv())
        return message

    async def send(self, message: Any) -> None:
        await self.connection.send(orjson.dumps({"jsonrpc": "2.0", **message}), text=True)

    async def push(self, *seqs: int, method: str = "event") -> None:
        for seq in seqs:
            await self.send({"method": method, "params": event(seq)})

    async def accept(
        self, seq: int, *events: int, recovered: bool = True, epoch: str = "e1"
    ) -> dict[str, Any]:
        """Answer `subscribe`; returns its params."""
        call = await self.asked()
        assert call["method"] == "subscribe"
        items = [event(number) for number in events]
        result = {"programId": "final", "epoch": epoch, "seq": seq, "recovered": recovered, "events": items}
        await self.send({"id": call["id"], "result": result})
        params: dict[str, Any] = call["params"]
        return params

    async def refuse(self, code: int, name: str) -> None:
        call = await self.asked()
        data = {"error": name, "error_description": "why", "status": code}
        await self.send({"id": call["id"], "error": {"code": code, "message": name, "data": data}})

    async def cut(self) -> None:
        """Break off without a close frame."""
        self.connection.transport.abort()


Step = Callable[[Line], Awaitable[None]]


async def _at_once() -> None:
    """Let a connection in."""


class Gateway:
    """Runs one step a connection; answers `GET /connect` and `POST /token` on the same port."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = list(steps)
        self.tokens: list[str | None] = []
        self.deflate: list[bool] = []
        self.refusal: tuple[int, str] | None = None
        self.admit: Callable[[], Awaitable[None]] = _at_once
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://demo.localhost:{self.port}"

    async def process(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.endswith("/connect"):
            url = f"ws://demo.localhost:{self.port}/api/v1/ws"
            return _reply(200, {"url": url, "servers": [{"url": url, "connections": 0}], "retryAfterMs": 0})
        self.tokens.append(request.headers.get("Authorization"))
        if self.refusal is not None:
            status, name = self.refusal
            return _reply(status, {"error": name, "status": status})
        await self.admit()
        return None

    async def serve(self, connection: ServerConnection) -> None:
        self.deflate.append(bool(connection.protocol.extensions))
        step = self.steps.pop(0)
        await step(Line(connection))


def _reply(status: int, body: Any) -> Response:
    content = orjson.dumps(body)
    headers = Headers({"Content-Length": str(len(content)), "Connection": "close"})
    return Response(status, "X", headers, content)


@asynccontextmanager
async def gateway(*steps: Step, port: int = 0) -> AsyncIterator[Gateway]:
    scripted = Gateway(steps)
    async with serve(
        scripted.serve, "127.0.0.1", port, process_request=scripted.process, close_timeout=1
    ) as server:
        scripted.port = next(iter(server.sockets)).getsockname()[1]
        yield scripted
        assert not scripted.steps, "the client connected less often than scripted"


def _client(peer: Gateway, **given: Any) -> AsyncClient:
    options: dict[str, Any] = {"retry": RETRY, "subscription": RETURN, **given}
    return AsyncClient(peer.url, **options)


async def _idle(line: Line) -> None:
    await line.connection.wait_closed()


async def test_pushes_are_yielded_in_order_and_compression_is_on() -> None:
    async def show(line: Line) -> None:
        assert await line.accept(4) == {"programId": "final"}
        await line.push(5, 6)
        await _idle(line)

    async with gateway(show) as peer, _client(peer, token="t") as client:
        subscription = client.subscribe("final")
        seqs = []
        async for item in subscription:
            seqs.append(item.seq)
            if len(seqs) == 2:
                break
        assert seqs == [5, 6]
        assert subscription.cursor == Cursor("e1", 6)
        assert peer.tokens == ["Bearer t"]
        assert peer.deflate == [True]


async def _seqs(client: AsyncClient, count: int, **options: Any) -> list[int]:
    seqs: list[int] = []
    async for item in client.subscribe("final", **options):
        seqs.append(item.seq)
        if len(seqs) == count:
            break
    return seqs


async def test_cut_connection_is_recovered_from_the_cursor() -> None:
    async def first(line: Line) -> None:
        await line.accept(0)
        await line.push(1, 2)
        await asyncio.sleep(0.05)
        await line.cut()

    async def second(line: Line) -> None:
        params = await line.accept(4, 3, 4)
        assert params["since"] == {"epoch": "e1", "seq": 2, "id": "0190c000-0000-7000-8000-000000000002"}
        await line.push(5)
        await _idle(line)

    async with gateway(first, second) as peer, _client(peer) as client:
        assert await _seqs(client, 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("code", [1001, 1011, 1012, 4008])
async def test_close_of_the_gateway_is_recovered(code: int) -> None:
    async def first(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await line.connection.close(code)

    async def second(line: Line) -> None:
        await line.accept(1)
        await line.push(2)
        await _idle(line)

    async with gateway(first, second) as peer, _client(peer) as client:
        assert await _seqs(client, 2) == [1, 2]


async def test_repeats_are_dropped_and_a_hole_is_recovered() -> None:
    async def first(line: Line) -> None:
        await line.accept(0)
        await line.push(1, 1, 2, 1, 4)
        await _idle(line)

    async def second(line: Line) -> None:
        params = await line.accept(4, 3, 4)
        assert params["since"]["seq"] == 2
        await _idle(line)

    async with gateway(first, second) as peer, _client(peer) as client:
        assert await _seqs(client, 4) == [1, 2, 3, 4]


async def test_told_reconnect_is_obeyed_after_its_time() -> None:
    times: list[float] = []

    async def first(line: Line) -> None:
        await line.accept(0)
        times.append(asyncio.get_running_loop().time())
        await line.send({"method": "reconnect", "params": {"afterMs": 150}})
        await line.push(1)
        await _idle(line)

    async def second(line: Line) -> None:
        times.append(asyncio.get_running_loop().time())
        assert (await line.accept(1))["since"]["seq"] == 1
        await line.push(2)
        await _idle(line)

    async with gateway(first, second) as peer, _client(peer) as client:
        assert await _seqs(client, 2) == [1, 2]
    assert 0.14 <= times[1] - times[0] < 2


async def test_told_reconnect_waits_although_the_gateway_closes_at_once() -> None:
    times: list[float] = []

    async def first(line: Line) -> None:
        await line.accept(0)
        times.append(asyncio.get_running_loop().time())
        await line.send({"method": "reconnect", "params": {"afterMs": 150}})
        await line.connection.close(1012)

    async def second(line: Line) -> None:
        times.append(asyncio.get_running_loop().time())
        await line.accept(0)
        await line.push(1)
        await _idle(line)

    async with gateway(first, second) as peer, _client(peer) as client:
        assert await _seqs(client, 1) == [1]
    assert times[1] - times[0] >= 0.14


async def test_a_gateway_of_a_later_version_is_followed_as_far_as_it_is_understood() -> None:
    async def first(line: Line) -> None:
        call = await line.asked()
        await line.send({"method": "weather", "params": {"programId": "final", "wind": 3}})
        place = {"programId": "final", "epoch": "e1", "seq": 0, "recovered": True, "mood": "good"}
        await line.send({"id": call["id"], "result": place, "took": 3})
        await line.send({"method": "weather", "params": [3]})
        await line.send({"method": "event", "params": {**event(1), "colour": "red"}})
        await line.send({"method": "eventPainted", "params": {"programId": "final", "colour": "red"}})
        await line.push(2)
        await _idle(line)

    async with gateway(first) as peer, _client(peer) as client:
        assert await _seqs(client, 2) == [1, 2]


async def test_lost_history_is_raised_with_the_new_position() -> None:
    async def first(line: Line) -> None:
        await line.accept(9, recovered=False, epoch="e2")
        await _idle(line)

    async with gateway(first) as peer, _client(peer) as client:
        with pytest.raises(HistoryLost) as lost:
            await _seqs(client, 1, since=Cursor("e1", 3))
    assert (lost.value.epoch, lost.value.seq) == ("e2", 9)


async def test_deleted_program_is_raised() -> None:
    async def first(line: Line) -> None:
        await line.accept(0)
        await line.send({"method": "programDeleted", "params": {"programId": "final"}})
        await _idle(line)

    async with gateway(first) as peer, _client(peer) as client:
        with pytest.raises(ProgramDeleted):
            await _seqs(client, 1)


@pytest.mark.parametrize(
    ("code", "name", "kind"), [(404, "not_found", NotFound), (403, "insufficient_scope", InsufficientScope)]
)
async def test_refused_subscription_is_raised(code: int, name: str, kind: type[Exception]) -> None:
    async with gateway(lambda line: line.refuse(code, name)) as peer, _client(peer) as client:
        with pytest.raises(kind):
            await _seqs(client, 1)


async def test_passing_failure_of_subscribe_is_tried_again() -> None:
    async def second(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await _idle(line)

    async with gateway(lambda line: line.refuse(503, "unavailable"), second) as peer, _client(peer) as client:
        assert await _seqs(client, 1) == [1]


async def test_handshake_refusal_is_the_brokers_error() -> None:
    async with gateway() as peer, _client(peer, token="bad") as client:
        peer.refusal = (401, "invalid_token")
        with pytest.raises(Unauthenticated):
            await _seqs(client, 1)


async def test_nobody_there_is_raised_after_the_first_deadline() -> None:
    async with gateway() as peer:
        pass
    async with _client(peer) as client:
        with pytest.raises(ConnectionFailed):
            await _seqs(client, 1)


async def test_changes_are_yielded_when_wanted() -> None:
    async def show(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await line.send(
            {"method": "eventDeleted", "params": {"seq": 2, "epoch": "e1", "programId": "final", "id": "x"}}
        )
        await _idle(line)

    async with gateway(show, show) as peer, _client(peer) as client:
        kinds = []
        async for item in client.subscribe("final", changes=True):
            kinds.append(type(item))
            if len(kinds) == 2:
                break
        assert kinds == [Event, EventDeleted]
        assert await _seqs(client, 1) == [1]


async def test_expiring_token_is_renewed_on_the_open_connection() -> None:
    from tests.client import peer as http

    async def show(line: Line) -> None:
        await line.accept(0)
        await line.send({"method": "tokenExpiring", "params": {"expiresInMs": 60000}})
        call = await line.asked()
        assert (call["method"], call["params"]["username"]) == ("login", "u")
        await line.send(
            {"id": call["id"], "result": {"access_token": "t2", "token_type": "Bearer", "expires_in": 60}}
        )
        await line.push(1)
        await _idle(line)

    async with gateway(show) as scripted:
        url = f"ws://demo.localhost:{scripted.port}/api/v1/ws"
        found = {"url": url, "servers": [], "retryAfterMs": 0}

        def api(asked: http.Asked) -> http.Answer:
            token = {"access_token": "t1", "token_type": "Bearer", "expires_in": 60}
            return http.Answer(200, token if asked.target.endswith("/token") else found)

        async with http.serving(api) as peer, AsyncClient(peer.url, username="u", password="p") as client:
            assert await _seqs(client, 1) == [1]
            assert await client.gateways.get()
    assert scripted.tokens == ["Bearer t1"]
    assert peer.asked[-1].headers["authorization"] == "Bearer t2"


async def test_known_gateway_is_used_while_the_api_is_away() -> None:
    from tests.client import peer as http

    async def first(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await asyncio.sleep(0.05)
        await line.cut()

    async def second(line: Line) -> None:
        await line.accept(1)
        await line.push(2)
        await _idle(line)

    async with gateway(first, second) as scripted:
        url = f"ws://demo.localhost:{scripted.port}/api/v1/ws"
        answers = iter([http.Answer(200, {"url": url, "servers": []})])
        async with (
            http.serving(lambda asked: next(answers, http.error(500, "internal_error"))) as peer,
            AsyncClient(peer.url, retry=RETRY, subscription=RETURN) as client,
        ):
            assert await _seqs(client, 2) == [1, 2]


async def test_socket_calls_and_notifications_go_together() -> None:
    async def show(line: Line) -> None:
        first, second = await line.asked(), await line.asked()
        await line.send({"method": "program", "params": {"n": 1}})
        await line.send({"id": second["id"], "result": "second"})
        await line.send({"id": first["id"], "error": {"code": -32601, "message": "Method not found"}})
        await line.connection.close(1012, "bye")

    async with gateway(show) as peer, _client(peer) as client, client.socket() as socket:
        answers = await asyncio.gather(socket.call("a"), socket.call("b"), return_exceptions=True)
        assert isinstance(answers[0], RpcError)
        assert answers[1] == "second"
        assert (await socket.receive()).params == {"n": 1}
        with pytest.raises(ConnectionLost) as lost:
            await socket.receive()
        assert lost.value.code == 1012
        with pytest.raises(ConnectionLost):
            await socket.call("c")


async def test_call_without_an_answer_fails_in_time() -> None:
    async with (
        gateway(_idle) as peer,
        _client(peer, socket=SocketConfig(call_timeout_s=0.05)) as client,
        client.socket() as socket,
    ):
        with pytest.raises(ConnectionFailed, match="no reply to"):
            await socket.call("servertime")


async def test_answer_behind_a_full_buffer_is_reached() -> None:
    async def show(line: Line) -> None:
        await line.push(1, 2, 3, 4)
        call = await line.asked()
        await line.push(5, 6)
        await line.send({"id": call["id"], "result": "here"})
        await _idle(line)

    async with (
        gateway(show) as peer,
        _client(peer, socket=SocketConfig(buffer=2)) as client,
        client.socket() as socket,
    ):
        await asyncio.sleep(0.05)
        assert await socket.call("servertime") == "here"
        seqs = [(await socket.receive()).params["seq"] for _ in range(6)]
        assert seqs == [1, 2, 3, 4, 5, 6]


async def test_dead_peer_is_noticed() -> None:
    done = asyncio.Event()

    async def deaf(line: Line) -> None:
        line.connection.transport.pause_reading()
        await done.wait()
        line.connection.transport.abort()

    config = SocketConfig(ping_s=0.05, pong_s=0.05)
    async with (
        gateway(deaf) as peer,
        _client(peer, socket=config) as client,
        client.socket() as socket,
        asyncio.timeout(5),
    ):
        with pytest.raises(ConnectionLost):
            await socket.receive()
        done.set()


async def _promise(line: Line, every_ms: int) -> None:
    await line.send({"method": "alive", "params": {"everyMs": every_ms}})


async def test_a_silent_gateway_is_left_for_another_connection() -> None:
    async def silent(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await _promise(line, 50)
        await line.connection.wait_closed()

    async def other(line: Line) -> None:
        params = await line.accept(3, 2, 3)
        assert params["since"]["seq"] == 1
        await _idle(line)

    async with gateway(silent, other) as peer, _client(peer) as client, asyncio.timeout(20):
        assert await _seqs(client, 3) == [1, 2, 3]


async def test_a_gateway_that_was_only_late_is_kept() -> None:
    asked, release, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lines: list[Line] = []

    async def late(line: Line) -> None:
        await line.accept(0)
        lines.append(line)
        await line.push(1)
        await _promise(line, 50)
        await line.connection.wait_closed()

    async def spare(line: Line) -> None:
        await line.connection.wait_closed()
        closed.set()

    async def hold() -> None:
        asked.set()
        await release.wait()

    async with gateway(late, spare) as peer, _client(peer) as client, asyncio.timeout(20):
        subscription = client.subscribe("final")
        items = aiter(subscription)
        assert (await anext(items)).seq == 1
        peer.admit = hold
        await asked.wait()
        await _promise(lines[0], 3_600_000)
        await lines[0].push(2)
        assert (await anext(items)).seq == 2
        release.set()
        await closed.wait()
        await lines[0].push(3)
        assert (await anext(items)).seq == 3
        assert subscription.reconnects == 0
        await items.aclose()  # type: ignore[attr-defined]


async def test_who_does_not_read_does_not_take_the_gateway_for_silent() -> None:
    async def busy(line: Line) -> None:
        await _promise(line, 20)
        await line.push(1, 2, 3, 4)
        await line.connection.wait_closed()

    config = SocketConfig(buffer=2)
    async with gateway(busy) as peer, _client(peer, socket=config) as client, client.socket() as socket:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.silent(), 0.4)
        assert [(await socket.receive()).params["seq"] for _ in range(4)] == [1, 2, 3, 4]
        async with asyncio.timeout(20):
            await socket.silent()


async def test_channel_is_followed_until_the_connection_ends() -> None:
    async def show(line: Line) -> None:
        call = await line.asked()
        assert call["params"] == {"channel": "programs"}
        await line.send({"id": call["id"], "result": {"channel": "programs"}})
        await line.send({"method": "program", "params": {"channel": "programs", "change": "live"}})
        await line.connection.close(1012)

    async with gateway(show) as peer, _client(peer) as client:
        notifications = client.channels.follow("programs")
        assert (await anext(notifications)).params["change"] == "live"
        with pytest.raises(ConnectionLost):
            await anext(notifications)


async def test_synchronous_client_subscribes_too() -> None:
    async def show(line: Line) -> None:
        await line.accept(0)
        await line.push(1, 2)
        await _idle(line)

    def watch(url: str) -> list[int]:
        seqs = []
        with Client(url) as client:
            for item in client.subscribe("final"):
                seqs.append(item.seq)
                if len(seqs) == 2:
                    break
        return seqs

    async with gateway(show) as peer:
        assert await asyncio.to_thread(watch, peer.url) == [1, 2]


async def test_known_gateway_is_used_while_the_api_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.client import peer as http

    monkeypatch.setattr("broker.client.connector._ASK_AGAIN_S", 0.05)

    async def first(line: Line) -> None:
        await line.accept(0)
        await line.push(1)
        await line.connection.close(1012)

    async def second(line: Line) -> None:
        await line.accept(1)
        await line.push(2)
        await _idle(line)

    async with gateway(first, second) as scripted:
        url = f"ws://demo.localhost:{scripted.port}/api/v1/ws"
        answers = iter([http.Answer(200, {"url": url, "servers": []})])

        async def script(asked: http.Asked) -> http.Answer:
            answer = next(answers, None)
            if answer is None:
                await asyncio.sleep(60)
            return answer or http.Answer(cut=True)

        async with (
            http.serving(script) as peer,
            AsyncClient(peer.url, retry=RetryPolicy(), subscription=RETURN) as client,
        ):
            async with asyncio.timeout(10):
                assert await _seqs(client, 2) == [1, 2]
