"""The AsyncAPI document says what a running gateway does.

All that clients in these tests are sent is held against it (`tests.gateway.world`). Here it is seen that
nothing is left out: each notification comes, and each code with which a gateway closes.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from broker.operations.jsonrpc import MAX_BATCH, MAX_DEPTH, MAX_ID_BYTES, MAX_VALUES
from broker.resources.notifications import (
    CLOSES,
    NOTIFICATIONS,
    REFUSALS,
    STREAM_ENDS,
    STREAM_NOTIFICATIONS,
)
from broker.rest.asyncapi import CHANNEL, asyncapi_document
from broker.rest.asyncapi_stream import STREAM, STREAM_LIMITS
from broker.settings import Settings, environment_name
from tests.attack.wire import frame
from tests.gateway.described import (
    DOCUMENT,
    MESSAGES,
    REGISTRY,
    STREAM_MESSAGES,
    faults_of_answer,
    faults_of_call,
    faults_of_notification,
    faults_of_stream_event,
    faults_of_stream_refusal,
)
from tests.gateway.streams import Stream
from tests.gateway.test_channels import exchange_program_changes
from tests.gateway.test_hostile import HANDSHAKE, Attacker, text
from tests.gateway.world import Viewer, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ASKED = {"title": "Who wins?", "options": ["Home", "Away"]}


def test_every_method_has_its_messages() -> None:
    for operation in REGISTRY.operations:
        described = DOCUMENT["operations"][operation.name.replace("/", ".")]
        assert described["action"] == "receive"
        (message,) = described["messages"]
        call = MESSAGES[message["$ref"].rpartition("/")[2]]
        methods = call["payload"]["properties"]["method"]
        named = methods.get("enum", [methods.get("const")])
        assert named == [operation.name, *operation.former_names]
    assert {"subscribe", "unsubscribe"} <= DOCUMENT["operations"].keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_examples_are_as_their_messages_say(name: str) -> None:
    message = MESSAGES[name]
    (example,) = message["examples"]
    payload = example["payload"]
    if name.endswith(".result") or name.startswith("error."):
        method = name.removesuffix(".result") if "result" in payload else ""
        found = [o.name for o in REGISTRY.operations if o.name.replace("/", ".") == method] or [method]
        assert not method or faults_of_answer(found[0], payload) == []
    elif "id" in payload:
        assert faults_of_call(payload) == []
    else:
        assert faults_of_notification(payload) == []


def test_what_is_not_described_is_noticed() -> None:
    good = MESSAGES["event"]["examples"][0]["payload"]
    assert faults_of_notification(good) == []
    for change in ({"seq": "42"}, {"more": 1}, {"metadata": None}):
        assert faults_of_notification(good | {"params": good["params"] | change})
    assert faults_of_notification(good | {"method": "invented"})
    assert faults_of_answer("getProgram", {"jsonrpc": "2.0", "id": 1, "result": {"id": "p"}})
    teapot = {"code": 418, "message": "teapot", "data": {}}
    assert faults_of_answer("getProgram", {"jsonrpc": "2.0", "id": 1, "error": teapot})
    assert faults_of_call({"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": {}})
    both = {"programId": "p", "channel": "programs"}
    assert faults_of_call({"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": both})


@pytest.mark.parametrize("name", [told.method for told in STREAM_NOTIFICATIONS])
def test_examples_of_a_stream_are_as_described(name: str) -> None:
    (example,) = STREAM_MESSAGES[name]["examples"]
    lines, data = example["headers"], example["payload"]
    assert faults_of_stream_event(lines, data) == []
    assert faults_of_stream_event(lines | {"more": "1"}, data)
    assert faults_of_stream_event(lines, data | {"more": 1})


def test_what_a_stream_is_not_said_to_do_is_noticed() -> None:
    closed = {"code": 1012, "reason": "service_restart", "afterMs": 7}
    assert faults_of_stream_event({"event": "closed", "retry": 7}, closed) == []
    assert faults_of_stream_event({"event": "closed"}, closed)
    assert faults_of_stream_event({"event": "closed", "retry": 7, "id": "e:1"}, closed)
    assert faults_of_stream_event({"event": "closed", "retry": 7}, closed | {"reason": "private"})
    assert faults_of_stream_event({"event": "results"}, {})
    assert faults_of_stream_refusal({}, {"status": 429, "error": "slow_down"})
    assert faults_of_stream_refusal({"allow": "GET"}, {"status": 405, "error": "invented"})


@pytest.mark.parametrize("name", STREAM_LIMITS)
def test_each_limit_of_a_stream_is_told_as_it_is_set(name: str) -> None:
    value = getattr(Settings(), name)
    changed = asyncapi_document(REGISTRY, replace(Settings(), **{name: value + 7}))
    limits = {limit["name"]: limit["value"] for limit in changed["channels"][STREAM]["x-limits"]}
    assert limits[environment_name(name)] == value + 7


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "http://{account}localhost:8001/api/v1/programs/{programId}/events/stream"),
        ("wss://live.example/api/v1/ws", "https://live.example/api/v1/programs/{programId}/events/stream"),
        (
            "wss://{node}.live.example/tv/ws",
            "https://{node}.live.example/tv/programs/{programId}/events/stream",
        ),
    ],
)
def test_gateways_are_where_they_are_published(url: str, expected: str) -> None:
    document = asyncapi_document(REGISTRY, replace(Settings(), public_ws_url=url))
    servers, channels = document["servers"], document["channels"]
    (stream, socket) = [
        "{protocol}://{host}{pathname}".format_map(servers[server]) + channels[channel]["address"]
        for server, channel in (("stream", STREAM), ("gateway", CHANNEL))
    ]
    assert stream == expected
    assert socket == (url or "ws://{account}localhost:8001/api/v1/ws")


@pytest.mark.parametrize(
    "name",
    [entry.name for entry in fields(Settings) if re.match(r"ws_(?!port|unlimited|tls)|history_", entry.name)],
)
def test_each_limit_is_told_as_it_is_set(name: str) -> None:
    value = getattr(Settings(), name)
    changed = asyncapi_document(REGISTRY, replace(Settings(), **{name: value + 7}))
    limits = {limit["name"]: limit["value"] for limit in changed["channels"][CHANNEL]["x-limits"]}
    assert limits[environment_name(name)] == value + 7


async def test_it_is_served(world: World) -> None:
    product = world.product
    async with product.door(None) as door:
        answer = await door.get("/asyncapi.json")
        assert (await door.options("/asyncapi.json")).status_code == 204
        assert (await door.post("/asyncapi.json")).status_code == 405
    assert answer.json() == asyncapi_document(REGISTRY, product.services.settings)
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_each_notification_comes(migrated_dsn: str) -> None:
    async with open_world(
        migrated_dsn, ws_messages_per_s=0, ws_lag_bytes=64 << 10, ws_lag_s=1.0, ws_alive_s=0.1
    ) as world:
        assert await slow(world) == 4008
        viewers, streams = await tell_everything(world)
        wanted = Checklist(told.method for told in NOTIFICATIONS if told.method != "reconnect")
        of_streams = {told.method for told in STREAM_NOTIFICATIONS} - {"reconnect"}
        unseen = Checklist(of_streams)
        striking = [
            *(asyncio.create_task(strike_off(viewer, wanted)) for viewer in viewers),
            *(asyncio.create_task(strike_off_stream(stream, unseen)) for stream in streams),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await asyncio.gather(wanted.done.wait(), unseen.done.wait())
        assert (wanted.left, unseen.left) == (set(), set())
        for task in striking:
            task.cancel()
        last = await world.join()
        stream = await Stream.open(world.port, await world.program())
        await stream.next("subscribed")
        draining = asyncio.create_task(world.gateway.drain(0.1))
        assert (await last.next())["method"] == "reconnect"
        assert (await last.closed())[0] == 1012
        await stream.next("reconnect")
        assert (await stream.next("closed")).data["code"] == 1012
        await stream.close()
        await draining


class Checklist:
    """Names that have not been seen yet; `done` is set when none is left."""

    def __init__(self, names: Iterable[str]) -> None:
        self.left = set(names)
        self.done = asyncio.Event()

    def strike(self, name: str) -> None:
        self.left.discard(name)
        if not self.left:
            self.done.set()


async def strike_off(viewer: Viewer, wanted: Checklist) -> None:
    """Strike off what a viewer is told, until nothing more comes."""
    with suppress(TimeoutError):
        while True:
            wanted.strike((await viewer.next())["method"])


async def strike_off_stream(stream: Stream, unseen: Checklist) -> None:
    """The same of what a stream has."""
    async with stream:
        with suppress(TimeoutError):
            while (event := await stream.find_next()) is not None:
                unseen.strike(event.name)


async def tell_everything(world: World) -> tuple[list[Viewer], list[Stream]]:
    """Viewers, and streams, that are sent between them every notification but `reconnect`."""
    clock, lifetime_ms = world.product.clock, 3_600_000
    clock.forward_ms = 15_000 - lifetime_ms  # a token that was issued long ago and ends soon
    token = await world.new_user("short-lived", "user", "own")
    clock.forward_ms = 0
    expiring = await world.join(token=token)
    watcher, member, anybody = await world.join("user"), await world.join("admin"), await world.join()
    listener = await world.join("admin")
    await listener.call("subscribe", channel="programs")
    admin = await world.admin()
    await admin.call("createProject", id="own", name="Own")
    program, doomed, private = [await world.program(projectId="own") for _ in range(3)]
    poll = await admin.call("producer", programId=program, event="Vote#ask", metadata=ASKED)
    for params in (
        {"programId": program},
        {"programId": doomed},
        {"channel": "programs"},
        {"channel": "storage:own"},
        {"channel": f"responses:{program}"},
    ):
        assert (await watcher.call("subscribe", **params)).items() >= params.items()
    await member.call("subscribe", channel="project:own")
    await anybody.call("subscribe", programId=private)
    streams = [await Stream.open(world.port, each) for each in (program, doomed, private)]
    streams.append(await Stream.open(world.port, program, token=token, query={"alive": "true"}))
    event = await admin.call("producer", programId=program, event="Score#update")
    place = {"programId": program, "eventId": event["id"]}
    await admin.call("updateProgramEvent", **place, event="Score#reset")
    await admin.call("deleteProgramEvent", **place)
    answer = {"programId": program, "measureName": "whoWins", "contextId": poll["id"]}
    await admin.call("respond", **answer, measureValue=1)
    await admin.call("storeValue", projectId="own", id="line-up", metadata={"home": []})
    late = await world.join()
    recovered = await late.call("subscribe", programId=program, history=10)
    assert [item.get("method") for item in recovered["events"]] == [
        None,
        "eventDeleted",
        "eventDeleted",
        "eventDeleted",
    ]
    await admin.call("deleteAllProgramEvents", programId=program)
    await admin.call("importProgramEvents", programId=program, events=[{"event": "Score#update"}])
    await admin.call("admin/deleteProgram", programId=doomed)
    await world.set_access(private, "private", "own")
    while (await listener.next("program"))["change"] != "updated":
        pass  # all of them are told before they are lost
    await exchange_program_changes(world)
    return [watcher, member, anybody, expiring, listener, await world.join(query="?alive=true")], streams


def test_the_close_codes_are_those_that_the_gateway_counts() -> None:
    described = DOCUMENT["channels"][CHANNEL]["x-close-codes"]
    assert [(close["code"], close["name"]) for close in described] == [(c.code, c.figure) for c in CLOSES]


async def test_each_close_code_is_seen(migrated_dsn: str) -> None:
    settings = {
        "ws_messages_per_s": 20,
        "ws_messages_burst": 50,
        "ws_waiting_bytes": 1 << 20,
        "ws_ping_s": 1.0,
        "ws_pong_s": 1.0,
    }
    async with open_world(migrated_dsn, **settings) as world:
        closes = world.gateway.stats()["closes"]
        assert {(code, name) for code, name, _ in closes} == {
            *((str(close.code), close.figure) for close in (*CLOSES, *STREAM_ENDS)),
            ("client", "client"),
            ("lost", "lost"),
        }
        viewer = await world.join()
        stream = await Stream.open(world.port, await world.program())
        seen = {
            await ended(world, b"\x81\x01a"),  # a client's frame without a mask
            await ended(world, frame(2, b"{}")),
            await ended(world, frame(1, b"\xff")),
            await ended(world, text('{"jsonrpc":"2.0","id":1,"method":"servertime"}') * 1_000),
            await ended(world, frame(1, b"x" * ((1 << 20) + 1))),
            await ended(world, b""),  # no pong
            await crowded(world),
        }
        await world.gateway.stop()
        seen.add((await viewer.closed())[0] or 0)
        await stream.next("subscribed")
        assert (await stream.next("closed")).data["reason"] == "going_away"
        await stream.close()
    assert seen == {close.code for close in CLOSES} - {1012, 4008}


async def ended(world: World, sent: bytes) -> int:
    """The code with which the gateway closes a connection on which this is sent."""
    async with open_bare(world) as attacker:
        await attacker.send(sent)
        return await attacker.close_code()


async def crowded(world: World) -> int:
    """The code for one who begins a long message while others hold all that may wait."""
    begun = frame(1, b"x" * 500_000, final=False)
    async with open_bare(world) as one, open_bare(world) as other, open_bare(world) as another:
        for each in (one, other, another):
            await each.send(begun)
        return await ended(world, begun)


async def slow(world: World) -> int:
    """The code for one who reads nothing of what it follows."""
    program = await world.program()
    params = f'{{"programId":"{program}"}}'
    async with open_bare(world) as viewer:
        await viewer.send(text(f'{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{params}}}'))
        before = world.gateway.stats()["slow_consumers"]
        async with asyncio.timeout(20):
            while world.gateway.stats()["slow_consumers"] == before:
                await world.publish(program, 5, bytes_each=60_000)
                await asyncio.sleep(0.1)
        return await viewer.close_code()


@asynccontextmanager
async def open_bare(world: World) -> AsyncIterator[Attacker]:
    """A socket after its handshake that reads and answers nothing by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1 << 14)
    attacker = Attacker(reader, writer)
    try:
        await attacker.send(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        yield attacker
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


_START = b"GET /api/v1/ws HTTP/1.1\r\n"
REFUSED = [
    (400, HANDSHAKE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short")),
    (400, HANDSHAKE.replace(b"/ws HTTP", b"/ws?batch=maybe HTTP")),
    (400, HANDSHAKE.replace(b"/ws HTTP", b"/ws?alive=maybe HTTP")),
    (401, HANDSHAKE.replace(b"/ws HTTP", b"/ws?access_token=wrong HTTP")),
    (404, HANDSHAKE.replace(b"/ws HTTP", b"/elsewhere HTTP")),
    (404, HANDSHAKE.replace(b"demo.", b"unknown.")),
    (405, HANDSHAKE.replace(b"GET", b"PUT")),
    (426, _START + b"Host: demo.localhost\r\n\r\n"),
    (426, HANDSHAKE.replace(b"Version: 13", b"Version: 8")),
    (431, HANDSHAKE[:-2] + b"X: " + b"x" * 60_000 + b"\r\n\r\n"),
]


@pytest.mark.parametrize(("status", "request_"), REFUSED)
async def test_a_refused_handshake_is_described(world: World, status: int, request_: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    bare = Attacker(reader, writer)
    await bare.send(request_)
    head, _, body = (await bare.rest()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split()[1] == str(status).encode()
    described = [refusal for refusal in REFUSALS if refusal.status == status]
    told = orjson.loads(body)
    assert told["status"] == status
    (refusal,) = [refusal for refusal in described if refusal.error == told["error"]]
    assert [name for name in refusal.headers if f"\r\n{name}: ".encode() not in head] == []


_PATH = "/api/v1/programs/none/events/stream"
REFUSED_STREAMS = [
    (400, f"GET {_PATH}?other=1", ""),
    (400, f"GET {_PATH}", "Content-Length: 1\r\n"),
    (401, f"GET {_PATH}", ""),
    (404, f"GET {_PATH}", "Authorization: Bearer {user}\r\n"),
    (405, f"POST {_PATH}", ""),
    (431, f"GET {_PATH}", f"X: {'x' * 60_000}\r\n"),
]


@pytest.mark.parametrize(("status", "line", "headers"), REFUSED_STREAMS)
async def test_a_refused_stream_is_described(world: World, status: int, line: str, headers: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    stream = Stream(reader, writer)
    headers = headers.replace("{user}", world.product.tokens["user"])
    writer.write(f"{line} HTTP/1.1\r\nHost: demo.localhost\r\n{headers}\r\n".encode())
    async with stream:
        await stream.read_head()
        assert (await stream.refused())[0] == status


async def test_the_bounds_of_messages_are_those_described(world: World) -> None:
    viewer = await world.join()

    async def answer(text: str) -> Any:
        await viewer.socket.send(text)
        message = await viewer.next("unasked")
        return message.get("error", {}).get("code")

    call = '{"jsonrpc":"2.0","id":"%s","method":"servertime"}'
    nested = '{"jsonrpc":"2.0","id":"x","method":"servertime","params":%s%s}'
    assert await answer(call % ("i" * (MAX_ID_BYTES - 2))) is None
    assert await answer(call % ("i" * (MAX_ID_BYTES - 1))) == -32600
    assert await answer(f"[{','.join([call % 'x'] * MAX_BATCH)}]") is None
    for _ in range(MAX_BATCH - 1):
        await viewer.next("unasked")
    assert await answer(f"[{','.join([call % 'x'] * (MAX_BATCH + 1))}]") == -32600
    depth = MAX_DEPTH - 1  # the call itself is one
    assert await answer(nested % ("[" * depth, "]" * depth)) == -32602
    assert await answer(nested % ("[" * (depth + 1), "]" * (depth + 1))) == -32700
    assert await answer(nested % ("[" + "1," * MAX_VALUES, "1]")) == -32700
