"""Long reports of Matomo through the real ingress: on their way, cut, and left by their client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.analytics.upstream import Upstream, chunks, hang, open_upstream, stall, table
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(480)]

REPORT = "/analytics?method=Actions.getPageUrls&period=day&date=today"


@pytest.fixture
async def upstream(instance: Instance, anyio_backend: str) -> AsyncIterator[Upstream]:
    """The instance's Matomo."""
    port = httpx.URL(instance.environment["BROKER_MATOMO_URL"]).port
    async with open_upstream(port or 0) as upstream:
        yield upstream


@pytest.fixture
async def client(instance: Instance, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    """Reads reports of a project of its own."""
    project = f"reports-{uuid4().hex}"
    async with httpx.AsyncClient(
        base_url=f"{instance.url}/api/v1", headers=instance.token(), trust_env=False, timeout=60
    ) as client:
        body = {"id": project, "name": "Reports", "metadata": {"analytics": {"idSite": str(uuid4().int)[:9]}}}
        (await client.post("/projects", json=body)).raise_for_status()
        client.base_url = client.base_url.join(f"/api/v1/projects/{project}")
        yield client


async def test_a_report_is_whole_or_an_incomplete_transfer(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = chunks(*table(640))
    size = 0
    async with client.stream("GET", REPORT) as reply:
        async for part in reply.aiter_raw():
            size += len(part)
    assert size == sum(map(len, table(640)))
    for answer in (chunks(*table(900)), chunks(*table(8)[:-1], end=b"")):
        upstream.answer = answer
        async with client.stream("GET", REPORT) as reply:
            assert reply.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
                async for _ in reply.aiter_raw():
                    pass
    upstream.answer = chunks(b'{"result":"error","message":"no"}')
    assert (await client.get(REPORT)).status_code == 502


async def test_a_client_that_goes_ends_the_request_to_matomo(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = stall
    async with client.stream("GET", REPORT) as reply:
        assert reply.status_code == 200
    await asyncio.wait_for(upstream.has_ended.wait(), 25)  # before Matomo's own time is over
    upstream.has_ended.clear()
    upstream.answer = hang
    asking = asyncio.ensure_future(client.get(REPORT))
    while upstream.asked < 2:  # noqa: ASYNC110 - it is in another process
        await asyncio.sleep(0.02)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.wait_for(upstream.has_ended.wait(), 25)


async def test_tokens_are_in_no_log(
    client: httpx.AsyncClient, upstream: Upstream, instance: Instance
) -> None:
    upstream.answer = hang
    with pytest.raises(httpx.ReadTimeout):
        await client.get(REPORT, timeout=1)
    upstream.answer = chunks(b"<html>")
    assert (await client.get(REPORT)).status_code == 502
    assert (await client.get("/analytics/site")).status_code == 500
    files = [path for path in (instance.data_dir / "log").rglob("*") if path.is_file()]
    assert files
    await asyncio.to_thread(_has_no_token, files)


def _has_no_token(files: list[Path]) -> None:
    assert not [path for path in files if b"token-of-matomo" in path.read_bytes()]
