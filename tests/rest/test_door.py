"""What every request meets at the HTTP door, whatever its operation."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jwt
import orjson
import pytest

from broker.errors import BrokerError, NotFound, Unavailable
from broker.rest.reply import Exchange
from broker.storage.gateways import GatewayRow, Gateways
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module", autouse=True)
async def program(product: Product) -> None:
    await product.make_program("door")


def field(answer: httpx.Response) -> str:
    """The field at fault."""
    return str(answer.json()["errors"][0]["field"])


# -- accounts


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("example.com", 200),
        ("demo.localhost", 200),
        ("DEMO.LocalHost.:8000", 200),
        ("other.localhost", 401),  # exists, and the token is not one of its own
        ("nobody.localhost", 404),
        ("a.demo.localhost", 404),
        ("-x.localhost", 404),
        (".localhost", 404),
    ],
)
async def test_the_host_names_the_account(product: Product, host: str, status: int) -> None:
    async with product.door() as door:
        answer = await door.get("/programs/door", headers={"Host": host})
    assert answer.status_code == status


async def test_a_request_without_a_host_is_refused(product: Product) -> None:
    scope = {"type": "http", "method": "GET", "path": "/api/v1/version", "headers": []}
    status, body = await call(product, scope)
    assert status == 400
    assert orjson.loads(body)["errors"][0]["field"] == "Host"


async def test_nothing_of_another_account_is_seen(product: Product) -> None:
    async with product.door(account="other") as door:
        assert (await door.get("/programs/door")).status_code == 404
        assert (await door.get("/programs/filter")).json()["total"] == 0
        assert (await door.delete("/programs/door")).status_code == 404


async def test_both_accounts_may_use_one_id(product: Product) -> None:
    await product.make_program("same", name="ours")
    await product.make_program("same", account="other", name="theirs")
    async with product.door(account="other") as door:
        assert (await door.get("/programs/same")).json()["name"] == "theirs"


# -- request ids


@pytest.mark.parametrize("sent", ["abc-123", "x" * 128])
async def test_a_request_id_is_echoed(product: Product, sent: str) -> None:
    async with product.door() as door:
        answer = await door.get("/version", headers={"X-Request-Id": sent})
    assert answer.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "tab\t", "\x7f"])
async def test_another_request_id_is_made(product: Product, sent: str) -> None:
    async with product.door() as door:
        answer = await door.get("/version", headers={"X-Request-Id": sent})
    assert answer.headers["x-request-id"] not in ("", sent)


@pytest.mark.parametrize("path", ["/nowhere", "/programs/none", "/programs/door?x=1", "/healthz"])
async def test_errors_carry_a_request_id_too(product: Product, path: str) -> None:
    async with product.door() as door:
        assert (await door.get(path)).headers["x-request-id"]


# -- paths and methods


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/programs/door", 200),
        ("/programs/door/", 404),
        ("/programs//door", 404),
        ("//programs/door", 404),
        ("/Programs/door", 404),
        ("/programs/door/nothing", 404),
        ("/programs/%64oor", 200),
        ("/programs/door%2Fevents", 400),
        ("/programs/%2e%2e", 400),
        ("/programs/do%6Fr%00", 400),
        ("/programs/%FF", 400),
        ("/programs/" + "x" * 128, 404),
        ("/programs/" + "x" * 129, 400),
        ("/programs/a!b", 400),
        ("", 404),
    ],
)
async def test_paths(product: Product, path: str, status: int) -> None:
    raw = f"/api/v1{path}".encode()
    scope = {"type": "http", "method": "GET", "raw_path": raw, "path": raw.decode(), "query_string": b""}
    assert (await call(product, scope))[0] == status


async def call(product: Product, scope: dict[str, Any], *messages: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body of a request that no well-behaved client would send."""
    token = f"Bearer {product.tokens['admin']}".encode()
    scope = {"headers": [(b"host", b"localhost"), (b"authorization", token)]} | scope
    waiting = list(messages)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await product.app(scope, receive, send)
    status = sent[0]["status"] if sent else 0
    return status, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/programs/door", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PUT", "/programs/filter", "GET, HEAD, OPTIONS"),
        ("GET", "/servertime", "OPTIONS, POST"),
        ("HEAD", "/servertime", "OPTIONS, POST"),
        ("POST", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("BREW", "/version", "GET, HEAD, OPTIONS"),
        ("TRACE", "/programs", "GET, HEAD, OPTIONS, POST"),
        ("CONNECT", "/storage/own/x", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    product: Product, method: str, path: str, allow: str
) -> None:
    async with product.door() as door:
        answer = await door.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow


async def test_head_has_the_headers_and_no_body(product: Product) -> None:
    async with product.door() as door:
        whole, head = await door.get("/programs/door"), await door.head("/programs/door")
        stream = await door.head("/programs/door/events?to=5")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert stream.headers["cache-control"] == "public, max-age=3600"
    assert stream.content == b""


async def test_options_tells_the_methods(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.options("/programs")
        assert (await door.options("/nowhere")).status_code == 404
    assert answer.status_code == 204
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_a_page_of_any_origin_may_call(product: Product) -> None:
    async with product.door(None) as door:
        asked = await door.options(
            "/programs/door/events",
            headers={"Origin": "https://dashboard.example", "Access-Control-Request-Method": "POST"},
        )
        answer = await door.get("/programs/door/events", headers={"Origin": "https://overlay.example"})
        refused = await door.get("/programs", headers={"Origin": "https://overlay.example"})
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "Authorization" in asked.headers["access-control-allow-headers"]
    for each in (asked, answer, refused):
        assert each.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in each.headers
        assert "set-cookie" not in each.headers


# -- tokens


async def test_a_missing_token_is_asked_for(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("/programs")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"] == "invalid_token"


@pytest.mark.parametrize("value", ["Bearer nonsense", "Bearer ", "Bearer", "Basic dTpw", "", "Token x"])
@pytest.mark.parametrize("path", ["/version", "/programs/door/events", "/programs"])
async def test_a_bad_token_is_refused_where_none_is_needed_too(
    product: Product, value: str, path: str
) -> None:
    async with product.door(None) as door:
        answer = await door.get(path, headers={"Authorization": value})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_the_scheme_of_a_token_has_no_case(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("/programs", headers={"Authorization": f"bearer {product.tokens['admin']}"})
    assert answer.status_code == 200


async def test_a_token_may_come_in_a_json_body(product: Product) -> None:
    token = product.tokens["admin"]
    async with product.door(None) as door:
        made = await door.post("/programs", json={"id": "bodied", "name": "B", "access_token": token})
        read = await door.request("GET", "/programs/bodied", json={"access_token": token})
        gone = await door.request("DELETE", "/programs/bodied", json={"access_token": token})
    assert made.status_code == 201
    assert "access_token" not in made.json()
    assert read.status_code == 200
    assert gone.status_code == 204


async def test_a_token_may_come_in_a_form(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.post("/ping", data={"access_token": product.tokens["client"]})
    assert answer.status_code == 200
    assert answer.json().keys() == {"current_time"}


@pytest.mark.parametrize("token", [7, None, "", "nonsense", ["x"]])
async def test_a_bad_token_in_a_body_is_refused(product: Product, token: object) -> None:
    async with product.door(None) as door:
        answer = await door.post("/servertime", json={"access_token": token})
    assert answer.status_code == 401


async def test_a_token_of_the_header_wins_over_one_in_the_body(product: Product) -> None:
    async with product.door("admin") as door:
        answer = await door.post("/servertime", json={"access_token": product.tokens["client"]})
    assert answer.status_code == 200


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


# -- errors


async def test_the_shape_of_an_error(product: Product) -> None:
    async with product.door() as door:
        answer = await door.post("/programs", json={"id": "x y", "name": "", "bogus": 1})
    assert answer.status_code == 400
    body = answer.json()
    assert body.keys() == {"error", "error_description", "status", "errors"}
    assert body["status"] == 400
    assert [fault["field"] for fault in body["errors"]] == ["id", "name", "bogus"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


async def test_a_bug_is_answered_with_a_request_id_and_no_more(
    product: Product, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM vault")

    monkeypatch.setattr(type(product.services.programs), "find", fail)
    async with product.door() as door:
        answer = await door.get("/programs/door", headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal_error",
        "error_description": "an internal error; its request id is find-me",
        "status": 500,
    }
    assert "find-me" in caplog.text


async def test_a_database_that_is_away_is_unavailable(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    from broker.errors import Unavailable

    async def fail(*_: object) -> None:
        raise Unavailable("the database cannot be reached", retry_after_s=2, log_text="10.0.0.7 refused")

    monkeypatch.setattr(type(product.services.programs), "find", fail)
    async with product.door() as door:
        answer = await door.get("/programs/door")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert "10.0.0.7" not in answer.text


# -- the rest


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs"])
async def test_pages_at_the_root(product: Product, path: str) -> None:
    async with product.door(None) as door:
        answer = await door.get(f"http://demo.localhost{path}")
        assert answer.status_code == 200
        assert (await door.head(f"http://demo.localhost{path}")).content == b""
        assert (await door.post(f"http://demo.localhost{path}")).status_code == 405


async def test_metrics_show_the_gateways(product: Product) -> None:
    gateways = Gateways(product.services.database)
    await gateways.beat(GatewayRow("g1", "ws://x", 3, False, {"connections": 3}))
    async with product.door(None) as door:
        answer = await door.get("http://demo.localhost/metrics")
    assert 'broker_gateway_connections{gateway="g1"} 3.0' in answer.text.splitlines()
    await gateways.remove("g1")


async def test_published_keys_verify_our_tokens(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("http://demo.localhost/.well-known/jwks.json")
    assert answer.headers["cache-control"] == "public, max-age=60"
    token = product.tokens["user"]
    key = jwt.PyJWKSet.from_dict(answer.json())[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["EdDSA"])
    assert (claims["acc"], claims["role"]) == ("demo", "user")


async def test_ready_means_every_part(product: Product) -> None:
    product.health["owners"] = "no owner answers"
    try:
        async with product.door(None) as door:
            answer = await door.get("http://localhost/readyz")
    finally:
        product.health["owners"] = "ok"
    assert answer.status_code == 503
    assert answer.json()["parts"]["owners"] == "no owner answers"


async def test_operations_are_counted_without_accounts(product: Product) -> None:
    async with product.door() as door:
        await door.get("/version")
        await door.get("/programs/none")
        text = (await door.get("http://localhost/metrics")).text
    assert 'broker_operations_total{operation="getVersion",outcome="ok"}' in text
    assert 'broker_operations_total{operation="getProgram",outcome="not_found"}' in text
    assert "demo" not in text


async def test_the_reference_loads_nothing_from_elsewhere(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("http://localhost/docs")
    assert "https://" not in answer.text
    assert "http://" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_lifespan_and_websockets(product: Product) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    await product.app({"type": "lifespan"}, receive, send)
    messages.append({"type": "websocket.connect"})
    await product.app({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]


async def test_requests_are_logged_without_their_secrets(
    product: Product, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="broker.access"):
        async with product.door() as door:
            await door.get("/programs/filter?search=secret", headers={"X-Request-Id": "logged"})
        product.app.close()
    line = orjson.loads(caplog.messages[-1].splitlines()[-1])
    assert line["requestId"] == "logged"
    assert line["status"] == 200
    assert line["path"] == "/api/v1/programs/filter"
    assert "secret" not in caplog.text
    assert product.tokens["admin"] not in caplog.text


# -- status


async def test_version(product: Product) -> None:
    async with product.door(None) as door:
        body = (await door.get("/version")).json()
    assert body.keys() == {"version", "buildNumber", "buildDate"}


async def test_ping_needs_a_token(product: Product) -> None:
    async with product.door(None) as door:
        assert (await door.post("/ping")).status_code == 401
    async with product.door("client") as door:
        answer = await door.post("/ping", json={})
        assert (await door.post("/ping", json={"x": 1})).status_code == 400
    assert abs(answer.json()["current_time"] - product.clock.now_ms()) < 5000


@pytest.mark.parametrize("time", [0, -(2**53), 2**53])
async def test_servertime_echoes(product: Product, time: int) -> None:
    async with product.door(None) as door:
        body = (await door.post("/servertime", json={"requestTime": time})).json()
    assert body["requestTime"] == time
    assert abs(body["serverTime"] - product.clock.now_ms()) < 5000


@pytest.mark.parametrize("time", [2**53 + 1, -(2**53) - 1, 1.5, "1", True, 10**30])
async def test_servertime_takes_exact_integers_only(product: Product, time: object) -> None:
    async with product.door(None) as door:
        answer = await door.post("/servertime", content=orjson.dumps({"requestTime": time}) if time != 10**30
                                 else b'{"requestTime":1' + b"0" * 30 + b"}",
                                 headers={"Content-Type": "application/json"})  # fmt: skip
    assert answer.status_code == 400
    assert field(answer) == "requestTime"


async def test_servertime_without_a_time_has_none(product: Product) -> None:
    async with product.door(None) as door:
        for body in ({}, {"requestTime": None}):
            assert (await door.post("/servertime", json=body)).json().keys() == {"serverTime"}


@pytest.mark.parametrize(
    ("error", "after"),
    [(Unavailable("busy"), b"1"), (Unavailable("busy", retry_after_s=7), b"7"), (NotFound("gone"), None)],
)
async def test_what_may_be_repeated_says_when(error: BrokerError, after: bytes | None) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("an error reads nothing")

    await Exchange(send, receive, "request", is_head=False).error(error)
    assert dict(sent[0]["headers"]).get(b"retry-after") == after


@pytest.mark.parametrize(
    ("size", "ends", "closes"),
    [(10, True, False), (256 << 10, True, False), ((256 << 10) + 1, True, True), (10, False, True)],
)
async def test_a_small_body_of_a_wrong_type_leaves_the_connection_open(
    product: Product, size: int, ends: bool, closes: bool
) -> None:
    """A connection that is closed over unread bytes is reset, and the reply may be lost with it."""
    token = f"Bearer {product.tokens['admin']}".encode()
    headers = [
        (b"host", b"localhost"),
        (b"authorization", token),
        (b"content-type", b"text/plain"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/programs", "headers": headers}
    waiting = [{"type": "http.request", "body": bytes(size), "more_body": not ends}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await product.app(scope, receive, send)
    assert sent[0]["status"] == 415
    assert ((b"connection", b"close") in sent[0]["headers"]) is closes


async def test_a_request_that_takes_too_long_is_told_so(product: Product) -> None:
    sent: list[dict[str, Any]] = []

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [
        (b"host", b"demo.localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/servertime", "headers": headers}
    await product.with_settings(http_timeout_s=1.0).app(scope, never, send)
    assert sent[0]["status"] == 503
    assert dict(sent[0]["headers"])[b"retry-after"] == b"1"
    assert orjson.loads(sent[1]["body"])["error"] == "unavailable"
