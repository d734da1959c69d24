"""What every request meets at the HTTP door, whatever its operation: account, path, method, token, errors."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from broker.errors import BrokerError, NotFound, Unavailable
from broker.rest.reply import Exchange
from tests.asgi import ask
from tests.product import Product
from tests.rest.support import call

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module", autouse=True)
async def program(product: Product) -> None:
    await product.make_program("door")


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
        ("CONNECT", "/storage/own/x", "DELETE, GET, HEAD, OPTIONS"),
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


@pytest.mark.parametrize(
    ("path", "role", "status"),
    [
        ("/programs/nothing", "admin", 404),
        ("/nowhere", "admin", 404),
        ("/programs/door", None, 401),
        ("/users", "client", 403),
        ("/servertime", "admin", 405),
        ("/programs/door/events/stream", None, 405),
        ("/programs/door?x=1", "admin", 400),
    ],
)
async def test_errors_of_head_have_no_body(
    product: Product, path: str, role: str | None, status: int
) -> None:
    # Not by httpx, which leaves out what an application sends after the headers.
    told = await ask(product.app, "HEAD", f"/api/v1{path}", token=role and product.tokens[role])
    assert (told.status, told.body) == (status, b"")
    assert int(told.headers["content-length"]) > 0


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


async def test_an_api_token_is_a_bearer_token(product: Product) -> None:
    async with product.door("producer") as door, product.door(None) as bare:
        made = (await door.post("/users/me/tokens", json={"name": "mixer"})).raise_for_status().json()
        token = made["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        profile = (await bare.get("/users/me", headers=bearer)).raise_for_status().json()
        assert profile["username"] == "producer"
        program = {"id": "by-api-token", "name": "P", "access_token": token}
        (await bare.post("/programs", json=program)).raise_for_status()
        heir = await bare.post("/users/me/tokens", json={"name": "heir", "access_token": token})
        taken = await bare.put("/users/me", json={"password": "taken-over"}, headers=bearer)
        assert (heir.status_code, taken.status_code) == (403, 403)
        async with product.door(None, account="other") as foreign:
            refused = await foreign.get("/users/me", headers=bearer)
        assert (refused.status_code, refused.json()["error"]) == (401, "invalid_token")
        (await door.delete(f"/users/me/tokens/{made['id']}")).raise_for_status()
        async with asyncio.timeout(5):
            while (refused := await bare.get("/users/me", headers=bearer)).status_code == 200:  # noqa: ASYNC110 - the state tells nobody
                await asyncio.sleep(0.05)
        assert (refused.status_code, refused.json()["error"]) == (401, "invalid_token")
        assert refused.headers["www-authenticate"] == "Bearer"


async def test_invented_api_tokens_slow_their_address_only(product: Product) -> None:
    async with product.door(None) as door:

        async def ask(token: str, address: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
            return await door.get("/version", headers=headers)

        refused = [await ask(f"brk_{number:043}", "192.0.2.80") for number in range(31)]
        assert [answer.status_code for answer in refused] == [401] * 30 + [429]
        assert refused[-1].json()["error"] == "slow_down"
        assert 1 <= int(refused[-1].headers["retry-after"]) <= 60
        assert (await ask("brk_" + "x" * 43, "192.0.2.81")).status_code == 401
        assert (await ask(product.tokens["user"], "192.0.2.80")).status_code == 200


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
    assert "find-me" in [record.__dict__.get("requestId") for record in caplog.records]


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


@pytest.mark.parametrize(("method", "name"), [("GET", "unavailable"), ("DELETE", "outcome_unknown")])
async def test_a_request_that_takes_too_long_may_have_been_done_if_it_changes_something(
    product: Product, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(type(product.services.programs), "find", hang)
    async with product.with_settings(http_timeout_s=0.1).door() as door:
        answer = await door.request(method, "/programs/door")
    assert (answer.status_code, answer.json()["error"]) == (503, name)
    assert answer.headers["retry-after"] == "1"
