"""Calls over real connections: what arrives, who is let in, and what ends them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from broker.actors import link as links
from broker.actors.link import LinkLost, NamedLink, SlotLink
from broker.errors import BrokerError, NotFound
from broker.owners.commands import Command
from broker.rpc import connection as connections
from broker.rpc import listener as listeners
from broker.rpc import wire
from broker.rpc.calls import Calls, CannotTravel
from broker.rpc.connection import Connection, ConnectionEnded, LinkRefused, open_connection
from broker.rpc.listener import Listener
from broker.rpc.wire import Address, CallerWire, ListenerWire
from tests.owners.support import publish

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


class MethodCalls(Protocol):
    """What the tests call."""

    async def echo(self, value: Any) -> Any: ...

    async def command(self, commands: list[Command]) -> list[Command]: ...

    async def refuse(self, message: str) -> str | BrokerError: ...

    async def note(self, value: int) -> int: ...

    async def wait(self) -> str: ...

    async def fail(self) -> None: ...

    async def lie(self) -> int: ...

    async def carry_anything(self) -> Any: ...


CALLS: Calls[MethodCalls] = Calls(MethodCalls)


class Methods:
    """What can be called; `order` has the calls as they began."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.goes_on = asyncio.Event()

    async def echo(self, value: Any) -> Any:
        return value

    async def command(self, commands: list[Command]) -> list[Command]:
        return commands

    async def refuse(self, message: str) -> str | BrokerError:
        return NotFound(message)

    async def note(self, value: int) -> int:
        self.order.append(value)
        await asyncio.sleep(0)
        return value

    async def wait(self) -> str:
        await self.goes_on.wait()
        return "done"

    async def fail(self) -> None:
        raise RuntimeError("a fault of ours")

    async def lie(self) -> int:
        return "no number"  # type: ignore[return-value]  # which is the lie

    async def carry_anything(self) -> Any:
        return self

    async def secret(self) -> None:
        """Not among the calls."""


@pytest.fixture
async def methods() -> Methods:
    return Methods()


@pytest.fixture
async def listener(methods: Methods) -> AsyncIterator[Listener[MethodCalls]]:
    listener = Listener[MethodCalls](HOST, CALLS, methods)
    yield listener
    await listener.close()


@pytest.fixture
async def connection(listener: Listener[MethodCalls]) -> AsyncIterator[Connection]:
    connection = await open_connection(await listener.address(), CALLS)
    yield connection
    connection.end()


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(10):
        return await awaitable


async def test_values_arrive_as_they_were(connection: Connection) -> None:
    for value in (None, b"", 2**53, "ä\u2028", "x" * (5 << 20), b"x" * (wire._RECORD_BYTES * 2)):
        assert await within(connection.call("echo", value)) == value
    commands = [publish("p", 3, key="k")]
    assert await within(connection.call("command", commands)) == commands
    reply = await within(connection.call("refuse", "there is no such program"))
    assert (type(reply), reply.message) == (NotFound, "there is no such program")


@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_message_may_be_as_long_as_one_record_or_longer(connection: Connection, over: int) -> None:
    overhead = len(CALLS.pack_call(1, "echo", (b"x" * 70_000,))) - 70_000
    value = b"x" * (wire._RECORD_BYTES - overhead + over)
    assert len(CALLS.pack_call(1, "echo", (value,))) == wire._RECORD_BYTES + over
    assert await within(connection.call("echo", value)) == value


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


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("fail", ()),
        ("unknown", ()),
        ("__init__", ()),
        ("secret", ()),
        ("carry_anything", ()),
        ("note", ("no number",)),
        ("note", ()),
        ("note", (1, 2)),
    ],
)
async def test_call_that_fails_ends_only_itself(
    connection: Connection, method: str, arguments: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectionEnded):
        await within(connection.call(method, *arguments))
    [record] = caplog.records
    assert (record.message, record.__dict__["method"]) == ("call_failed", method)
    assert await within(connection.call("echo", 1)) == 1


async def test_answer_of_another_type_ends_only_its_call(connection: Connection) -> None:
    with pytest.raises(ConnectionEnded, match="not a reply of lie"):
        await within(connection.call("lie"))
    assert await within(connection.call("echo", 1)) == 1


async def test_what_cannot_travel_is_not_sent(connection: Connection) -> None:
    with pytest.raises(CannotTravel, match="cannot be sent over a link"):
        await connection.call("echo", object())
    assert not connection._calls
    assert await within(connection.call("echo", 1)) == 1


async def test_end_of_the_listener_ends_calls(
    connection: Connection, listener: Listener[MethodCalls]
) -> None:
    waiting = asyncio.create_task(connection.call("wait"))
    assert await within(connection.call("echo", 1)) == 1
    await listener.close()
    with pytest.raises(ConnectionEnded):
        await within(waiting)
    assert connection.is_over
    with pytest.raises(ConnectionEnded):
        await connection.call("echo", 1)


async def test_call_of_a_caller_that_left_runs_to_its_end(
    connection: Connection, methods: Methods, listener: Listener[MethodCalls]
) -> None:
    """Others may wait for what it has begun; the reply is nobody's."""
    waiting = asyncio.create_task(connection.call("wait"))
    assert await within(connection.call("echo", 1)) == 1
    connection.end()
    with pytest.raises(ConnectionEnded):
        await within(waiting)
    other = await open_connection(await listener.address(), CALLS)
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


async def test_giving_up_to_connect_is_no_fault_of_the_loop() -> None:
    """Whoever asks has a time limit, which may end while the listener has not proved itself."""
    greeted, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(wire.GREETING_BYTES)
        greeted.set()
        await ended(reader)
        writer.close()
        left.set()

    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    async with await asyncio.start_server(say_nothing, HOST, 0) as server:
        address = Address(HOST, server.sockets[0].getsockname()[1], bytes(32))
        connecting = asyncio.create_task(open_connection(address, CALLS))
        await within(greeted.wait())
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await within(left.wait())
    loop.set_exception_handler(before)
    assert not faults


class Speechless(ListenerWire):
    """A listener that hears everything and says nothing, as one whose node is gone."""

    def _take(self, message: bytes) -> None:
        """Hear it, and say nothing."""

    def _open(self) -> None:
        """Go on."""

    def _end(self) -> None:
        """There is nothing to let go of."""


async def test_silent_listener_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs, or its node is cut off: the connection stands, and nothing comes."""
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 0.05)
    async with serving(Speechless) as address:
        connection = await open_connection(address, CALLS)
        with pytest.raises(ConnectionEnded):
            await within(connection.call("echo", 1))


async def test_long_wait_of_a_listener_that_lives_is_not_given_up(
    connection: Connection, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 0.05)
    waiting = asyncio.create_task(connection.call("wait"))
    asked = 0
    send = connection.send

    def count(message: bytes) -> None:
        nonlocal asked
        asked += message == b""
        send(message)

    monkeypatch.setattr(connection, "send", count)
    await within(until(lambda: asked > 10))
    assert not waiting.done()
    methods.goes_on.set()
    assert await within(waiting) == "done"


class Slot:
    """What Ray says of a slot: its actors in the order in which they were made. None never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *actors: Address | None) -> None:
        self.actors = list(actors)
        self.looks = 0
        monkeypatch.setattr(links, "find_newest", self.find_newest)
        monkeypatch.setattr(links, "find_actor", self.find_actor)

    def find_newest(self, kind: str, index: int) -> str:
        assert (kind, index) == ("owner", 0)
        self.looks += 1
        return f"owner-0.{len(self.actors)}"

    def find_actor(self, name: str) -> Any:
        address = self.actors[int(name.partition(".")[2]) - 1]

        async def remote() -> Address:
            if address is None:
                await asyncio.Event().wait()
            assert address is not None
            return address

        return SimpleNamespace(address=SimpleNamespace(remote=remote))


async def test_silent_actor_is_left_as_soon_as_it_has_a_successor(
    listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when it has been silent for so long that the connection is given up."""
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 1e9)
    async with serving(Speechless) as gone:
        slot = Slot(monkeypatch, gone)
        link = SlotLink("owner", 0, CALLS)
        call = asyncio.create_task(link.call("echo", 1, timeout_s=1e9))
        await within(until(lambda: slot.looks > 3))
        assert not call.done(), "who is silent and has no successor may be busy"
        slot.actors.append(await listener.address())
        with pytest.raises(LinkLost):
            await within(call)
        assert await within(link.call("echo", 2, timeout_s=1e9)) == 2
        link.close()


async def test_actor_that_answers_is_not_left_for_a_successor(
    listener: Listener[MethodCalls], methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an exchange, in which the old one finishes what it has."""
    monkeypatch.setattr(connections, "_LOOK_S", 0.05)
    address = await listener.address()
    slot = Slot(monkeypatch, address)
    link = SlotLink("owner", 0, CALLS)
    waiting = asyncio.create_task(link.call("wait", timeout_s=1e9))
    assert await within(link.call("echo", 1, timeout_s=1e9)) == 1
    slot.actors.append(None)
    looks = 0
    connection = link._connection
    assert connection is not None
    watch = connection._watch

    def count() -> None:
        nonlocal looks
        looks += 1
        watch()

    monkeypatch.setattr(connection, "_watch", count)
    await within(until(lambda: looks > 5))
    methods.goes_on.set()
    assert await within(waiting) == "done"
    link.close()


async def test_actor_that_cannot_be_reached_is_left_as_soon_as_it_has_a_successor(
    listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_CONNECT_S", 1e9)
    slot = Slot(monkeypatch, None)
    link = SlotLink("owner", 0, CALLS)
    call = asyncio.create_task(link.call("echo", 1, timeout_s=1e9))
    await within(until(lambda: slot.looks > 1))
    slot.actors.append(await listener.address())
    with pytest.raises(LinkLost) as lost:
        await within(call)
    assert not lost.value.was_sent
    assert await within(link.call("echo", 2, timeout_s=1e9)) == 2
    link.close()


async def test_silent_actor_that_has_no_slot_is_left_as_soon_as_it_is_seen(
    listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes in its place: whoever asks has another way. It is asked for its address again later."""
    monkeypatch.setattr(connections, "_LOOK_S", 0.01)
    monkeypatch.setattr(connections, "_SILENCE_S", 1e9)
    async with serving(Speechless) as silent:
        addresses = [silent, await listener.address()]

        async def remote() -> Address:
            return addresses.pop(0)

        actor = SimpleNamespace(address=SimpleNamespace(remote=remote))
        monkeypatch.setattr(links, "find_actor", {"gateway-1": actor}.get)
        link = NamedLink("gateway-1", CALLS)
        with pytest.raises(LinkLost):
            await within(link.call("echo", 1, timeout_s=1e9))
        assert await within(link.call("echo", 2, timeout_s=1e9)) == 2
        link.close()
    with pytest.raises(LinkLost) as lost:
        await within(NamedLink("gateway-2", CALLS).call("echo", 3, timeout_s=1e9))
    assert not lost.value.was_sent


async def test_actor_that_has_no_slot_and_tells_no_address_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_CONNECT_S", 1e9)
    monkeypatch.setattr(links, "_CONNECT_NAMED_S", 0.01)
    actor = SimpleNamespace(address=SimpleNamespace(remote=asyncio.Event().wait))
    monkeypatch.setattr(links, "find_actor", lambda _name: actor)
    with pytest.raises(LinkLost) as lost:
        await within(NamedLink("gateway-1", CALLS).call("echo", 1, timeout_s=1e9))
    assert not lost.value.was_sent


async def test_who_has_another_secret_is_refused_by_both_ends(listener: Listener[MethodCalls]) -> None:
    host, port, _ = await listener.address()
    with pytest.raises(ConnectionEnded, match="not a record of the other side"):
        await within(open_connection(Address(host, port, bytes(32)), CALLS))

    class Careless(Silent, CallerWire):
        """Goes on though the listener does not prove itself."""

        def _prove(self) -> bool:
            self._out, self._in = self._agree(self._greeting, bytes(8) + bytes(32), self._greeting)
            self.send(b"")
            self.send(CALLS.pack_call(1, "echo", (1,)))
            self._advance = self._nothing
            return False

        def _nothing(self) -> bool:
            return False

    loop = asyncio.get_running_loop()
    _, stranger = await loop.create_connection(lambda: Careless(bytes(32)), host, port)
    await within(stranger.ended.wait())
    await within(until(lambda: not listener._peers))
    assert not listener._calls


class Silent:
    """What an end needs that keeps nothing but when it is over."""

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)  # type: ignore[call-arg]  # of the end that it is mixed into
        self.ended = asyncio.Event()

    def _take(self, message: bytes) -> None:
        """Hear it."""

    def _open(self) -> None:
        """Go on."""

    def _end(self) -> None:
        self.ended.set()


async def test_first_record_of_the_listener_sent_back_proves_nothing(listener: Listener[MethodCalls]) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(wire._GREETING.pack(wire.MAGIC, wire.VERSION, secrets.token_bytes(32)))
    reply = await within(reader.readexactly(wire.GREETING_BYTES + wire.PROOF_BYTES))
    writer.write(reply[wire.GREETING_BYTES :])
    assert await within(ended(reader))
    writer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        secrets.token_bytes(64),
        wire.MAGIC + b"\x00\x01" + bytes(32),  # a point of small order
        wire.MAGIC + b"\x00\x01" + secrets.token_bytes(32) + bytes(20),  # who does not wait for the reply
        wire.MAGIC + b"\x00\x01" + secrets.token_bytes(32) + bytes(1 << 20),
    ],
    ids=["another protocol", "anything", "no key", "hasty", "flood"],
)
async def test_stranger_is_cut_off(listener: Listener[MethodCalls], said: bytes) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(said)
    assert await within(ended(reader))
    writer.close()
    await within(until(lambda: not listener._peers))


async def test_stranger_that_has_greeted_may_send_a_proof_and_nothing_longer(
    listener: Listener[MethodCalls],
) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(wire._GREETING.pack(wire.MAGIC, wire.VERSION, secrets.token_bytes(32)))
    await within(reader.readexactly(wire.GREETING_BYTES + wire.PROOF_BYTES))
    writer.write(wire._HEAD.pack(1))  # one byte announced is one too many, and none of it is waited for
    assert await within(ended(reader))
    writer.close()


@pytest.mark.parametrize("how", ["added", "changed", "repeated", "reordered"])
async def test_who_stands_between_can_cut_a_link_and_nothing_else(
    listener: Listener[MethodCalls], methods: Methods, how: str
) -> None:
    """Whoever passes the bytes on, as a router between two nodes does, and knows no secret."""
    host, port, secret = await listener.address()
    is_open = asyncio.Event()

    async def stand_between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(host, port)

        async def pass_back() -> None:
            while data := await inner.read(65536):
                writer.write(data)

        back = asyncio.create_task(pass_back())
        outer.write(await reader.readexactly(wire.GREETING_BYTES))
        outer.write(await reader.readexactly(wire.PROOF_BYTES))
        is_open.set()
        first, second = [await read_record(reader) for _ in range(2)]
        record = CALLS.pack_call(3, "note", (666,))
        said = {
            "added": [first, len(record).to_bytes(4, "big") + record + bytes(16), second],
            "changed": [first, second[:-20] + bytes(20)],
            "repeated": [first, first, second],
            "reordered": [second, first],
        }[how]
        outer.writelines(said)
        await asyncio.wait([back])
        for each in (writer, outer):
            each.close()

    server = await asyncio.start_server(stand_between, HOST, 0)
    connection = await open_connection(Address(HOST, server.sockets[0].getsockname()[1], secret), CALLS)
    await within(is_open.wait())
    calls = [asyncio.create_task(connection.call("note", number)) for number in (1, 2)]
    outcomes = await within(asyncio.gather(*calls, return_exceptions=True))
    await within(until(lambda: not listener._peers))
    assert isinstance(outcomes[1], ConnectionEnded)
    assert methods.order == ([] if how == "reordered" else [1])
    server.close()


async def read_record(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big") + 16)


@pytest.mark.parametrize("listener_version", [wire.VERSION + 1, wire.VERSION - 1])
async def test_other_version_is_refused_by_name(
    listener: Listener[MethodCalls],
    listener_version: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Either side may be the newer: the caller learns both numbers, the listener logs the other one once."""
    address = await listener.address()

    class Other(listeners._Peer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            public = self._private.public_key().public_bytes_raw()
            self._greeting = wire._GREETING.pack(wire.MAGIC, listener_version, public)

        def _read_greeting(self) -> bytes | None:
            if len(self._received) < wire.GREETING_BYTES:
                return None
            raise wire.OtherVersion(wire.VERSION)

    monkeypatch.setattr(listeners, "_Peer", Other)
    text = (
        f"the other side speaks version {listener_version} of the link, this process version {wire.VERSION}"
    )
    for _ in range(3):
        with pytest.raises(LinkRefused, match=text):
            await within(open_connection(address, CALLS))
    await within(until(lambda: not listener._peers))
    assert caplog.text.count("link_version_refused") == 1
    # The process is exchanged for one of this version at the same place.
    monkeypatch.undo()
    connection = await within(open_connection(address, CALLS))
    assert await within(connection.call("echo", 1)) == 1
    connection.end()


async def test_link_goes_on_when_the_process_of_another_version_is_exchanged(
    listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in an upgrade, which exchanges processes one after another; Ray says who has the slot now."""
    other = Listener[MethodCalls](HOST, CALLS, Methods())
    addresses = [await other.address()] * 3 + [await listener.address()] * 9

    class Address:
        async def remote(self) -> wire.Address:
            return addresses.pop(0)

    class Actor:
        address = Address()

    greet = listeners._Peer._greet

    def greet_as_another_version(peer: listeners._Peer) -> bool:
        if peer._listener is not other:
            return greet(peer)
        peer.transport.write(wire._GREETING.pack(wire.MAGIC, wire.VERSION + 1, bytes(32)))
        raise wire.OtherVersion(wire.VERSION)

    monkeypatch.setattr(listeners._Peer, "_greet", greet_as_another_version)
    monkeypatch.setattr(links, "find_newest", lambda _kind, _index: "owner-0.1")
    monkeypatch.setattr(links, "find_actor", lambda _name: Actor)
    link = SlotLink("owner", 0, CALLS)
    refused = 0
    while addresses:
        try:
            assert await within(link.call("echo", 7, timeout_s=5.0)) == 7
            break
        except LinkLost:
            refused += 1
    link.close()
    await other.close()
    assert refused == 3
    assert [record.message for record in caplog.records].count("link_refused") == 1


async def test_listener_tells_callers_of_other_versions_its_own(
    listener: Listener[MethodCalls],
) -> None:
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(wire._GREETING.pack(wire.MAGIC, 7, secrets.token_bytes(32)))
    reply = await within(reader.read())
    assert wire._GREETING.unpack(reply)[:2] == (wire.MAGIC, wire.VERSION)  # and no proof after it
    writer.close()


async def test_who_says_nothing_is_not_kept(
    listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_GREETING_S", 0.05)
    host, port, _ = await listener.address()
    reader, writer = await asyncio.open_connection(host, port)
    assert await within(reader.read()) == b""
    writer.close()
    await within(until(lambda: not listener._peers))


async def test_many_who_say_nothing_do_not_keep_a_caller_out(
    listener: Listener[MethodCalls], connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_MAX_STRANGERS", 8)
    host, port, _ = address = await listener.address()
    silent = [await asyncio.open_connection(host, port) for _ in range(20)]
    caller = await within(open_connection(address, CALLS))
    assert await within(caller.call("echo", 1)) == 1
    assert await within(connection.call("echo", 2)) == 2  # who is known makes no room
    # Those who came first were sent away, one of them by the caller, who then was no stranger any more.
    for reader, _ in silent[:13]:
        assert await within(reader.read()) == b""
    assert len(listener._strangers) == 7
    caller.end()
    for _, writer in silent:
        writer.close()


async def test_messages_have_a_greatest_length(
    connection: Connection, listener: Listener[MethodCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MESSAGE_BYTES", 2_000)
    assert len(await within(connection.call("echo", "x" * 1_000))) == 1_000
    with pytest.raises(CannotTravel, match="a message of"):
        await within(connection.call("echo", "x" * 2_000))
    assert not connection._calls
    assert await within(connection.call("echo", 1)) == 1


async def test_message_in_records_has_a_greatest_length_too(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_RECORD_BYTES", 100)
    assert len(await within(connection.call("echo", "x" * 1_000))) == 1_000
    send, limit = connection.send, wire._MESSAGE_BYTES

    def send_though_too_long(message: bytes) -> None:
        monkeypatch.setattr(wire, "_MESSAGE_BYTES", limit)
        connection._record_limit = 100
        send(message)
        monkeypatch.setattr(wire, "_MESSAGE_BYTES", 500)

    monkeypatch.setattr(connection, "send", send_though_too_long)
    with pytest.raises(ConnectionEnded):
        await within(connection.call("echo", "x" * 1_000))


async def test_keys_are_replaced_after_many_records(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_KEY_RECORDS", 7)
    first = connection._out._key
    for number in range(50):
        assert await within(connection.call("echo", number)) == number
    assert connection._out._key != first
    assert connection._out._count <= 7


async def test_address_does_not_tell_its_secret(listener: Listener[MethodCalls]) -> None:
    address = await listener.address()
    assert repr(address.secret) not in repr(address)
    assert address.secret.hex() not in f"{address}"


@asynccontextmanager
async def serving(make: Callable[[bytes], asyncio.Protocol]) -> AsyncIterator[Address]:
    """A server of one protocol, made with the secret of the address."""
    secret = secrets.token_bytes(wire.SECRET_BYTES)
    server = await asyncio.get_running_loop().create_server(lambda: make(secret), HOST, 0)
    try:
        yield Address(HOST, server.sockets[0].getsockname()[1], secret)
    finally:
        server.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side ends the connection, however it does, without a reply to what was sent."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.005)
