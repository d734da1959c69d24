from collections.abc import AsyncIterator

import orjson
import pytest

from broker.errors import InvalidClient, InvalidRequest, NotFound, PayloadTooLarge, SlowDown
from broker.gateway.rendering import error_json, joined_json, unknown_method_json
from broker.operations.results import Json, Reply, Stream
from broker.resources.connect import Connect

pytestmark = pytest.mark.anyio


async def test_json_passes_as_it_is() -> None:
    assert await joined_json(Json(b'{"b":1, "a":2}'), 1) == b'{"b":1, "a":2}'


async def test_models_go_by_their_wire_names() -> None:
    body = await joined_json(Connect(url="ws://x", servers=[], retry_after_ms=0), 1)
    assert orjson.loads(body) == {"url": "ws://x", "servers": [], "retryAfterMs": 0, "streamUrl": None}


@pytest.mark.parametrize("result", [None, Reply(None)])
async def test_nothing_is_null(result: Reply | None) -> None:
    assert await joined_json(result, 1) == b"null"


class Chunks:
    """Counts whether the stream was closed."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.is_closed = False

    async def __call__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self.chunks:
                yield chunk
        finally:
            self.is_closed = True


async def test_stream_up_to_the_limit_is_joined() -> None:
    assert await joined_json(Stream(Chunks(b"[1", b",2]")()), 5) == b"[1,2]"


async def test_stream_over_the_limit_is_refused_and_closed() -> None:
    chunks = Chunks(b"[1", b",2]", b" ", b" ")
    with pytest.raises(PayloadTooLarge):
        await joined_json(Stream(chunks()), 4)
    assert chunks.is_closed


async def test_stream_of_text_becomes_a_string() -> None:
    stream = Stream(Chunks(b'{"a":1}\n')(), media_type="application/x-ndjson")
    assert orjson.loads(await joined_json(stream, 100)) == '{"a":1}\n'


def test_fault_of_params_has_the_code_of_json_rpc() -> None:
    error = orjson.loads(error_json(InvalidRequest.of_field("history", "must be 0 to 5")))
    assert error == {
        "code": -32602,
        "message": "invalid_request",
        "data": {
            "error": "invalid_request",
            "error_description": "history: must be 0 to 5",
            "status": 400,
            "errors": [{"field": "history", "message": "must be 0 to 5"}],
        },
    }


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (InvalidClient("client_id: is not accepted"), 400, "invalid_client"),
        (NotFound("there is no such program"), 404, "not_found"),
        (SlowDown("too many", retry_after_s=3), 429, "slow_down"),
    ],
)
def test_other_errors_have_their_status_as_code(error: Exception, code: int, name: str) -> None:
    rendered = orjson.loads(error_json(error))  # type: ignore[arg-type]
    assert (rendered["code"], rendered["message"], rendered["data"]["status"]) == (code, name, code)


def test_unknown_method_has_the_code_of_json_rpc() -> None:
    error = orjson.loads(unknown_method_json("shout"))
    assert error["code"] == -32601
    assert "shout" in error["data"]["error_description"]
