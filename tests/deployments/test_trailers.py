"""Headers end where the body begins, and what counts once is there once: raw requests to a replica's server.

The server is uvicorn with the protocol that replicas use, and the application is the API's own. The same
through the ingress is in `test_killers.py`.
"""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
import uvicorn

from broker.deployments.ray_internals.joined_writes import JoiningProtocol
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

HOST = "Host: demo.localhost"
CHUNKED = ["Content-Type: application/json", "Transfer-Encoding: chunked"]
BODY = "2\r\n{}\r\n0\r\n"


@pytest.fixture(scope="module")
async def product(module_dsn: str) -> AsyncIterator[Product]:
    async with open_product(module_dsn) as product:
        yield product


@pytest.fixture(scope="module")
async def port(product: Product) -> AsyncIterator[int]:
    config = uvicorn.Config(product.app, port=0, lifespan="off", http=JoiningProtocol, log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has nothing else to wait for
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def ask(
    port: int, *lines: str, body: str = "", in_parts: bool = False
) -> tuple[int, dict[str, object]]:
    """Status and body of the reply to a raw request, which may come byte by byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body.encode()
    for at in range(0, len(sent), 1 if in_parts else len(sent)):
        writer.write(sent[at : at + (1 if in_parts else len(sent))])
        await asyncio.sleep(0)
    head, _, told = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), orjson.loads(told)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize(
    "trailer",
    [
        "Host: nobody.localhost",
        "Authorization: Bearer x",
        "Authorization: nonsense",
        "X-Forwarded-For: 1.2.3.4",
    ],
)
async def test_a_trailer_is_no_header(port: int, trailer: str, in_parts: bool) -> None:
    status, told = await ask(
        port,
        "POST /api/v1/servertime HTTP/1.1",
        HOST,
        *CHUNKED,
        body=f"{BODY}{trailer}\r\n\r\n",
        in_parts=in_parts,
    )
    assert (status, list(told)) == (200, ["serverTime"])


async def test_the_next_request_of_the_connection_has_its_headers(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first = "\r\n".join(["POST /api/v1/servertime HTTP/1.1", HOST, *CHUNKED, "", BODY + "Host: x\r\n\r\n"])
    second = "\r\n".join(
        ["GET /api/v1/programs HTTP/1.1", HOST, "Authorization: Bearer x", "Connection: close"]
    )
    writer.write(f"{first}{second}\r\n\r\n".encode())
    told = (await reader.read()).decode()
    writer.close()
    assert told.count("HTTP/1.1 200") == 1
    assert "the access token is malformed" in told


@pytest.mark.parametrize(
    "repeated",
    [
        [HOST, HOST],
        [HOST, "Host: other.localhost"],
        [HOST, "Authorization: Bearer x", "Authorization: Bearer y"],
        [HOST, "X-Request-Id: a", "X-Request-Id: b"],
        [HOST, "Content-Type: application/json", "content-type: application/json"],
        [HOST, "Idempotency-Key: a", "Idempotency-Key: b"],
    ],
)
async def test_what_counts_once_is_there_once(port: int, repeated: list[str]) -> None:
    status, told = await ask(port, "GET /api/v1/version HTTP/1.1", *repeated)
    assert (status, told["error"]) == (400, "invalid_request")
    assert "must not be repeated" in str(told["error_description"])


async def test_lists_may_come_in_several_lines(port: int) -> None:
    lists = [
        "Accept: text/html",
        "Accept: application/json",
        "X-Forwarded-For: 1.1.1.1",
        "X-Forwarded-For: a",
    ]
    status, _ = await ask(port, "GET /api/v1/version HTTP/1.1", HOST, *lists)
    assert status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://demo.localhost/api/v1/version", 200),
        ("HTTP://DEMO.localhost/api/v1/version", 200),
        ("http://other.localhost/api/v1/version", 400),
        ("http://demo.localhost:81/api/v1/version", 400),
        ("http://other.localhost@demo.localhost/api/v1/version", 400),
    ],
)
async def test_the_host_is_that_of_the_target(port: int, target: str, status: int) -> None:
    found, told = await ask(port, f"GET {target} HTTP/1.1", HOST)
    assert (found, told.get("error")) == (status, None if status == 200 else "invalid_request")
