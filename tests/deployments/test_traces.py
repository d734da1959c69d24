"""The whole product with a collector: one event on its way through all processes to a viewer."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from broker.client import AsyncClient
from tests.deployments.instance import PASSWORD, Instance
from tests.tracing.collector import Collector, open_collector

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
WAY = ("http request", "publish", "fan-out", "deliver")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with open_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Instance]:
    environment = {"BROKER_TRACES_URL": collector.url, "BROKER_TRACES_SAMPLE": "0"}
    instance = Instance(tmp_path_factory.mktemp("traces") / "data", environment=environment)
    with instance.running():
        yield instance
        instance.stop()


async def _publish_before_a_viewer(instance: Instance, collector: Collector) -> str:
    """Publish a traced event when a viewer follows by WebSocket, which gets it; returns the request's id.

    The viewer stays until its delivery was seen: without a subscriber there is none to see.
    """
    request_id = ""
    async with asyncio.timeout(120), AsyncClient(instance.url, username="admin", password=PASSWORD) as client:
        await client.programs.create("traced", "Traced")
        await client.publish("traced", "Show#begin")
        async for event in client.subscribe("traced", history=1):
            if event.event == "Show#begin":
                request_id = await asyncio.to_thread(_publish, instance)
            else:
                await asyncio.to_thread(collector.wait, TRACE, *WAY)
                break
    return request_id


def _publish(instance: Instance) -> str:
    """Publish as a part of a trace; returns the request's id."""
    reply = httpx.post(
        f"{instance.url}/api/v1/programs/traced/events",
        json={"event": "Score#update"},
        headers={**instance.token(), "traceparent": f"00-{TRACE}-{CALLER}-01"},
        timeout=20,
    )
    assert reply.status_code == 201
    return reply.headers["x-request-id"]


def test_one_event_is_one_trace_over_all_processes(instance: Instance, collector: Collector) -> None:
    request_id = asyncio.run(_publish_before_a_viewer(instance, collector))
    spans = collector.wait(TRACE, *WAY)
    assert set(spans) == set(WAY)
    parents = [CALLER, *(spans[name].span_id for name in WAY[:-1])]
    assert [spans[name].parent_id for name in WAY] == parents
    api, owner, *gateway = (spans[name].process["broker.part"] for name in WAY)
    assert (api, gateway) == ("api", ["gateway", "gateway"])
    assert owner in ("owner-0", "owner-1")
    assert len({spans[name].process["process.pid"] for name in WAY}) == 3
    assert spans["http request"].attributes["broker.request_id"] == request_id
    assert {span.trace_id for span in collector.seen()} == {TRACE}
    assert f'"traceId":"{TRACE}"' in _logged(instance, request_id)


def _logged(instance: Instance, request_id: str) -> str:
    """The line of the access log, which is written some time after the reply."""
    for _ in range(100):
        lines = (instance.data_dir / "log" / "broker.log").read_text().splitlines()
        for line in lines:
            if f'"requestId":"{request_id}"' in line:
                return line
        time.sleep(0.1)
    raise AssertionError(f"no line of {request_id} in the log")
