"""Tricks with paths, methods, queries, headers and kinds of bodies, for every operation: nothing done."""

import re

import pytest

from broker.operations.registry import Operation
from broker.rest.routing import build_endpoint
from tests.asgi import Told, ask
from tests.bad_input.stage import Stage, each

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.usefixtures("leaves_no_errors")]


@pytest.mark.parametrize("operation", each(with_body=True))
async def test_bodies_of_another_kind_are_refused(stage: Stage, operation: Operation) -> None:
    base, before = stage.params(operation), await stage.state()
    for body in (b"\xef\xbb\xbf{}", b"{}\x00", b"\xff\xfe{\x00}\x00", b"{", b"nul", b"{}{}", b"\x00", b"'a'"):
        told = await stage.over_http(operation, base, body)
        assert (told.status, told.error["error"]) == (400, "invalid_request"), (body, told.body)
    for body in (b"[]", b"5", b"null", b'"x"', b"true"):
        if operation.route.whole_body is None:
            told = await stage.over_http(operation, base, body)
            assert (told.status, told.fields) == (400, ["body"]), (body, told.body)
    for kind in (
        "text/plain",
        "application/json; charset=latin-1",
        "multipart/form-data",
        "a",
        "",
        "\xff/\xe9",
    ):
        told = await _typed(stage, operation, kind)
        assert (told.status, told.error["error"]) == (415, "unsupported_media_type"), kind
    told = await _typed(stage, operation, operation.route.consumes[0], **{"Content-Encoding": "gzip"})
    assert told.status == 415
    assert await stage.state() == before


async def _typed(stage: Stage, operation: Operation, media_type: str, **headers: str) -> Told:
    path = re.sub(r"\{(\w+)\}", "there", operation.route.path)
    token = stage.world.product.tokens["admin"]
    return await ask(
        stage.world.product.app,
        operation.route.method,
        f"/api/v1{path}",
        b"{}",
        token=token,
        media_type=media_type,
        headers=headers,
    )


PATHS = [
    "..", ".", "%2e%2e", "%2E", "a%2Fb", "%2F", "%5c", "%00", "a%00b", "%c0%af", "%ff", "%ed%a0%80", "%",
    "%zz",
    "a;b=c", ";", "a%20b", "%0d%0aX-A:%20b", "a,b", "*", "%E2%80%AE", "%F0%9F%98%80", "x" * 129, "x" * 60_000,
    "filter%20",
]  # fmt: skip


@pytest.mark.parametrize("operation", each())
async def test_tricks_with_the_path_are_refused(stage: Stage, operation: Operation) -> None:
    product, before = stage.world.product, await stage.state()
    token = product.tokens["admin"]
    targets = [re.sub(r"\{\w+\}", trick, operation.route.path) for trick in PATHS]
    if "{" not in operation.route.path:
        targets = []
    good = re.sub(r"\{\w+\}", "there", operation.route.path)
    targets += [
        f"{good}/",
        f"/{good}",
        good.replace("/", "//"),
        f"{good};a=b",
        f"{good}%00",
        f"{good}/%2e%2e",
    ]
    targets += [f"/../api/v1{good}", f"{good}/..", f"{good}%2f", good.upper() + "X"]
    targets += [f"http://demo.localhost/api/v1{good}"]
    for target in targets:
        raw = target.encode() if target.startswith("http") else b"/api/v1" + target.encode()
        told = await ask(product.app, operation.route.method, raw, b"{}", token=token)
        assert told.status in (400, 404, 405, 409, 415, 422), (raw[:100], told.status, told.body)
    assert await stage.state() == before


@pytest.mark.parametrize("operation", each())
async def test_tricks_with_the_method_are_refused(stage: Stage, operation: Operation) -> None:
    product, before = stage.world.product, await stage.state()
    token = product.tokens["admin"]
    path = "/api/v1" + re.sub(r"\{\w+\}", "there", operation.route.path)
    for method in (operation.route.method.lower(), "TRACE", "CONNECT", "PROPFIND", "GE T", "", "X" * 5_000):
        told = await ask(product.app, method, path, b"{}", token=token)
        assert (told.status, told.error["error"]) == (405, "method_not_allowed")
        assert operation.route.method in told.headers["allow"]
    # Nobody is taken for somebody else: TRACE through a header of that kind is as good as nothing.
    for name in ("X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"):
        told = await ask(product.app, "TRACE", path, headers={name: operation.route.method}, token=token)
        assert told.status == 405
    assert await stage.state() == before


@pytest.mark.parametrize("operation", each())
async def test_tricks_with_the_query_are_refused(stage: Stage, operation: Operation) -> None:
    if operation.route.is_proxy:  # whose query is for somebody else
        return
    product, before = stage.world.product, await stage.state()
    token = product.tokens["admin"]
    path = "/api/v1" + re.sub(r"\{\w+\}", "there", operation.route.path)
    queries = [
        "a[]=1",
        "limit[]=5",
        "limit=1&limit=2",
        "bogus=1",
        "=",
        "a=%zz%ff",
        "%ff=1",
        "a=%ed%a0%80",
        "a=\xff",
    ]
    too_many = "&".join(f"a{n}=1" for n in range(101))
    queries += [
        too_many,
        "limit=" + "9" * 5_000,
        "access_token=x",
        "a;b",
        "projectId=",
    ]
    endpoint = build_endpoint(operation)
    queries += [f"{name}=1&{name}=1" for name in endpoint.query]
    queries += [f"{name}=%00" for name in endpoint.query if name != "cascade"]
    for query in queries:
        body = b"{}" if endpoint.has_body else b""
        target = f"{path}?{query}".encode("latin-1")
        told = await ask(
            product.app, operation.route.method, target, body, token=token, media_type="text/plain"
        )
        assert told.status in (413 if query == too_many else 400, 415), (query[:100], told.status, told.body)
    assert await stage.state() == before


async def test_a_method_in_a_header_is_ignored(stage: Stage) -> None:
    product = stage.world.product
    token = product.tokens["admin"]
    told = await ask(
        product.app,
        "GET",
        "/api/v1/programs/there",
        headers={"X-HTTP-Method-Override": "DELETE"},
        token=token,
    )
    assert told.status == 200
    assert (await ask(product.app, "GET", "/api/v1/programs/there", token=token)).status == 200


HEADERS = [
    ("Accept", ";;q=nan,\xff/\xe9;q=", 406),
    ("Accept", "application/json;q=-1", 406),
    ("Accept", "*/*;q=nan", 200),
    ("Authorization", "Bearer \xff\xfe", 401),
    ("Authorization", "Bearer " + "x." * 50_000, 401),
    ("Authorization", "Basic YTpi", 401),
    ("Authorization", "", 401),
    ("Host", "\xff.localhost", 404),
    ("Host", "..localhost", 404),
    ("Host", "a'--.localhost", 404),
    ("Host", "\x00.localhost", 404),
    ("Host", "", 200),
    ("If-None-Match", '"' * 9_999, 200),
    ("X-Forwarded-For", "fe80::1%\x01, \xff, ,", 200),
    ("X-Request-Id", "a\r\nX-Evil: 1", 200),
    ("Content-Length", "-1", 415),
    ("Transfer-Encoding", "chunked", 415),
]


@pytest.mark.parametrize(("name", "value", "status"), HEADERS)
async def test_tricks_with_headers(stage: Stage, name: str, value: str, status: int) -> None:
    told = await ask(
        stage.world.product.app,
        "GET",
        "/api/v1/projects/own",
        token=None if name == "Authorization" else stage.world.product.tokens["admin"],
        headers={name: value},
    )
    assert told.status == status, told.body
    assert "\r" not in told.headers["x-request-id"]


@pytest.mark.parametrize("token", [b'"\xff"', b'"\x01"', b'""', b'"x"', b"5", b"null", b'"\xed\xa0\x80"'])
async def test_tokens_in_a_body_that_is_streamed(stage: Stage, token: bytes) -> None:
    before = await stage.state()
    path = "/api/v1/programs/there/events/import"
    told = await ask(
        stage.world.product.app, "POST", path, b'{"access_token":' + token + b',"events":[]}', token=None
    )
    assert told.status in (400, 401), told.body
    assert await stage.state() == before
