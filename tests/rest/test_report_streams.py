"""Long reports on their way from Matomo to a client: real sockets on both sides, and bytes as a test says."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn

from broker.analytics.matomo import MatomoConfig
from broker.domain.audit import Actor
from broker.storage.analytics import MatomoAccess
from tests.analytics.upstream import BLOCK, HEAD, Answer, Upstream, chunks, open_upstream, stall, table
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LIMIT = 44 << 20
REPORT = {"method": "Actions.getPageUrls", "period": "day", "date": "2026-07-01"}
PATH = "/api/v1/projects/own/analytics"


@pytest.fixture(scope="module")
async def served(module_dsn: str) -> AsyncIterator[tuple[Product, Upstream, str]]:
    async with (
        open_upstream() as upstream,
        open_product(module_dsn, token_lifetime_s=30_000_000, report_limit_bytes=LIMIT) as product,
    ):
        access = MatomoAccess(upstream.url, "secret-token", "reader", "secret-reader-token")
        await product.services.analytics.storage.set_access("demo", access, Actor.operator())
        async with product.door() as door:
            await door.post(
                "/projects", json={"id": "own", "name": "n", "metadata": {"analytics": {"idSite": "1"}}}
            )
        config = uvicorn.Config(
            product.app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        while not server.started:  # noqa: ASYNC110 - it tells by nothing else
            await asyncio.sleep(0.01)
        yield product, upstream, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = server.force_exit = True
        await serving


@pytest.fixture
async def product(served: tuple[Product, Upstream, str]) -> AsyncIterator[Product]:
    product = served[0]
    platforms = product.services.analytics
    platforms._config = MatomoConfig(timeout_s=20.0)
    platforms.replies._kept.clear()
    yield product
    for _ in range(500):  # the last client may be on its way out
        if not platforms.replies._busy:
            break
        await asyncio.sleep(0.02)
    assert not platforms.replies._busy
    assert not platforms.replies._asking
    assert platforms.replies._copied_bytes == 0


@pytest.fixture
async def upstream(served: tuple[Product, Upstream, str], product: Product) -> Upstream:
    upstream = served[1]
    upstream.__dict__.update(Upstream(url=upstream.url).__dict__)
    return upstream


@pytest.fixture
async def client(served: tuple[Product, Upstream, str], product: Product) -> AsyncIterator[httpx.AsyncClient]:
    async with product.door("user") as door:
        headers = {"Authorization": door.headers["Authorization"], "Host": "demo.localhost"}
    async with httpx.AsyncClient(
        base_url=served[2], headers=headers, params=REPORT, trust_env=False, timeout=30
    ) as client:
        yield client


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


async def test_parts_are_passed_on_as_they_come(client: httpx.AsyncClient, upstream: Upstream) -> None:
    gate = asyncio.Event()
    parts = table(8)

    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for part in parts[:6]:
            await upstream.chunk(writer, part)
        await gate.wait()
        for part in parts[6:]:
            await upstream.chunk(writer, part)
        writer.write(b"0\r\n\r\n")

    upstream.answer = answer
    content = b""
    async with client.stream("GET", PATH) as reply:
        assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["cache-control"] == "no-store"
        async for part in reply.aiter_raw():
            content += part
            if len(content) > 4 * len(BLOCK):
                gate.set()
    assert content == b"".join(parts)


async def test_memory_does_not_grow_with_the_report(client: httpx.AsyncClient, upstream: Upstream) -> None:
    peaks = []
    tracemalloc.start()
    try:
        for mebibytes in (2, 5, 40):  # the first warms up
            parts = table(mebibytes * 16)
            upstream.answer = chunks(*parts)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            received = 0
            async with client.stream("GET", PATH) as reply:
                async for part in reply.aiter_raw():
                    received += len(part)
            assert received == sum(map(len, parts))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + (1 << 20)
    assert peaks[2] < 6 << 20


async def test_a_slow_reader_holds_matomo_back_and_no_memory(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    parts = table(40 * 16)
    upstream.answer = chunks(*parts)
    tracemalloc.start()
    try:
        async with client.stream("GET", PATH) as reply:
            before, seen = tracemalloc.get_traced_memory()[0], -1
            while seen != upstream.sent_bytes:
                seen = upstream.sent_bytes
                await asyncio.sleep(1)
            assert seen < 30 << 20  # the rest is in buffers of the kernel's
            assert tracemalloc.get_traced_memory()[0] - before < 4 << 20
            received = 0
            async for part in reply.aiter_raw():
                received += len(part)
    finally:
        tracemalloc.stop()
    assert received == sum(map(len, parts))


@pytest.mark.parametrize(
    "parts",
    [
        (b'{"result":"error","message":"', BLOCK * 8, b'"}'),
        (b' {\n"result" : "error","message":"', BLOCK * 8, b'"}'),
        (b"<br />\n<b>Warning</b>", BLOCK * 8),
        (BLOCK[:20], b"<html>"),
    ],
)
async def test_an_error_is_told_before_the_first_byte(
    client: httpx.AsyncClient, upstream: Upstream, parts: tuple[bytes, ...]
) -> None:
    upstream.answer = chunks(*parts)
    assert told(await client.get(PATH)) == (502, "bad_gateway")


async def test_a_declared_length_beyond_the_limit_is_an_error_at_once(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1))
        await asyncio.Event().wait()

    upstream.answer = answer
    reply = await client.get(PATH)
    assert told(reply) == (502, "bad_gateway")
    assert f"{LIMIT} bytes" in reply.json()["error_description"]
    await asyncio.wait_for(upstream.has_ended.wait(), 20)


@pytest.mark.parametrize(
    "answer",
    [
        chunks(*table(LIMIT // len(BLOCK) + 1)),
        chunks(*table(8)[:-1], end=b""),
        chunks(*table(8)[:-1], b"<b>Fatal error</b>: Allowed memory size exhausted"),
        stall,
    ],
    ids=["too long", "broken off", "no end", "stalled"],
)
async def test_what_goes_wrong_half_way_is_an_incomplete_transfer(
    client: httpx.AsyncClient,
    upstream: Upstream,
    product: Product,
    answer: Answer,
) -> None:
    if answer is stall:
        product.services.analytics._config = MatomoConfig(timeout_s=1.0)
    upstream.answer = answer
    async with client.stream("GET", PATH) as reply:
        assert reply.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            async for _ in reply.aiter_raw():
                pass
    upstream.answer = chunks(*table(8))
    assert (await client.get(PATH)).content == b"".join(table(8))  # nothing of it was kept


async def test_a_beginning_that_trickles_is_a_timeout(
    client: httpx.AsyncClient, upstream: Upstream, product: Product
) -> None:
    product.services.analytics._config = MatomoConfig(timeout_s=1.0)

    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            await upstream.chunk(writer, b"[")
            await asyncio.sleep(0.05)

    upstream.answer = answer
    assert told(await client.get(PATH)) == (504, "gateway_timeout")


async def test_a_compressed_reply_is_refused(client: httpx.AsyncClient, upstream: Upstream) -> None:
    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n[]")

    upstream.answer = answer
    assert told(await client.get(PATH)) == (502, "bad_gateway")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_goes_ends_the_request_to_matomo(
    client: httpx.AsyncClient, upstream: Upstream, begun: bool
) -> None:
    asked = asyncio.Event()

    async def answer(upstream: Upstream, writer: asyncio.StreamWriter) -> None:
        asked.set()
        if begun:
            await chunks(*table(8)[:-1], end=b"")(upstream, writer)
        await asyncio.Event().wait()

    upstream.answer = answer
    if begun:
        async with client.stream("GET", PATH) as reply:
            assert reply.status_code == 200
    else:
        asking = asyncio.ensure_future(client.get(PATH))
        await asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.wait_for(upstream.has_ended.wait(), 15)  # less than the limit of time


async def test_when_the_first_client_goes_the_next_one_asks(
    client: httpx.AsyncClient, upstream: Upstream, product: Product
) -> None:
    async def hang(_upstream: Upstream, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def has_asked(count: int) -> None:
        while upstream.asked < count:  # noqa: ASYNC110 - it is on the other side of a socket
            await asyncio.sleep(0.01)

    upstream.answer = hang
    first = asyncio.ensure_future(client.get(PATH))
    await asyncio.wait_for(has_asked(1), 15)
    second = asyncio.ensure_future(client.get(PATH))
    while len(product.services.analytics.replies._asking) == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    upstream.answer = chunks(b"[]")
    first.cancel()
    reply = await asyncio.wait_for(second, 15)
    assert (reply.status_code, reply.content) == (200, b"[]")


async def test_head_of_a_long_report_ends_the_request(client: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.answer = stall
    reply = await client.head(PATH)
    assert (reply.status_code, reply.content) == (200, b"")
    await asyncio.wait_for(upstream.has_ended.wait(), 15)


@pytest.mark.parametrize(("blocks", "asked"), [(2, 1), (8, 1), (20, 2)])
async def test_what_fits_the_cache_is_kept(
    client: httpx.AsyncClient, upstream: Upstream, blocks: int, asked: int
) -> None:
    upstream.answer = chunks(*table(blocks))
    for _ in range(2):
        assert (await client.get(PATH)).content == b"".join(table(blocks))
    assert upstream.asked == asked
    again = await client.get(PATH)
    assert again.headers["cache-control"].startswith("private, max-age=" if asked == 1 else "no-store")


async def test_equal_requests_for_a_long_report_all_get_it(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = chunks(*table(30))
    replies = await asyncio.gather(*(client.get(PATH) for _ in range(4)))
    assert {reply.content == b"".join(table(30)) for reply in replies} == {True}


async def test_an_account_has_a_bounded_share_of_the_connections(
    client: httpx.AsyncClient, upstream: Upstream, product: Product
) -> None:
    replies = product.services.analytics.replies
    replies._busy[("demo",)] = 24
    upstream.answer = chunks(b"[]")
    assert told(await client.get(PATH)) == (429, "slow_down")
    del replies._busy[("demo",)]
    assert (await client.get(PATH)).status_code == 200
