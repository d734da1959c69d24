"""A client of a front door: the SDK, an event stream, and the headers that caches go by.

The front door is told a forged address too. The product is to have its limit of WebSockets and streams of one
address at two, which are in use while the third is tried.
"""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.exceptions import InvalidStatus

from broker.client import Answer, AsyncClient
from broker.client.address import websocket_options
from broker.client.connection_pool import LoopbackTransport
from tests.deployments.front_doors import HOST
from tests.deployments.instance import PASSWORD

_FORGED = {"X-Forwarded-For": "6.6.6.6"}
_WAIT_S = 60.0
_RESULTS = "/api/v1/responses/demo/whoWins/results"


async def use(url: str, program: str) -> None:
    """Log in, publish, vote, read, subscribe and follow a stream, from the address of this loop.

    Args:
        program: is created, and is the id of one of the requests.
    """
    async with (
        asyncio.timeout(_WAIT_S),
        AsyncClient(url, username="admin", password=PASSWORD) as client,
        httpx.AsyncClient(transport=LoopbackTransport(), base_url=url, headers=_FORGED) as web,
    ):
        await client.programs.create(program, "Behind a front door")
        poll = await client.publish(program, "Poll#show", {"title": "Who wins?", "options": ["A", "B"]})
        vote = [Answer("whoWins", poll.id, 1, "visitor-1")]
        assert (await client.responses.add(program, vote)).accepted == 1
        reply = await web.get("/api/v1/version", headers={"X-Request-Id": program})
        assert (reply.status_code, reply.headers["x-request-id"]) == (200, program)
        assert reply.headers["strict-transport-security"] == "max-age=31536000"
        await _read_results(web, {"programId": program, "contextId": poll.id})
        seen = []
        async for event in client.subscribe(program, history=10):
            seen.append(event.event)
            if len(seen) == 2:
                break
            await client.publish(program, "Goal#show", {"home": 1})
            await _follow(web, client, program)
        assert seen == ["Poll#show", "Goal#show"]


async def _read_results(web: httpx.AsyncClient, params: dict[str, str]) -> None:
    """What caches go by comes through as it is."""
    results = await web.get(_RESULTS, params=params)
    while results.json()["total"] != 1:
        await asyncio.sleep(0.1)  # they may be a second old
        results = await web.get(_RESULTS, params=params)
    assert results.headers["cache-control"] == "public, max-age=1, s-maxage=5"
    known = {"If-None-Match": results.headers["etag"]}
    again = await web.get(_RESULTS, params=params, headers=known)
    assert (again.status_code, again.headers["etag"]) == (304, results.headers["etag"])


async def _follow(web: httpx.AsyncClient, client: AsyncClient, program: str) -> None:
    """A stream comes as it is written; with it and the WebSocket of `client` the address has all it may."""
    advice = (await web.get("/api/v1/connect", params={"programId": program})).json()
    async with web.stream("GET", advice["streamUrl"], params={"history": 1}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        assert await anext(line async for line in lines if line == "event: subscribed")
        await client.publish(program, "Card#show")
        assert await anext(line async for line in lines if "Card#show" in line)
        options = websocket_options(advice["url"]) | {"additional_headers": _FORGED}
        with pytest.raises(InvalidStatus) as refused:
            await websockets.connect(advice["url"], **options)
        assert refused.value.response.status_code == 429


def offered_protocol(port: int, certificate: Path) -> str | None:
    """What a front door chooses of HTTP/2 and HTTP/1.1."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), 20) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as peer,
    ):
        return peer.selected_alpn_protocol()
