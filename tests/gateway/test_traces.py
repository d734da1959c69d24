"""Traces from the HTTP request to the socket, in one process; `tests/deployments/test_traces.py` has all."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import orjson
import pytest

from tests.gateway.world import World, open_gateway, open_world
from tests.tracing.collector import INTERNAL, SERVER, Collector, Seen, open_collector

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CALLER = "b7ad6b7169203331"
WAY = ("http request", "publish", "fan-out", "deliver")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with open_collector() as collector:
        yield collector


@pytest.fixture
async def traced(migrated_dsn: str, collector: Collector) -> AsyncIterator[World]:
    """A world that traces what it is asked to, and nothing else."""
    settings = {"traces_url": collector.url, "traces_sample": 0.0, "ws_messages_per_s": 0}
    async with open_world(migrated_dsn, **settings) as world:
        yield world


async def post(world: World, program: str, trace: int | None = None) -> httpx.Response:
    """Publish an event over HTTP, as a part of a trace."""
    headers = {} if trace is None else {"traceparent": f"00-{trace:032x}-{CALLER}-01"}
    async with world.product.door() as door:
        return await door.post(f"/programs/{program}/events", json={"event": "A#b"}, headers=headers)


async def spans_of(collector: Collector, trace: int, *names: str) -> dict[str, Seen]:
    return await asyncio.to_thread(collector.wait, f"{trace:032x}", *names)


async def test_a_publish_is_followed_from_its_request_to_a_socket(
    traced: World, collector: Collector
) -> None:
    program = await traced.program()
    viewer = await traced.join()
    await viewer.call("subscribe", programId=program)
    assert (await post(traced, program, 1)).status_code == 201
    assert (await viewer.next("event"))["seq"] == 1
    spans = await spans_of(collector, 1, *WAY)
    assert set(spans) == set(WAY)
    parents = [CALLER, *(spans[name].span_id for name in WAY[:-1])]
    assert [spans[name].parent_id for name in WAY] == parents
    assert [spans[name].kind for name in WAY] == [SERVER, INTERNAL, INTERNAL, INTERNAL]
    assert [name for name, span in spans.items() if span.start_ns > span.end_ns] == []
    assert spans["http request"].attributes["http.response.status_code"] == 201
    assert spans["publish"].attributes["broker.program"] == program
    assert spans["deliver"].attributes["broker.look_s"] > 0


async def test_viewers_are_told_of_events_alone(traced: World, collector: Collector) -> None:
    program = await traced.program()
    viewer = await traced.join()
    await viewer.call("subscribe", programId=program)
    for trace in (2, None, 3):
        await post(traced, program, trace)
    assert [(await viewer.next("event"))["seq"] for _ in range(3)] == [1, 2, 3]
    await spans_of(collector, 3, "fan-out")
    assert {int(span.trace_id, 16) for span in collector.seen()} == {2, 3}


async def test_without_a_viewer_there_is_no_delivery(traced: World, collector: Collector) -> None:
    program = await traced.program()
    viewer = await traced.join()
    await viewer.call("subscribe", programId=program)
    await viewer.call("unsubscribe", programId=program)
    await post(traced, program, 4)
    assert set(await spans_of(collector, 4, "http request", "publish", "fan-out")) == set(WAY[:-1])


async def test_a_publish_that_fails_says_so(traced: World, collector: Collector) -> None:
    assert (await post(traced, "nowhere", 5)).status_code == 404
    spans = await spans_of(collector, 5, "http request", "publish")
    assert spans["publish"].attributes["error.type"] == "not_found"
    assert spans["http request"].attributes["http.response.status_code"] == 404


async def test_strangers_have_nothing_traced(traced: World, collector: Collector) -> None:
    program = await traced.program()
    everything = replace(traced, product=traced.product.with_settings(traces_sample=1.0))
    # What has such a name in it is read to the end, because it may be the caller's token.
    body = {"event": "A#b", "metadata": {"access_token": "of nobody"}}
    headers = {"traceparent": f"00-{6:032x}-{CALLER}-01"}
    async with everything.product.door(None) as door:
        reply = await door.post(f"/programs/{program}/events", json=body, headers=headers)
    assert reply.status_code == 401
    assert (await post(everything, program, 7)).status_code == 201
    await spans_of(collector, 7, "http request", "publish")
    assert {int(span.trace_id, 16) for span in collector.seen()} == {7}


async def test_lines_of_the_log_name_the_trace(traced: World, caplog: pytest.LogCaptureFixture) -> None:
    program = await traced.program()
    caplog.clear()
    with caplog.at_level("INFO", logger="broker.access"):
        await post(traced, program, 8)
        await post(traced, program)
        traced.product.app.close()
    texts = [record.getMessage() for record in caplog.records if record.name == "broker.access"]
    lines = [orjson.loads(line) for text in texts for line in text.splitlines()]
    assert [line.get("traceId") for line in lines if line["path"].endswith("/events")] == [f"{8:032x}", None]


async def test_gateway_without_a_collector_takes_what_is_traced(traced: World, collector: Collector) -> None:
    services = replace(traced.product.services, tracer=None)
    product = replace(traced.product, services=services)
    program = await traced.program()
    async with open_gateway(product, traced.link) as (gateway, port):
        world = World(product, gateway, port, traced.link)
        viewer = await world.join()
        await viewer.call("subscribe", programId=program)
        for trace in (9, None):
            await post(traced, program, trace)
        assert [(await viewer.next("event"))["seq"] for _ in range(2)] == [1, 2]
        await world.leave()
    assert set(await spans_of(collector, 9, "http request", "publish")) == {"http request", "publish"}
