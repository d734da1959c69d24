"""Bodies, parameters and media types at the HTTP door."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.product import Product
from tests.rest.support import call, field

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module", autouse=True)
async def program(product: Product) -> None:
    await product.make_program("door")


# -- bodies


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"nul",
        b'{"id":NaN}',
        b'{"id":"\xff"}',
        b'{"id":"\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"{}{}",
    ],
)
async def test_what_is_no_json_object_is_refused(product: Product, content: bytes) -> None:
    async with product.door() as door:
        answer = await door.post("/programs", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert field(answer) == "body"


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=UTF-8", 201),
        ('application/json; charset="utf-8"', 201),
        ("application/json; charset=latin1", 415),
        ("text/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
async def test_bodies_are_json(product: Product, media_type: str, status: int) -> None:
    content = orjson.dumps({"id": f"type-{abs(hash(media_type))}", "name": "x"})
    async with product.door() as door:
        answer = await door.post("/programs", content=content, headers={"Content-Type": media_type})
    assert answer.status_code == status


async def test_an_encoded_body_is_refused(product: Product) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with product.door() as door:
        answer = await door.post("/programs", content=gzip.compress(b"{}"), headers=headers)
    assert answer.status_code == 415


async def test_no_body_is_an_empty_one(product: Product) -> None:
    async with product.door() as door:
        assert (await door.post("/servertime")).status_code == 200
        answer = await door.post("/programs")
    assert answer.status_code == 400
    assert {fault["field"] for fault in answer.json()["errors"]} == {"id", "name"}


async def test_a_body_of_a_request_that_has_none_is_refused(product: Product) -> None:
    async with product.door() as door:
        answer = await door.request("GET", "/programs/filter", json={"limit": 5})
    assert answer.status_code == 400
    assert field(answer) == "limit"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_has_a_largest_size(product: Product, chunked: bool) -> None:
    limit = 2000
    small = product.with_settings(body_limit_bytes=limit)

    def content(size: int) -> Any:
        text = orjson.dumps({"requestTime": 1}).ljust(size)

        async def parts() -> AsyncIterator[bytes]:
            yield text[: size // 2]
            yield text[size // 2 :]

        return parts() if chunked else text

    headers = {"Content-Type": "application/json"}
    async with small.door() as door:
        for size, status in ((limit - 1, 200), (limit, 200), (limit + 1, 413)):
            answer = await door.post("/servertime", content=content(size), headers=headers)
            assert answer.status_code == status
    assert answer.json()["error"] == "payload_too_large"


async def test_a_wrong_length_does_not_get_around_the_limit(product: Product) -> None:
    small = product.with_settings(body_limit_bytes=2000)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/servertime",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"10"),
        ],
    }
    status, _ = await call(small, scope, {"type": "http.request", "body": b" " * 3000, "more_body": True})
    assert status == 413


async def test_who_hangs_up_in_the_middle_of_a_body_is_not_answered(product: Product) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/servertime",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"transfer-encoding", b"chunked"),
        ],
    }
    beginning = {"type": "http.request", "body": b"{", "more_body": True}
    assert await call(product, scope, beginning, {"type": "http.disconnect"}) == (0, b"")


async def test_a_body_that_does_not_come_is_not_waited_for(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.rest.app.PART_S", 0.01)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/servertime",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"10"),
        ],
    }
    status, body = await call(
        product.with_settings(), scope, {"type": "http.request", "body": b"{", "more_body": True}
    )
    assert status == 400
    assert b"did not arrive in time" in body


MOST = 2 << 20  # that is put aside


@pytest.mark.parametrize(
    ("size", "ends", "closes"),
    [(10, True, False), (MOST, True, False), (MOST + 1, True, True), (10, False, True)],
)
async def test_a_small_body_of_a_wrong_type_leaves_the_connection_open(
    product: Product, size: int, ends: bool, closes: bool
) -> None:
    """A connection that is closed over unread bytes is reset, and the reply may be lost with it."""
    headers = [(b"content-type", b"text/plain"), (b"transfer-encoding", b"chunked")]
    parts = [{"type": "http.request", "body": bytes(size), "more_body": not ends}]
    assert await refused(product, headers, parts) == (415, closes)


@pytest.mark.parametrize(
    ("length", "size", "ends", "closes"),
    [
        (b"3000", 3000, True, False),
        (b"3000", 2900, False, True),
        (b"%d" % MOST, MOST, True, False),
        (b"", 3000, True, False),
        (b"", 3000, False, True),
        (b"", 2 * MOST + 2, True, True),
    ],
)
async def test_a_body_that_is_too_long_is_put_aside_if_it_ends_soon(
    product: Product, length: bytes, size: int, ends: bool, closes: bool
) -> None:
    small = product.with_settings(body_limit_bytes=2000)
    way = (b"content-length", length) if length else (b"transfer-encoding", b"chunked")
    half = size // 2
    parts = [
        {"type": "http.request", "body": bytes(half), "more_body": True},
        {"type": "http.request", "body": bytes(size - half), "more_body": not ends},
    ]
    assert await refused(small, [(b"content-type", b"application/json"), way], parts) == (413, closes)


@pytest.mark.parametrize(("ends", "closes"), [(True, False), (False, True)])
@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/programs/p/events/import", b"nobody's", 401),
        ("/programs", b"nobody's", 401),
        ("/none", None, 404),
        ("/version", None, 405),
    ],
)
async def test_a_body_of_what_is_refused_before_is_put_aside(
    product: Product, path: str, token: bytes | None, status: int, ends: bool, closes: bool
) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"3000")]
    if token is not None:
        headers.append((b"authorization", b"Bearer " + token))
    parts = [{"type": "http.request", "body": bytes(3000), "more_body": not ends}]
    assert await refused(product, headers, parts, path=path) == (status, closes)
    assert parts == []


@pytest.mark.parametrize(
    "header", [(b"expect", b"100-continue"), (b"content-length", b"%d" % (MOST + 1))], ids=["waits", "long"]
)
async def test_nothing_is_asked_for_of_a_body_that_cannot_be_put_aside(
    product: Product, header: tuple[bytes, bytes]
) -> None:
    small = product.with_settings(body_limit_bytes=2000)
    headers = dict([(b"content-length", b"3000"), header])
    assert await refused(small, [(b"content-type", b"application/json"), *headers.items()], None) == (
        413,
        True,
    )


async def refused(
    product: Product,
    headers: list[tuple[bytes, bytes]],
    parts: list[dict[str, Any]] | None,
    path: str = "/programs",
) -> tuple[int, bool]:
    """The reply's status, and whether it closes the connection. `parts`: None if none may be asked for."""
    head = [(b"host", b"localhost"), *headers]
    if b"authorization" not in dict(headers):
        head.append((b"authorization", f"Bearer {product.tokens['admin']}".encode()))
    scope = {"type": "http", "method": "POST", "path": f"/api/v1{path}", "headers": head}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert parts is not None, "the client would be told to go on"
        return parts.pop(0) if parts else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await product.app(scope, receive, send)
    return sent[0]["status"], (b"connection", b"close") in sent[0]["headers"]


# -- queries


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("bogus=1", "bogus"),
        ("limit=1&limit=2", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=abc", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("skip=-1", "skip"),
        ("live=1", "live"),
        ("live=True", "live"),
        ("order=up", "order"),
        ("sort=metadata", "sort"),
        ("status=gone", "status[0]"),
        ("status=live,", "status[1]"),
        ("from=yesterday", "from"),
        ("from=2026-02-30", "from"),
        ("from=2026-01-02&to=2026-01-01", "to"),
        ("ids=a,b!", "ids[1]"),
        ("search=%00", "search"),
        ("search=" + "x" * 1001, "search"),
        ("search=%FF", "query"),
        ("program_id=x", "program_id"),
        ("access_token=x", "access_token"),
    ],
)
async def test_bad_parameters_are_named(product: Product, query: str, name: str) -> None:
    async with product.door() as door:
        answer = await door.get(f"/programs/filter?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_request"
    assert field(answer) == name


@pytest.mark.parametrize("query", ["limit=1", "limit=1000", "skip=0", "live=true", "search=", "ids=a,b"])
async def test_parameters_at_their_edge_are_taken(product: Product, query: str) -> None:
    async with product.door() as door:
        assert (await door.get(f"/programs/filter?{query}")).status_code == 200


@pytest.mark.parametrize("query", ["&" * 100, "a=1&" * 100 + "a=1"], ids=["empty", "repeated"])
async def test_more_than_a_hundred_parameters_are_too_many(product: Product, query: str) -> None:
    async with product.door() as door:
        answer = await door.get(f"/programs/filter?{query}")
    assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")
    assert answer.json()["error_description"] == "query: must not have over 100 parameters"
    assert field(answer) == "query"


async def test_a_hundred_parameters_are_read(product: Product) -> None:
    async with product.door() as door:
        answer = await door.get("/programs/filter?" + "a=1&" * 99 + "a=1")
    assert (answer.status_code, field(answer)) == (400, "a")


async def test_more_than_a_hundred_fields_of_a_form_are_too_many(product: Product) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    async with product.door() as door:
        answer = await door.post("/token", content="a=1&" * 100 + "a=1", headers=form)
    assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")
    assert answer.json()["error_description"] == "body: must not have over 100 parameters"


async def test_a_query_where_there_is_none_to_read_is_refused(product: Product) -> None:
    async with product.door() as door:
        answer = await door.post("/servertime?requestTime=1")
    assert answer.status_code == 400
    assert field(answer) == "requestTime"


# -- media types of answers


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("", 200),
        (" ", 200),
        ("text/html, application/json;q=0.5", 200),
        ("text/html,application/xhtml+xml,*/*;q=0.8", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("application/json;q=0, */*", 406),
        ("application/x-ndjson", 406),
    ],
)
async def test_answers_are_json(product: Product, accept: str, status: int) -> None:
    async with product.door() as door:
        assert (await door.get("/version", headers={"Accept": accept})).status_code == status
