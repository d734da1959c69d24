"""How what another server sent looks over WebSocket."""

import orjson
import pytest

from broker.errors import PayloadTooLarge
from broker.gateway import rendering as gateway
from broker.operations.rendering import result_json
from broker.operations.results import Forwarded

JSON = "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("media_type", "body", "shown"),
    [
        (JSON, b'{"a": [1, 2]}', {"body": {"a": [1, 2]}}),
        ("application/problem+json", b"null", {"body": None}),
        (JSON, b"", {"body": ""}),
        (JSON, b"{broken", {"body": "{broken"}),
        (JSON, b'1, "status": 500', {"body": '1, "status": 500'}),
        ("text/plain", b'{"a": 1}', {"body": '{"a": 1}'}),
        ("text/csv", "ü".encode(), {"body": "ü"}),
        ("image/png", b"\x89PNG", {"body": "iVBORw==", "encoding": "base64"}),
    ],
)
def test_body_is_json_or_text_or_base64(media_type: str, body: bytes, shown: dict[str, object]) -> None:
    expected = {"status": 418, "contentType": media_type} | shown
    assert orjson.loads(result_json(Forwarded(418, media_type, body))) == expected


def test_numbers_that_cannot_be_held_are_handed_on_as_they_are() -> None:
    assert b"0.10000000000000000000001" in result_json(Forwarded(200, JSON, b"[0.10000000000000000000001]"))


@pytest.mark.anyio
@pytest.mark.parametrize(("size", "fits"), [(10, True), (11, False)])
async def test_size_is_bounded_over_the_socket(size: int, fits: bool) -> None:
    forwarded = Forwarded(200, "text/plain", b"x" * size)
    if fits:
        assert orjson.loads(await gateway.joined_json(forwarded, 10))["body"] == "x" * size
    else:
        with pytest.raises(PayloadTooLarge):
            await gateway.joined_json(forwarded, 10)
