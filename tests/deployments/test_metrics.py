"""The page of a node with two API replicas: all processes are there, and sums are right, whoever answers."""

import asyncio
from collections import defaultdict
from itertools import pairwise

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.client import AsyncClient, BadCredentials
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(480)]

Series = dict[tuple[str, ...], float]


def scrape(instance: Instance) -> dict[str, Series]:
    """All samples: name → the values of the labels, in the order of their names → value."""
    told: dict[str, Series] = defaultdict(dict)
    text = httpx.get(f"{instance.ops_url}/metrics", timeout=20).raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for label, value in sorted(sample.labels.items()) if label != "node")
            assert labels not in told[sample.name], "no series stands twice on a page"
            told[sample.name][labels] = sample.value
    return told


def of(series: Series, *values: str) -> dict[str, float]:
    """The values by process number, of samples with all these label values."""
    return {
        label: value
        for labels, value in series.items()
        for label in labels
        if label.isdigit() and set(values) <= set(labels)
    }


async def ask(instance: Instance, times: int) -> set[str]:
    """Requests over as many connections; the pids of replicas that they reached are not told."""

    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=30, limits=limits) as client:
        replies = await asyncio.gather(*(client.get(f"{instance.url}/api/v1/version") for _ in range(times)))
    return {str(reply.status_code) for reply in replies}


async def test_all_processes_are_on_the_page_and_up(instance: Instance) -> None:
    up = scrape(instance)["broker_process_up"]
    kinds = sorted(next(label for label in labels if not label.isdigit()) for labels in up)
    # These run when a test has asked for images.
    kinds = [kind for kind in kinds if kind not in ("images", "faces")]
    assert kinds == ["api", "api", "conductor", "counter", "gateway", "owner", "owner"]
    assert set(up.values()) == {1.0}


async def test_requests_to_two_replicas_add_up(instance: Instance) -> None:
    before = of(scrape(instance)["broker_operations_total"], "api", "getVersion", "ok")
    assert await ask(instance, 200) == {"200"}
    pages = [scrape(instance) for _ in range(6)]  # of both replicas, as the ingress decides
    for told in pages:
        after = of(told["broker_operations_total"], "api", "getVersion", "ok")
        assert sum(after.values()) - sum(before.values()) == 200
        assert len([pid for pid, count in after.items() if count > before.get(pid, 0)]) == 2
    for earlier, later in pairwise(pages):
        for name, series in earlier.items():
            if name.endswith(("_total", "_bucket", "_count")):
                assert all(later[name][labels] >= value for labels, value in series.items()), name


async def test_what_is_done_is_told_by_who_did_it(instance: Instance) -> None:
    before = scrape(instance)
    async with AsyncClient(instance.url, username="admin", password=PASSWORD) as client:
        await client.programs.create("counted", "Counted")
        for _ in range(3):
            await client.publish("counted", "Score#update", {})
    with pytest.raises(BadCredentials):
        async with AsyncClient(instance.url, username="nobody", password="wrong") as stranger:
            await stranger.programs.list()
    after = scrape(instance)

    def grown(name: str, *labels: str) -> float:
        return sum(of(after[name], *labels).values()) - sum(of(before[name], *labels).values())

    assert grown("broker_committed_total", "owner") >= 3
    assert grown("broker_commit_duration_seconds_count", "owner") >= 1
    assert grown("broker_write_duration_seconds_count", "owner") >= 3
    assert set(after["broker_ready"].values()) == {1.0}
    assert {part for labels in after["broker_ready"] for part in labels} >= {"database", "owners", "gateways"}
    assert grown("broker_logins_failed_total", "api") == 1
    assert grown("broker_http_responses_total", "api", "4xx") >= 1
    assert sum(of(after["broker_slot_generation"], "owner-0").values()) >= 1
    assert sum(of(after["broker_database_connections_max"], "api").values()) == 16
    assert of(after["broker_gateways"], "conductor").popitem()[1] == 1
    assert set(after["broker_queue_length"].values()) == {0.0}
