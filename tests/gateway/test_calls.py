import asyncio
from typing import Any

import orjson
import pytest

from broker.gateway import dispatcher
from tests.gateway.world import RpcError, Viewer, World, seqs

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

EVENT = {"event": "Score#update"}


async def fails(viewer: Viewer, method: str, /, **params: object) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await viewer.call(method, **params)
    return caught.value


async def raw(viewer: Viewer, text: str) -> dict[str, Any]:
    await viewer.socket.send(text)
    return dict(await viewer.next("unasked"))


async def test_unknown_method(world: World) -> None:
    error = await fails(await world.join(), "shout")
    assert (error.code, error.name) == (-32601, "Method not found")


@pytest.mark.parametrize("params", ["[1]", "[]"])
async def test_params_by_position_are_refused(world: World, params: str) -> None:
    answer = await raw(
        await world.join("user"), f'{{"jsonrpc":"2.0","id":"a","method":"getCurrentUser","params":{params}}}'
    )
    assert answer["error"]["code"] == -32602
    assert answer["id"] == "a"


@pytest.mark.parametrize("text", ["{", "nonsense", '{"jsonrpc":"2.0","id":1,"method":"x","params":{]}', ""])
async def test_what_is_not_json_is_a_parse_error(world: World, text: str) -> None:
    answer = await raw(await world.join(), text)
    assert (answer["error"]["code"], answer["id"]) == (-32700, None)
    assert (answer["error"]["data"]["error"], answer["error"]["data"]["status"]) == ("invalid_request", 400)


@pytest.mark.parametrize("text", ["1", "[]", "{}", '{"jsonrpc":"1.0","id":"a","method":"servertime"}'])
async def test_what_is_no_request_is_invalid(world: World, text: str) -> None:
    error = (await raw(await world.join(), text))["error"]
    assert (error["code"], error["data"]["status"]) == (-32600, 400)
    assert error["data"]["error_description"]


async def test_fault_in_params_names_the_field(world: World) -> None:
    program = await world.program()
    error = await fails(await world.admin(), "producer", programId=program, event="not a name")
    assert (error.code, error.name) == (-32602, "invalid_request")
    assert error.data["status"] == 400
    assert error.fields == ["event"]


async def test_unknown_field_is_refused(world: World) -> None:
    program = await world.program()
    error = await fails(await world.admin(), "producer", programId=program, **EVENT, colour="red")
    assert error.fields == ["colour"]


async def test_idempotency_key_where_none_is_honoured_is_an_unknown_field(world: World) -> None:
    error = await fails(await world.admin(), "getCurrentUser", idempotencyKey="k")
    assert error.fields == ["idempotencyKey"]


@pytest.mark.parametrize("key", ["", "k" * 256, 5, "line\nbreak"])
async def test_bad_idempotency_key_is_refused(world: World, key: object) -> None:
    program = await world.program()
    error = await fails(await world.admin(), "producer", programId=program, **EVENT, idempotencyKey=key)
    assert error.fields == ["idempotencyKey"]


@pytest.mark.parametrize("key", ["k", "k" * 255])
async def test_publish_with_a_key_takes_effect_once(world: World, key: str) -> None:
    program = await world.program()
    admin = await world.admin()
    first = await admin.call("producer", programId=program, **EVENT, idempotencyKey=f"{key}")
    again = await admin.call("producer", programId=program, **EVENT, idempotencyKey=f"{key}")
    assert again == first
    other = await fails(admin, "producer", programId=program, event="Score#other", idempotencyKey=key)
    assert (other.code, other.name) == (409, "conflict")


async def test_role_decides_who_publishes(world: World) -> None:
    program = await world.program()
    assert (await fails(await world.join("client"), "producer", programId=program, **EVENT)).code == 403
    assert (await fails(await world.join(), "producer", programId=program, **EVENT)).code == 401
    producer = await world.join("producer")
    assert (await producer.call("producer", programId=program, **EVENT))["seq"] == 1


async def test_former_names_work(world: World) -> None:
    program = await world.program()
    admin = await world.admin()
    await world.publish(program, 2)
    assert seqs(await admin.call("admin/getProgramEvents", programId=program)) == [1, 2]
    assert (await admin.call("admin/deleteAllProgramEvents", programId=program))["deleted"] == 2


async def test_deleting_answers_null(world: World) -> None:
    program = await world.program()
    admin = await world.admin()
    assert await admin.call("admin/deleteProgram", programId=program) is None
    assert (await fails(admin, "getProgram", programId=program)).code == 404


async def test_import_is_taken_from_the_params(world: World) -> None:
    program = await world.program()
    admin = await world.admin()
    await world.publish(program, 1)
    done = await admin.call("importProgramEvents", programId=program, events=[EVENT, EVENT])
    assert (done["deleted"], done["imported"]) == (1, 2)


async def test_requests_of_one_connection_take_effect_as_sent(world: World) -> None:
    program = await world.program()
    producer = await world.join("producer")
    numbers = [
        await producer.send("producer", programId=program, event="Score#update", metadata={"n": index})
        for index in range(100)
    ]
    events = [await producer.answer(number) for number in numbers]
    assert [event["seq"] for event in events] == list(range(1, 101))
    assert [event["metadata"]["n"] for event in events] == list(range(100))


async def test_different_operations_keep_their_order_too(world: World) -> None:
    producer = await world.join("producer")
    numbers = [
        await producer.send("admin/createProgram", id="ordered", name="x"),
        await producer.send("producer", programId="ordered", **EVENT),
        await producer.send("getProgramEvents", programId="ordered"),
        await producer.send("deleteAllProgramEvents", programId="ordered"),
        await producer.send("getProgramEvents", programId="ordered"),
    ]
    answers = [await producer.answer(number) for number in numbers]
    assert [len(answers[2]), answers[3]["deleted"], len(answers[4])] == [1, 1, 0]


async def test_connections_do_not_wait_for_each_other(world: World) -> None:
    program = await world.program()
    producers = await asyncio.gather(*(world.join("producer") for _ in range(5)))

    async def publish(producer: Viewer) -> list[int]:
        return [(await producer.call("producer", programId=program, **EVENT))["seq"] for _ in range(10)]

    taken = await asyncio.gather(*(publish(producer) for producer in producers))
    assert sorted(seq for each in taken for seq in each) == list(range(1, 51))
    assert [each for each in taken if each != sorted(each)] == []


async def test_batch_is_answered_in_one_message(world: World) -> None:
    program = await world.program()
    producer = await world.join("producer")
    messages = [
        producer.build("servertime"),
        producer.build("producer", programId=program, **EVENT),
        producer.build("producer", programId=program, **EVENT),
        producer.build("shout"),
    ]
    notification = {"jsonrpc": "2.0", "method": "producer", "params": {"programId": program, **EVENT}}
    await producer.socket.send(orjson.dumps([*messages, notification]).decode())
    first, second = await producer.answer(messages[1]["id"]), await producer.answer(messages[2]["id"])
    assert (first["seq"], second["seq"]) == (1, 2)
    with pytest.raises(RpcError):
        await producer.answer(messages[3]["id"])
    # The notification took effect after them and was not answered.
    events = await producer.call("getProgramEvents", programId=program)
    assert seqs(events) == [1, 2, 3]
    assert producer.told.empty()


async def test_notification_is_never_answered(world: World) -> None:
    viewer = await world.join()
    await viewer.socket.send('{"jsonrpc":"2.0","method":"shout"}')
    await viewer.socket.send('{"jsonrpc":"2.0","method":"getCurrentUser","params":[]}')
    assert await viewer.call("servertime")
    assert viewer.told.empty()


async def test_result_over_the_limit_points_to_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    program = await world.program()
    await world.publish(program, 10, bytes_each=1_000)
    monkeypatch.setattr("broker.gateway.dispatcher.MAX_RESULT_BYTES", 5_000)
    error = await fails(await world.admin(), "getProgramEvents", programId=program)
    assert (error.code, error.name) == (413, "payload_too_large")


async def test_bug_is_an_internal_error_without_details(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    program = await world.program()
    viewer = await world.join("producer")
    monkeypatch.setattr(world.gateway._subscriptions, "_open_program", broken)
    error = await fails(viewer, "subscribe", programId=program)
    assert (error.code, error.name) == (500, "internal_error")
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("method", "name"), [("getProgram", "unavailable"), ("admin/deleteProgram", "outcome_unknown")]
)
async def test_call_that_takes_too_long_may_have_been_done_if_it_changes_something(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    program, admin = await world.program(), await world.admin()
    monkeypatch.setattr(dispatcher, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(type(world.product.services.programs), "find", hang)
    error = await fails(admin, method, programId=program)
    assert (error.code, error.name) == (503, name)
