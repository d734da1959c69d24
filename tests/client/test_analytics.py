"""Analytics by the SDK and by `broker analytics`, against the real HTTP door and the stand-in Matomo."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import uvicorn

from broker.cli.main import run
from broker.client import AsyncClient, Client, InsufficientScope, NotFound, ServerError
from broker.demo.matomo import StandIn, open_stand_in
from tests.analytics.conftest import peer_of
from tests.auth.services import PASSWORD
from tests.client.samples import run_sample, samples_of
from tests.product import open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def opened(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[tuple[str, StandIn]]:
    async with (
        open_stand_in() as stand_in,
        open_product(migrated_dsn, **peer_of(stand_in).settings) as product,
    ):
        config = uvicorn.Config(
            product.app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        while not server.started:  # noqa: ASYNC110 - it tells by nothing else
            await asyncio.sleep(0.01)
        url = f"http://demo.localhost:{server.servers[0].sockets[0].getsockname()[1]}"
        async with AsyncClient(url, username="admin", password=PASSWORD) as client:
            for project in ("own", "other"):
                await client.projects.create(project, project_id=project)
        yield url, stand_in
        server.should_exit = True
        await serving


async def test_the_sample_of_the_page_runs(opened: tuple[str, StandIn]) -> None:
    page = Path(__file__).parents[2] / "docs" / "sdk.md"
    samples = samples_of(page, {"football": "own"})
    (sample,) = (text for text in samples if "create_site" in text)
    async with AsyncClient(opened[0], username="admin", password=PASSWORD) as client:
        told = await run_sample(sample, client)
    assert told[0].startswith("ok "), told
    assert "setSiteId" in told[2]


async def test_the_calls(opened: tuple[str, StandIn]) -> None:
    url, stand_in = opened
    async with AsyncClient(url, username="admin", password=PASSWORD) as client:
        assert (await client.analytics.get_site("own")).status == "not-created"
        with pytest.raises(NotFound):
            await client.analytics.get_report("own", "VisitsSummary.get", period="day", date="today")
        site = await client.analytics.create_site("own")
        assert (site.status, site.id_site, site.proxy_has_access) == ("ok", "1", True)
        with pytest.raises(ServerError, match="Already exists"):
            await client.analytics.create_site("own")
        stand_in.sites[1].reports.clear()
        assert (await client.analytics.get_site("own")).missing_reports[0] == {"name": "Programs"}
        assert (await client.analytics.complete_site("own")).status == "ok"
        report = await client.analytics.get_report("own", "VisitsSummary.get", period="day", date="today")
        assert report["nb_visits"] == 0
        with pytest.raises(InsufficientScope):
            await client.analytics.get_report("own", "SitesManager.getAllSites")
        assert "setSiteId" in await client.analytics.get_snippet("own")


async def test_the_same_without_asyncio(opened: tuple[str, StandIn]) -> None:
    def use() -> None:
        with Client(opened[0], username="admin", password=PASSWORD) as client:
            assert client.analytics.create_site("own").status == "ok"
            assert client.analytics.get_report("own", "Actions.getPageUrls", period="day", date="today") == []

    await asyncio.to_thread(use)


async def test_the_commands(opened: tuple[str, StandIn], capsys: pytest.CaptureFixture[str]) -> None:
    url, stand_in = opened
    login = ["--url", url, "--username", "admin", "--password", PASSWORD]

    async def command(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(run, ["analytics", "site", *words, *login])
        told = capsys.readouterr()
        return status, told.out + told.err

    assert await command("status", "own") == (
        1,
        "not-created: the project has no site yet; POST creates it\n",
    )
    status, text = await command("create", "own")
    assert (status, text.splitlines()[:2]) == (0, ["ok: the site is complete", "  site 1"])
    assert "  dimension action.programEvent is 4" in text.splitlines()
    assert await command("create", "own") == (
        1,
        "error: 500 Already exists: the project already has a site: verify it with GET, finish it with PUT\n",
    )
    stand_in.sites[1].reports.clear()
    assert (await command("status", "own"))[0] == 1
    assert (await command("complete", "own"))[0] == 0
    status, text = await command("status", "own", "--json")
    assert (status, orjson.loads(text)["status"]) == (0, "ok")
