"""A program as Server-Sent Events: the same notifications, rights and recovery as over a WebSocket."""

import asyncio
import subprocess
from collections.abc import Mapping

import httpx
import pytest

from broker.errors import Unavailable
from broker.gateway.backfill import PAGE_ENTRIES
from tests.asgi import ask
from tests.gateway.streams import WAIT_S, Stream, StreamEvent
from tests.gateway.world import World, open_gateway, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def follow(
    world: World,
    program_id: str,
    role: str | None = None,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Stream:
    token = None if role is None else world.product.tokens[role]
    return await Stream.open(world.port, program_id, token=token, query=query, headers=headers)


def position(event: StreamEvent) -> str:
    return f"{event.data['epoch']}:{event.data['seq']}:{event.data['id']}"


async def test_reader_gets_what_a_viewer_gets(world: World) -> None:
    program = await world.program()
    await world.publish(program, 2)
    viewer = await world.join()
    answer = await viewer.call("subscribe", programId=program)
    async with await follow(world, program) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        first = await stream.next("subscribed")
        assert first.data == {name: value for name, value in answer.items() if name != "events"}
        assert first.id == position(first)
        await world.publish(program, 3, bytes_each=500)
        for _ in range(3):
            event = await stream.next("event")
            assert event.data == await viewer.next("event")
            assert event.id == position(event)
        admin = await world.admin()
        event_id = event.data["id"]
        await admin.call("updateProgramEvent", programId=program, eventId=event_id, event="Score#final")
        await admin.call("deleteProgramEvent", programId=program, eventId=event_id)
        for method in ("eventUpdated", "eventDeleted"):
            event = await stream.next(method)
            assert event.data == await viewer.next(method)
            assert event.id == position(event)


async def test_metadata_with_line_breaks_stays_one_event(world: World) -> None:
    program = await world.program()
    async with await follow(world, program) as stream:
        await stream.next("subscribed")
        admin = await world.admin()
        text = "a\n\nb\r\nid: x\u2028\n"
        await admin.call("producer", programId=program, event="Score#update", metadata={"text": text})
        assert (await stream.next("event")).data["metadata"] == {"text": text}
        await world.publish(program)
        assert await stream.seqs(1) == [2]


@pytest.mark.parametrize("place", ["since", "Last-Event-ID"])
async def test_position_reaches_before_what_the_gateway_has(world: World, place: str) -> None:
    program = await world.program()
    count = PAGE_ENTRIES + 300
    await world.publish(program, count)  # before anybody followed: the log begins after them
    async with await follow(world, program, query={"history": "0"}) as stream:
        epoch = (await stream.next("subscribed")).data["epoch"]
    given = {place: f"{epoch}:7"}
    async with await follow(
        world,
        program,
        query=given if place == "since" else {"since": f"{epoch}:700"},
        headers=given if place != "since" else {},
    ) as stream:
        first = await stream.next("subscribed")
        assert (first.data["seq"], first.data["recovered"]) == (7, True)
        assert await stream.seqs(count - 7) == list(range(8, count + 1))
        await world.publish(program, 1)
        assert await stream.seqs(1) == [count + 1]


async def test_history_brings_the_last_pushes(world: World) -> None:
    program = await world.program()
    await world.publish(program, 5)
    async with await follow(world, program, query={"history": "2"}) as stream:
        assert (await stream.next("subscribed")).data["seq"] == 3
        assert await stream.seqs(2) == [4, 5]


async def test_position_that_is_lost_is_said_so(world: World) -> None:
    program = await world.program()
    await world.publish(program, 3)
    events = await (await world.admin()).call("getProgramEvents", programId=program)
    epoch, ids = events[0]["epoch"], [event["id"] for event in events]
    for lost in ("gone:1", f"{epoch}:9", f"{epoch}:2:{ids[0]}"):
        async with await follow(world, program, headers={"Last-Event-ID": lost}) as stream:
            first = await stream.next("subscribed")
            assert (first.data["seq"], first.data["recovered"]) == (3, False), lost
            assert first.id == f"{epoch}:3:{ids[2]}"
    async with await follow(world, program, query={"since": f"{epoch}:2:{ids[1]}"}) as stream:
        assert (await stream.next("subscribed")).data["recovered"]
        assert await stream.seqs(1) == [3]


async def test_new_epoch_has_a_position_of_its_own(world: World) -> None:
    program = await world.program()
    await world.publish(program, 2)
    async with await follow(world, program) as stream:
        before = await stream.next("subscribed")
        admin = await world.admin()
        event = {"event": "Score#update"}
        await admin.call("importProgramEvents", programId=program, events=[event] * 4)
        replaced = await stream.next("historyReplaced")
        assert replaced.id == f"{replaced.data['epoch']}:{replaced.data['seq']}"
        await world.publish(program, 2)
        seqs = await stream.seqs(2)
    assert replaced.id is not None
    async with await follow(world, program, headers={"Last-Event-ID": replaced.id}) as stream:
        assert (await stream.next("subscribed")).data["recovered"]
        assert await stream.seqs(2) == seqs
    async with await follow(world, program, headers={"Last-Event-ID": before.id or ""}) as stream:
        assert not (await stream.next("subscribed")).data["recovered"]


async def test_who_may_follow(world: World) -> None:
    private = await world.program(access="private", projectId="own")
    cases = {None: 401, "client": 403, "user": 200, "producer": 200, "admin": 200}
    for role, status in cases.items():
        async with await follow(world, private, role) as stream:
            assert stream.status == status, role
    outsider = await world.new_user("outsider", "user", "elsewhere")
    for token, status in ((outsider, 404), (world.product.tokens["user"], 200), ("no-token", 401)):
        async with await Stream.open(world.port, private, query={"access_token": token}) as stream:
            assert stream.status == status
            assert stream.headers["access-control-allow-origin"] == "*"
    for role, status in ((None, 401), ("client", 404)):
        async with await follow(world, "never", role) as stream:
            assert (await stream.refused())[0] == status
            assert ("www-authenticate" in stream.headers) is (status == 401)
    foreign = world.product.other["admin"]
    async with await Stream.open(world.port, private, token=foreign) as stream:
        assert (await stream.refused())[1]["error"] == "invalid_token"
    async with await Stream.open(world.port, private, account="nobody") as stream:
        assert (await stream.refused())[1]["error"] == "not_found"


async def test_faults_name_their_fields(world: World) -> None:
    program = await world.program()
    for program_id, query, headers, field in (
        ("no id", {}, {}, "programId"),
        (program, {"since": "1"}, {}, "since"),
        (program, {"history": "x"}, {}, "history"),
        (program, {"other": "1"}, {}, "other"),
        (program, {"alive": "1"}, {}, "alive"),
        (program, {}, {"Last-Event-ID": "x"}, "Last-Event-ID"),
    ):
        async with await follow(world, program_id, query=query, headers=headers) as stream:
            status, body = await stream.refused()
            assert (status, [fault["field"] for fault in body["errors"]]) == (400, [field])


async def test_rights_that_end_end_the_stream(world: World) -> None:
    program = await world.program(projectId="own")
    anonymous, user, admin = [await follow(world, program, role) for role in (None, "user", "admin")]
    for stream in (anonymous, user, admin):
        await stream.next("subscribed")
    await world.set_access(program, "private", "own")
    assert (await anonymous.next("unsubscribed")).data == {"programId": program, "reason": "private"}
    closed = await anonymous.next("closed")
    assert (closed.data["code"], closed.data["reason"]) == (1000, "private")
    assert closed.retry_ms == closed.data["afterMs"]
    assert await anonymous.find_next() is None
    await world.publish(program)
    assert await user.seqs(1) == await admin.seqs(1) == [1]
    await world.set_access(program, "private", "elsewhere")
    assert (await user.next("unsubscribed")).data["reason"] == "insufficient_scope"
    assert (await user.next("closed")).data["code"] == 1000
    await world.publish(program)
    assert await admin.seqs(1) == [2]
    for stream in (anonymous, user, admin):
        await stream.close()


async def test_deleted_program_ends_its_streams(world: World) -> None:
    program = await world.program()
    async with await follow(world, program) as stream:
        await stream.next("subscribed")
        await world.publish(program)
        await (await world.admin()).call("admin/deleteProgram", programId=program)
        assert await stream.seqs(1) == [1]
        assert (await stream.next("programDeleted")).data == {"programId": program}
        assert (await stream.next("closed")).data["reason"] == "program_deleted"
        assert await stream.find_next() is None
    async with await follow(world, program) as again:
        assert again.status == 401


async def test_curl_shows_a_show_live(world: World) -> None:
    program = await world.program()
    curl = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--no-buffer", "--noproxy", "*", "--header", "Host: demo.localhost",
        f"http://127.0.0.1:{world.port}/api/v1/programs/{program}/events/stream",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert curl.stdout is not None
    try:
        async with asyncio.timeout(10):
            await curl.stdout.readuntil(b"event: subscribed\n")
            await world.publish(program)
            await curl.stdout.readuntil(b'"event":"Score#update"')
            await (await world.admin()).call("admin/deleteProgram", programId=program)
            await curl.stdout.readuntil(b"event: closed\n")
            assert await curl.wait() == 0
    finally:
        if curl.returncode is None:
            curl.kill()
            await curl.wait()


async def test_api_sends_to_a_gateway(world: World) -> None:
    program = await world.program()
    app = world.product.app
    path = f"/api/v1/programs/{program}/events/stream"
    token = world.product.tokens["client"]
    told = await ask(app, "GET", f"{path}?since=e%3A1&access_token={token}")
    assert (told.status, told.body, told.headers["cache-control"]) == (307, b"", "no-store")
    connect = await (await world.join()).call("connect", programId=program)
    assert told.headers["location"] == f"{connect['streamUrl']}?since=e%3A1&access_token={token}"
    assert connect["streamUrl"] == connect["url"].replace("ws:", "http:").replace("/ws", path[7:])
    assert connect["servers"][0]["streamUrl"] == connect["streamUrl"]
    assert (await (await world.join()).call("connect"))["streamUrl"] is None
    assert (await ask(app, "OPTIONS", path)).headers["allow"] == "GET, OPTIONS"
    assert (await ask(app, "GET", path, account="nobody")).status == 404
    assert (await ask(app, "GET", "/api/v1/programs//events/stream")).status == 404


async def test_api_sends_nobody_on_whose_token_is_bad(world: World) -> None:
    path = f"/api/v1/programs/{await world.program()}/events/stream"
    app, good = world.product.app, world.product.tokens["client"]
    for query in ("access_token=t", "access_token=", "since=e%3A1&access_token=t", f"access_token={good}x"):
        told = await ask(app, "GET", f"{path}?{query}")
        assert (told.status, told.headers["www-authenticate"]) == (401, "Bearer"), query
    assert (await ask(app, "GET", path, token="t")).status == 401
    assert (await ask(app, "GET", path, headers={"Authorization": "Basic eDp5"})).status == 401
    assert (await ask(app, "GET", f"{path}?access_token={good}", token="t")).status == 401
    assert (await ask(app, "GET", f"{path}?access_token=t", token=good)).status == 307
    assert (await ask(app, "GET", f"{path}?access_token=%ff")).status == 400


async def test_api_leaves_a_token_that_it_cannot_check_to_the_gateway(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def authenticate(*_: object) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(world.product.services.auth, "authenticate", authenticate)
    path = f"/api/v1/programs/{await world.program()}/events/stream"
    assert (await ask(world.product.app, "GET", path, token="t")).status == 307


@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE", "OPTIONS"])
async def test_both_doors_answer_other_methods_alike(world: World, method: str) -> None:
    path = f"/api/v1/programs/{await world.program()}/events/stream"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.port}") as client:
        there = await client.request(method, path, headers={"Host": "demo.localhost"})
    here = await ask(world.product.app, method, path)
    assert here.status == there.status_code == (204 if method == "OPTIONS" else 405)
    assert here.headers["allow"] == there.headers["allow"] == "GET, OPTIONS"
    allowed = "access-control-allow-methods"
    assert here.headers.get(allowed) == there.headers.get(allowed)


async def test_a_reply_to_head_has_no_content(world: World) -> None:
    path = f"/api/v1/programs/{await world.program()}/events/stream"
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(f"HEAD {path} HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode())
    async with asyncio.timeout(WAIT_S):
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert content == b""  # RFC 9110, section 9.3.2
    writer.close()


async def test_reader_goes_on_across_a_restart(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        program = await world.program()
        async with open_gateway(world.product, world.link) as (gateway, port):
            stream = await Stream.open(port, program)
            await stream.next("subscribed")
            await world.publish(program, 3)
            event = [await stream.next("event") for _ in range(3)][1]
            stopping = asyncio.create_task(gateway.stop())
            closed = await stream.next("closed")
            assert (closed.data["code"], closed.retry_ms) == (1001, closed.data["afterMs"])
            assert await stream.find_next() is None
            await stopping
            await stream.close()
        await world.publish(program, 2)
        assert event.id is not None
        async with open_gateway(world.product, world.link) as (_, port):
            seen = {"Last-Event-ID": event.id}
            async with await Stream.open(port, program, headers=seen) as stream:
                assert (await stream.next("subscribed")).data["recovered"]
                assert await stream.seqs(3) == [3, 4, 5]


async def test_drained_gateway_says_when_to_come_back(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        program = await world.program()
        stream = await follow(world, program)
        await stream.next("subscribed")
        draining = asyncio.create_task(world.gateway.drain(0.3))
        assert 0 <= (await stream.next("reconnect")).data["afterMs"] <= 300
        closed = await stream.next("closed")
        assert (closed.data["code"], closed.data["reason"]) == (1012, "service_restart")
        assert await stream.find_next() is None
        await stream.close()
        await draining
        path = f"/api/v1/programs/{program}/events/stream"
        async with asyncio.timeout(10):  # what a process knows of gateways may be a second old
            told = await ask(world.product.app, "GET", path)
            while told.status == 307:
                await asyncio.sleep(0.1)
                told = await ask(world.product.app, "GET", path)
        assert (told.status, told.headers["retry-after"]) == (503, "2")
