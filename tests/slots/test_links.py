"""Calls over real connections: what arrives, who is let in, and what ends them."""

import asyncio
import pickle
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.errors import NotFound
from broker.slots import connection as connections
from broker.slots import listener as listeners
from broker.slots import wire
from broker.slots.connection import Connection, ConnectionEnded, open_connection
from broker.slots.listener import Listener
from broker.slots.wire import Address, ListenerWire
from tests.owners.support import publish

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


class Methods:
    """What can be called; `order` has the calls as they began."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.goes_on = asyncio.Event()

    async def echo(self, value: object) -> object:
        return value

    async def note(self, value: object) -> object:
        self.order.append(value)
        await asyncio.sleep(0)
        return value

    async def wait(self) -> str:
        await self.goes_on.wait()
        return "done"

    async def fail(self) -> None:
        raise RuntimeError("a fault of ours")


@pytest.fixture
async def methods() -> Methods:
    return Methods()


@pytest.fixture
async def listener(methods: Methods) -> AsyncIterator[Listener]:
    called = (methods.echo, methods.note, methods.wait, methods.fail)
    listener = Listener(HOST, {method.__name__: method for method in called})
    yield listener
    await listener.close()


@pytest.fixture
async def connection(listener: Listener) -> AsyncIterator[Connection]:
    connection = await open_connection(await listener.address())
    yield connection
    connection.end()


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(10):
        return await awaitable


async def test_values_arrive_as_they_were(connection: Connection) -> None:
    command = publish("p", 3, key="k")
    error = NotFound("no such program")
    for value in (None, b"", command, [command, 2**70], "x" * (5 << 20)):
        assert await within(connection.call("echo", value)) == value
    answer = await within(connection.call("echo", error))
    assert (type(answer), answer.message) == (NotFound, error.message)


async def test_calls_begin_in_order_and_do_not_wait_for_each_other(
    connection: Connection, methods: Methods
) -> None:
    waiting = asyncio.create_task(connection.call("wait"))
    calls = [asyncio.create_task(connection.call("note", number)) for number in range(500)]
    assert await within(asyncio.gather(*calls)) == list(range(500))
    assert methods.order == list(range(500))
    assert not waiting.done()
    methods.goes_on.set()
    assert await within(waiting) == "done"


@pytest.mark.parametrize("method", ["fail", "unknown", "__init__"])
async def test_call_that_fails_ends_only_itself(
    connection: Connection, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectionEnded):
        await within(connection.call(method))
    [record] = caplog.records
    assert (record.message, record.__dict__["method"]) == ("call_failed", method)
    assert await within(connection.call("echo", 1)) == 1


async def test_end_of_the_listener_ends_calls(connection: Connection, listener: Listener) -> None:
    waiting = asyncio.create_task(connection.call("wait"))
    assert await within(connection.call("echo", 1)) == 1
    await listener.close()
    with pytest.raises(ConnectionEnded):
        await within(waiting)
    assert connection.is_over
    with pytest.raises(ConnectionEnded):
        await connection.call("echo", 1)


async def test_call_of_a_caller_that_left_runs_to_its_end(
    connection: Connection, methods: Methods, listener: Listener
) -> None:
    """Others may wait for what it has begun; the answer is nobody's."""
    waiting = asyncio.create_task(connection.call("wait"))
    assert await within(connection.call("echo", 1)) == 1
    connection.end()
    with pytest.raises(ConnectionEnded):
        await within(waiting)
    other = await open_connection(await listener.address())
    methods.goes_on.set()
    assert await within(other.call("wait")) == "done"
    await within(until(lambda: not listener._calls))
    other.end()


async def test_cancelled_call_leaves_the_connection_as_it_was(
    connection: Connection, methods: Methods
) -> None:
    waiting = asyncio.create_task(connection.call("wait"))
    assert await within(connection.call("echo", 1)) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    methods.goes_on.set()
    assert await within(connection.call("echo", 2)) == 2


async def test_silent_listener_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs, or its node is cut off: the connection stands, and nothing comes."""

    class Silent(ListenerWire):
        def _take(self, value: Any) -> None:
            """Hear it, and say nothing."""

        def _open(self) -> None:
            """Go on."""

        def _end(self) -> None:
            """There is nothing to let go of."""

    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 0.05)
    async with serving(Silent) as address:
        connection = await open_connection(address)
        with pytest.raises(ConnectionEnded):
            await within(connection.call("echo", 1))


async def test_long_wait_of_a_listener_that_lives_is_not_given_up(
    connection: Connection, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 0.05)
    waiting = asyncio.create_task(connection.call("wait"))
    asked = 0

    class Counting:
        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            nonlocal asked
            asked += data == wire.EMPTY_FRAME
            self._transport.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    connection.transport = Counting(connection.transport)  # type: ignore[assignment]
    await within(until(lambda: asked > 3 * connections._SILENCE_S))
    assert not waiting.done()
    methods.goes_on.set()
    assert await within(waiting) == "done"


async def test_listener_lets_only_those_in_who_know_its_secret(listener: Listener) -> None:
    host, port, _ = await listener.address()
    stranger = await asyncio.open_connection(host, port)
    stranger[1].write(secrets.token_bytes(wire.NONCE_BYTES) + bytes(32) + frame_that_writes(Path("/")))
    answer = await within(stranger[0].read())
    assert len(answer) == wire.NONCE_BYTES + 32  # its own proof, then the end
    stranger[1].close()
    # Who has another secret does not take it for the listener either.
    with pytest.raises(ConnectionEnded):
        await within(open_connection(Address(host, port, bytes(32))))


async def test_nothing_of_a_stranger_is_unpickled(listener: Listener, tmp_path: Path) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(frame_that_writes(tmp_path / "listener") * 10)
    await within(reader.read())
    writer.close()

    class Impostor(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(frame_that_writes(tmp_path / "caller") * 10)

    async with serving(lambda _secret: Impostor()) as address:
        with pytest.raises(ConnectionEnded):
            await within(open_connection(address))
    assert not (tmp_path / "listener").exists()
    assert not (tmp_path / "caller").exists()


async def test_own_proof_sent_back_proves_nothing(listener: Listener) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(secrets.token_bytes(wire.NONCE_BYTES))
    answer = await within(reader.readexactly(wire.NONCE_BYTES + 32))
    writer.write(answer[wire.NONCE_BYTES :])
    assert await within(reader.read()) == b""
    writer.close()


async def test_who_says_nothing_is_not_kept(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_GREETING_S", 0.05)
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    assert await within(reader.read()) == b""
    writer.close()
    await within(until(lambda: not listener._peers))


async def test_many_who_say_nothing_do_not_keep_a_caller_out(
    listener: Listener, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_MAX_STRANGERS", 8)
    host, port, _ = address = await listener.address()
    silent = [await asyncio.open_connection(host, port) for _ in range(20)]
    caller = await within(open_connection(address))
    assert await within(caller.call("echo", 1)) == 1
    assert await within(connection.call("echo", 2)) == 2  # who is known makes no room
    # Those who came first were sent away, one of them by the caller, who then was no stranger any more.
    for reader, _ in silent[:13]:
        assert await within(reader.read()) == b""
    assert len(listener._strangers) == 7
    caller.end()
    for _, writer in silent:
        writer.close()


@pytest.mark.parametrize(("limit", "is_taken"), [(2_000, True), (500, False)])
async def test_frames_have_a_greatest_length(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, limit: int, *, is_taken: bool
) -> None:
    monkeypatch.setattr(wire, "_MAX_FRAME_BYTES", limit)
    call = connection.call("echo", "x" * 1_000)
    if is_taken:
        assert len(await within(call)) == 1_000
    else:
        with pytest.raises(ConnectionEnded):
            await within(call)


async def test_address_does_not_tell_its_secret(listener: Listener) -> None:
    address = await listener.address()
    assert repr(address.secret) not in repr(address)
    assert address.secret.hex() not in f"{address}"


def frame_that_writes(path: Path) -> bytes:
    """A frame that makes a file when it is unpickled."""

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (path,)

    return wire.pack((1, "echo", (Trap(),)))


def test_trap_works(tmp_path: Path) -> None:
    pickle.loads(frame_that_writes(tmp_path / "made")[4:])
    assert (tmp_path / "made").exists()


@asynccontextmanager
async def serving(make: Callable[[bytes], asyncio.Protocol]) -> AsyncIterator[Address]:
    """A server of one protocol, made with the secret of the address."""
    secret = secrets.token_bytes(wire.SECRET_BYTES)
    server = await asyncio.get_running_loop().create_server(lambda: make(secret), HOST, 0)
    try:
        yield Address(HOST, server.sockets[0].getsockname()[1], secret)
    finally:
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.005)
