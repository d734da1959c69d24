"""Requests of data sources through the HTTP door, to a real server on loopback that the operator allows."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import orjson
import pytest

from tests.fetching.upstream import Seen, Upstream, open_upstream, send
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LIMIT = 2048


class Service:
    """What the upstream does next; by default it tells what it was asked."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.status = 200
        self.reply: tuple[bytes, str] | None = None
        self.headers: dict[str, str] = {}
        self._arrived: asyncio.Queue[Seen] = asyncio.Queue()

    async def wait_for(self, requests: int) -> None:
        async with asyncio.timeout(5):
            for _ in range(requests):
                await self._arrived.get()

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self._arrived.put_nowait(seen)
        await self.gate.wait()
        told: dict[str, Any] = {"method": seen.method, "path": seen.path, "headers": seen.headers}
        told["body"] = seen.body.decode()
        body, kind = self.reply or (orjson.dumps(told), "application/json")
        await send(writer, self.status, body, Content_Type=kind, **self.headers)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def upstream(service: Service, anyio_backend: str) -> AsyncIterator[Upstream]:
    async with open_upstream(service) as upstream:
        yield upstream


@pytest.fixture
async def product(migrated_dsn: str, upstream: Upstream, anyio_backend: str) -> AsyncIterator[Product]:
    async with open_product(
        migrated_dsn,
        token_lifetime_s=30_000_000,
        fetch_allow_hosts=(f"127.0.0.1:{upstream.port}",),
        fetch_limit_bytes=LIMIT,
        fetch_project_requests=2,
        fetch_timeout_s=2.0,
    ) as product:
        async with product.door() as door:
            for project in ("own", "foreign"):
                await door.post("/projects", json={"id": project, "name": project})
        yield product


async def configure(
    product: Product,
    upstream: Upstream,
    *,
    project: str = "own",
    revision: str = "r1",
    version: str = "1",
    status: str = "published",
    **members: Any,
) -> None:
    """A revision with the one data source `a`."""
    source = {"id": "a", "type": "api", "url": f"http://127.0.0.1:{upstream.port}/api"} | members
    async with product.services.database.connection() as connection:
        await connection.execute(
            "INSERT INTO revisions (account, project_id, id, version, status, content, created_by, updated_by"
            ", created_time, updated_time)"
            " VALUES ('demo', $1, $2, $3, $4, $5, 'x', 'x', now(), now())",
            project,
            revision,
            version,
            status,
            orjson.dumps({"dataSources": [source]}).decode(),
        )


async def ask(
    product: Product,
    method: str = "GET",
    *,
    role: str | None = "user",
    version: str = "1",
    source: str = "a",
    project: str = "own",
    account: str = "demo",
    query: str = "",
    headers: dict[str, str] | None = None,
    **sent: Any,
) -> httpx.Response:
    async with product.door(role, account=account) as door:
        path = f"/projects/{project}/application/requests/{version}/{source}{query}"
        return await door.request(method, path, headers=headers, **sent)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_method_reaches_the_upstream(product: Product, upstream: Upstream, method: str) -> None:
    await configure(product, upstream)
    answer = await ask(product, method)
    assert answer.status_code == 200
    assert (answer.json()["method"], answer.json()["path"]) == (method, "/api")


async def test_if_match_is_the_upstreams(product: Product, upstream: Upstream) -> None:
    """What the broker refuses for changes of its own, another server may want."""
    await configure(product, upstream, headers={"If-Match": "of-the-source"})
    answer = await ask(product, "PUT", json={}, headers={"If-Match": '"mine"'})
    assert answer.json()["headers"]["if-match"] == '"mine"'


async def test_query_body_and_headers_override_key_by_key(product: Product, upstream: Upstream) -> None:
    await configure(
        product,
        upstream,
        query={"a": "1", "b": "2"},
        body={"x": 1, "y": 2},
        headers={"X-Key": "k", "X-Two": "t"},
    )
    told = (
        await ask(
            product, "POST", query="?b=3&c=4&c=5", json={"y": 9}, headers={"X-Key": "mine", "X-Else": "no"}
        )
    ).json()
    assert told["path"] == "/api?a=1&b=3&c=4&c=5"
    assert orjson.loads(told["body"]) == {"x": 1, "y": 9}
    assert (told["headers"]["x-key"], told["headers"]["x-two"]) == ("mine", "t")
    assert "x-else" not in told["headers"]


async def test_a_json_body_goes_on_as_the_form_that_the_source_sends(
    product: Product, upstream: Upstream
) -> None:
    form = "application/x-www-form-urlencoded"
    await configure(product, upstream, headers={"Content-Type": form}, body={"a": 1, "b": 2})
    told = (await ask(product, "POST", json={"b": "x y"})).json()
    assert (told["headers"]["content-type"], told["body"]) == (form, "a=1&b=x+y")


@pytest.mark.parametrize(("parameters", "status"), [(100, 200), (101, 413)])
async def test_a_hundred_parameters_are_forwarded(
    product: Product, upstream: Upstream, parameters: int, status: int
) -> None:
    await configure(product, upstream)
    answer = await ask(product, query="?" + "&".join(f"p{n}=1" for n in range(parameters)))
    assert answer.status_code == status
    assert len(upstream.seen) == (status == 200)


async def test_what_is_the_callers_own_stays_here(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream, headers={"Authorization": "of-the-source", "Cookie": "of-the-source"})
    token = product.tokens["user"]
    told = (await ask(product, "POST", json={}, headers={"Cookie": "mine", "Te": "trailers"})).json()[
        "headers"
    ]
    assert (told["authorization"], told["cookie"]) == ("of-the-source", "of-the-source")
    assert token not in orjson.dumps(told).decode()
    assert "te" not in told


async def test_token_in_the_body_is_no_part_of_it(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream)
    body = {"access_token": product.tokens["user"], "x": 1}
    answer = await ask(product, "POST", role=None, json=body)
    assert orjson.loads(answer.json()["body"]) == {"x": 1}


async def test_status_type_and_body_come_back(product: Product, upstream: Upstream, service: Service) -> None:
    await configure(product, upstream)
    service.status, service.reply = 418, (b"a;b\n", "text/csv; charset=utf-8")
    service.headers = {"Set-Cookie": "a=b", "X-Else": "c"}
    answer = await ask(product, headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.content) == (418, b"a;b\n")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers
    assert "x-else" not in answer.headers


async def test_packed_reply_comes_back_unpacked(
    product: Product, upstream: Upstream, service: Service
) -> None:
    await configure(product, upstream)
    service.reply, service.headers = (gzip.compress(b"[1]"), "application/json"), {"Content-Encoding": "gzip"}
    assert (await ask(product)).json() == [1]


@pytest.mark.parametrize(
    ("role", "own", "foreign", "draft"),
    [
        ("admin", 200, 200, 200),
        ("producer", 200, 404, 200),
        ("user", 200, 404, 200),
        ("client", 200, 200, 403),
        (None, 401, 401, 401),
    ],
)
async def test_who_may(
    product: Product, upstream: Upstream, role: str | None, own: int, foreign: int, draft: int
) -> None:
    await configure(product, upstream)
    await configure(product, upstream, project="foreign")
    await configure(product, upstream, revision="r2", version="2", status="draft")
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert (await ask(product, method, role=role)).status_code == own
        assert (await ask(product, method, role=role, project="foreign")).status_code == foreign
        assert (await ask(product, method, role=role, version="2")).status_code == draft


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
async def test_another_account_sees_nothing(product: Product, upstream: Upstream, role: str) -> None:
    await configure(product, upstream)
    assert (await ask(product, role=role, account="other")).status_code == 404
    assert upstream.seen == []


async def test_id_wins_over_version(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream, revision="r1", version="x", query={"from": "version"})
    await configure(product, upstream, revision="x", version="2", query={"from": "id"})
    assert (await ask(product, version="x")).json()["path"] == "/api?from=id"
    assert (await ask(product, version="r1")).json()["path"] == "/api?from=version"


@pytest.mark.parametrize(("version", "source"), [("2", "a"), ("1", "b")])
async def test_unknown_revision_or_source_is_not_found(
    product: Product, upstream: Upstream, version: str, source: str
) -> None:
    await configure(product, upstream)
    assert (await ask(product, version=version, source=source)).status_code == 404


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_an_answer_of_the_upstream_is_told_from_ours(
    product: Product, upstream: Upstream, service: Service, status: int
) -> None:
    await configure(product, upstream)
    service.status = status
    answer, missing = await ask(product), await ask(product, source="b")
    assert (answer.status_code, answer.headers["x-upstream-status"]) == (status, str(status))
    assert "X-Upstream-Status" in answer.headers["access-control-expose-headers"]
    assert (missing.status_code, missing.headers.get("x-upstream-status")) == (404, None)


@pytest.mark.parametrize("status", [600, 999])
async def test_a_status_that_http_does_not_have_is_a_bad_gateway(
    product: Product, upstream: Upstream, service: Service, status: int
) -> None:
    await configure(product, upstream)
    service.status = status
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (502, "bad_gateway")
    assert "x-upstream-status" not in answer.headers


@pytest.mark.parametrize("kind", ["text/" + "x" * 60_000, "text/" + "x" * 251, "text/\xe9"])
async def test_a_type_that_is_no_header_of_ours_is_a_bad_gateway(
    product: Product, upstream: Upstream, service: Service, kind: str
) -> None:
    await configure(product, upstream)
    service.reply = b"{}", kind
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (502, "bad_gateway")


async def test_method_that_the_source_does_not_allow(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream, methods=["GET"])
    by_source, by_path = await ask(product, "PUT"), await ask(product, "PATCH")
    assert (by_source.status_code, by_source.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (by_path.status_code, by_path.headers["allow"]) == (405, "DELETE, GET, HEAD, OPTIONS, POST, PUT")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://localhost/",
        "http://169.254.169.254/latest/",
        "http://[::1]/",
        "http://0x7f.1/",
    ],
)
async def test_refused_address_is_forbidden(product: Product, upstream: Upstream, url: str) -> None:
    await configure(product, upstream, url=url)
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden_url")


@pytest.mark.parametrize("members", [{"url": "ftp://x/"}, {"url": "http://u:p@x/"}, {"type": "sheet"}])
async def test_source_that_cannot_be_used_is_told(
    product: Product, upstream: Upstream, members: dict[str, Any]
) -> None:
    await configure(product, upstream, **members)
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


@pytest.mark.parametrize(("size", "status"), [(LIMIT, 200), (LIMIT + 1, 502)])
async def test_reply_is_bounded(
    product: Product, upstream: Upstream, service: Service, size: int, status: int
) -> None:
    await configure(product, upstream)
    service.reply = (b"x" * size, "text/plain")
    answer = await ask(product)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"] == "bad_gateway"


async def test_silent_upstream_is_a_gateway_timeout(
    product: Product, upstream: Upstream, service: Service
) -> None:
    await configure(product, upstream, timeoutMs=200)
    service.gate.clear()
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (504, "gateway_timeout")


async def test_dead_upstream_is_a_bad_gateway(product: Product, upstream: Upstream, service: Service) -> None:
    await configure(product, upstream)
    service.status = 99999
    answer = await ask(product)
    assert (answer.status_code, answer.json()["error"]) == (502, "bad_gateway")


async def test_good_reply_is_used_again_for_a_while(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream, cacheSeconds=60)
    first = await ask(product)
    product.clock.forward_ms += 50_000
    second = await ask(product, role="producer")
    assert first.content == second.content
    assert first.headers["cache-control"] == "private, max-age=60"
    assert 8 <= int(second.headers["cache-control"].removeprefix("private, max-age=")) <= 10
    assert len(upstream.seen) == 1
    product.clock.forward_ms += 11_000
    await ask(product)
    assert len(upstream.seen) == 2


async def test_a_reply_is_no_older_than_the_source_that_asks_allows(
    product: Product, upstream: Upstream
) -> None:
    await configure(product, upstream, cacheSeconds=3_600)
    await configure(product, upstream, revision="r2", version="2", cacheSeconds=10)
    await ask(product)
    product.clock.forward_ms += 5_000
    young = await ask(product, version="2")
    assert 4 <= int(young.headers["cache-control"].removeprefix("private, max-age=")) <= 5
    assert len(upstream.seen) == 1
    product.clock.forward_ms += 6_000
    assert (await ask(product, version="2")).headers["cache-control"] == "private, max-age=10"
    assert len(upstream.seen) == 2


async def test_another_request_is_another_reply(product: Product, upstream: Upstream) -> None:
    await configure(product, upstream, cacheSeconds=60, headers={"X-Key": "k"})
    await configure(product, upstream, project="foreign", cacheSeconds=60, headers={"X-Key": "k"})
    for sent in ({}, {"query": "?a=1"}, {"headers": {"X-Key": "mine"}}, {"project": "foreign"}):
        await ask(product, role="admin", **sent)  # type: ignore[arg-type]
    assert len(upstream.seen) == 4


@pytest.mark.parametrize(
    ("method", "status"), [("GET", 500), ("GET", 404), ("POST", 200), ("PUT", 200), ("DELETE", 200)]
)
async def test_what_is_not_kept(
    product: Product, upstream: Upstream, service: Service, method: str, status: int
) -> None:
    await configure(product, upstream, cacheSeconds=60)
    service.status = status
    for _ in range(2):
        assert (await ask(product, method)).headers["cache-control"] == "no-store"
    assert len(upstream.seen) == 2


async def test_equal_requests_at_the_same_time_are_sent_once(
    product: Product, upstream: Upstream, service: Service
) -> None:
    await configure(product, upstream, cacheSeconds=60)
    service.gate.clear()
    asking = [asyncio.create_task(ask(product)) for _ in range(5)]
    await service.wait_for(1)
    service.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    assert len(upstream.seen) == 1


async def test_project_has_a_bounded_share(product: Product, upstream: Upstream, service: Service) -> None:
    await configure(product, upstream)
    await configure(product, upstream, project="foreign")
    service.gate.clear()
    asking = [asyncio.create_task(ask(product)) for _ in range(2)]
    await service.wait_for(2)
    refused = await ask(product)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    other = asyncio.create_task(ask(product, role="admin", project="foreign"))
    service.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking, other)} == {200}
    assert (await ask(product)).status_code == 200


async def test_hurried_caller_is_slowed(migrated_dsn: str, upstream: Upstream) -> None:
    allow = (f"127.0.0.1:{upstream.port}",)
    async with open_product(
        migrated_dsn, fetch_allow_hosts=allow, fetch_rate_per_address=0.5, fetch_burst_per_address=2
    ) as product:
        async with product.door() as door:
            await door.post("/projects", json={"id": "own", "name": "own"})
        await configure(product, upstream)
        assert [(await ask(product)).status_code for _ in range(3)] == [200, 200, 429]


async def test_hung_up_callers_leave_the_share_free(
    product: Product, upstream: Upstream, service: Service
) -> None:
    await configure(product, upstream)
    service.gate.clear()
    asking = [asyncio.create_task(ask(product)) for _ in range(2)]
    await service.wait_for(2)
    for task in asking:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    service.gate.set()
    assert (await ask(product)).status_code == 200


async def test_revision_that_was_made_here_is_found(product: Product, upstream: Upstream) -> None:
    source = {"id": "a", "type": "api", "url": f"http://127.0.0.1:{upstream.port}/made", "query": {"b": "2"}}
    revision = {"version": "made", "status": "published", "content": {"dataSources": [source]}}
    async with product.door("producer") as door:
        made = await door.post("/projects/own/application/revisions", json=revision)
    assert made.status_code == 201, made.text
    for version in ("made", made.json()["id"]):
        assert (await ask(product, role="client", version=version)).json()["path"] == "/made?b=2"
