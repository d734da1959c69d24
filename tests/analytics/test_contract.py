"""What Matomo is expected to do, proved on the stand-in and, where the environment names one, on a real one.

Everything here goes through our own client, and makes sites of its own.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from broker.analytics.errors import MatomoError, SiteNotFound
from broker.analytics.matomo import Matomo, MatomoConfig, Request, open_http
from broker.analytics.plan import State, Status, assess
from broker.analytics.setup import Platform, SiteProject, complete, read_site, read_state
from broker.analytics.site import Reader, SiteIds, parse_id
from broker.analytics.wanted import Scope, Wanted, load_wanted
from tests.analytics.conftest import Peer

pytestmark = pytest.mark.anyio

WANTED = load_wanted()
MAX_BYTES = 50 << 20


@dataclass
class Diary:
    """A notebook of this process."""

    metadata: dict[str, Any]
    after: int | None = None

    async def begin(self) -> None:
        if self.after is not None:
            self.after -= 1
            if self.after < 0:
                raise ConnectionResetError("broken off")

    async def keep(self, ids: SiteIds) -> None:
        self.metadata = ids.merged_into(self.metadata)


@pytest.fixture
async def http(anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_http(MatomoConfig()) as http:
        yield http


@pytest.fixture
def platform(peer: Peer, http: httpx.AsyncClient) -> Platform:
    config = MatomoConfig()
    return Platform(
        Matomo(http, peer.url, peer.token, config),
        Matomo(http, peer.url, peer.reader_token, config),
        peer.reader,
    )


@pytest.fixture
def project() -> SiteProject:
    return SiteProject(f"contract-{secrets.token_hex(8)}", "A <name> & more: " + "x" * 100)


async def set_up(platform: Platform, project: SiteProject, diary: Diary, wanted: Wanted = WANTED) -> State:
    ids = SiteIds.of_metadata(diary.metadata)
    return await complete(wanted, platform, project, await read_state(platform, project, ids), diary)


async def whole(matomo: Matomo, request: Request) -> bytes:
    """A report that fits the look-ahead."""
    report = await matomo.open_report(request, MAX_BYTES)
    await report.close()
    assert report.is_whole
    return report.beginning


async def has_custom_reports(platform: Platform) -> bool:
    return bool(await platform.provisioning.read("API.isPluginActivated", pluginName="CustomReports"))


async def test_a_site_is_set_up(platform: Platform, project: SiteProject) -> None:
    diary = Diary({"title": "T"})
    state = await set_up(platform, project, diary)
    told = assess(WANTED, state)
    if await has_custom_reports(platform):
        assert (told.status, told.message) == (Status.OK, "the site is complete")
    else:
        assert told.status is Status.INCOMPLETE
        assert (
            told.message == "the plugin CustomReports is not active in Matomo, so there are no custom reports"
        )
    assert state.found is not None
    assert (state.found.group, state.found.reader) == (project.id, Reader.VIEW)
    assert diary.metadata["analytics"]["idSite"] == state.ids.id_site
    action = diary.metadata["analytics"]["dimensionIds"]["action"]
    assert set(action) == {"program", "programEvent", "component", "responseName"}
    assert {one.id for one in state.found.dimensions or ()} == {
        *action.values(),
        *diary.metadata["analytics"]["dimensionIds"]["visit"].values(),
    }


async def test_broken_off_anywhere_it_is_completed_by_repeating(
    platform: Platform, project: SiteProject
) -> None:
    diary = Diary({})
    for after in (1, 1, 0, 2, 3, 1):
        diary.after = after
        with pytest.raises(ConnectionResetError):
            await set_up(platform, project, diary)
    diary.after = None
    state = await set_up(platform, project, diary)
    group = await platform.provisioning.read("SitesManager.getSitesFromGroup", group=project.id)
    assert len(group) == 1
    assert state.found is not None
    assert len(state.found.dimensions or ()) == len(WANTED.dimensions)
    assert assess(WANTED, state).step is None


async def test_what_metadata_does_not_know_is_found_by_the_group(
    platform: Platform, project: SiteProject
) -> None:
    first, second = Diary({}), Diary({})
    await set_up(platform, project, first)
    state = await set_up(platform, project, second)
    assert first.metadata == second.metadata
    assert state.found is not None
    assert len(state.found.dimensions or ()) == len(WANTED.dimensions)


async def test_groups_are_told_apart_letter_by_letter(platform: Platform, project: SiteProject) -> None:
    await set_up(platform, project, Diary({}))
    other = SiteProject(project.id.upper(), "Other")
    state = await read_state(platform, other, SiteIds())
    assert state.candidates == ()


async def test_a_site_that_is_gone_is_not_found(platform: Platform, project: SiteProject) -> None:
    with pytest.raises(SiteNotFound, match="Matomo has no site 4000000"):
        await read_state(platform, project, SiteIds("4000000"))


async def test_slots_run_out(platform: Platform, project: SiteProject) -> None:
    diary = Diary({})
    state = await set_up(platform, project, diary)
    id_site = state.ids.id_site or ""
    matomo = platform.provisioning
    for number in range(3):
        new = await matomo.change(
            "CustomDimensions.configureNewCustomDimension",
            idSite=id_site, name=f"More {number}", scope="visit", active=number % 2,
        )  # fmt: skip
        assert parse_id(new)
    found = await read_site(platform, id_site)
    assert (found.free_slots["visit"], found.free_slots["action"]) == (0, 1)
    assert [one.is_active for one in found.dimensions or () if one.name.startswith("More")] == [
        False,
        True,
        False,
    ]
    with pytest.raises(MatomoError, match="already used"):
        await matomo.change(
            "CustomDimensions.configureNewCustomDimension",
            idSite=id_site, name="One more", scope="visit", active=1,
        )  # fmt: skip


async def test_extractions_come_back_as_they_were_sent(platform: Platform, project: SiteProject) -> None:
    wanted = Wanted.model_validate(
        {
            "version": 1,
            "dimensions": [
                {
                    "name": "Page",
                    "scope": "action",
                    "caseSensitive": False,
                    "extractions": [{"dimension": "url", "pattern": "/page/([^<&]+)"}],
                }
            ],
        }
    )
    state = await set_up(platform, project, Diary({}), wanted)
    assert assess(wanted, state).status is Status.OK


async def test_errors_come_with_status_200_and_are_errors(platform: Platform) -> None:
    with pytest.raises(MatomoError, match="Matomo refuses SitesManager"):
        await platform.provisioning.read("SitesManager.getSiteFromId", idSite="4000000")
    good, bad = await platform.provisioning.read_all(
        Request("API.getMatomoVersion", {}), Request("SitesManager.getSiteFromId", {"idSite": "4000000"})
    )
    assert good.startswith("5.")
    assert isinstance(bad, MatomoError)


async def test_missing_rights_are_an_error_and_no_refused_token(
    platform: Platform, project: SiteProject
) -> None:
    site = await platform.provisioning.change("SitesManager.addSite", siteName="N", group=project.id)
    with pytest.raises(MatomoError, match="Matomo refuses SitesManager") as refused:
        await platform.reading.read("SitesManager.getSiteFromId", idSite=str(site))
    assert not refused.value.is_refused_token
    with pytest.raises(MatomoError, match="'superuser' access"):
        await platform.reading.change("SitesManager.addSite", siteName="N")


async def test_a_wrong_token_is_told_from_an_outage(peer: Peer, http: httpx.AsyncClient) -> None:
    matomo = Matomo(http, peer.url, "wrong", MatomoConfig())
    for method in ("API.getMatomoVersion", "API.getBulkRequest", "VisitsSummary.get"):
        with pytest.raises(MatomoError) as refused:
            await matomo.read(method)
        assert refused.value.is_refused_token


async def test_a_reader_whose_token_is_wrong(
    peer: Peer, http: httpx.AsyncClient, platform: Platform, project: SiteProject
) -> None:
    state = await set_up(platform, project, Diary({}))
    wrong = Platform(platform.provisioning, Matomo(http, peer.url, "wrong", MatomoConfig()), peer.reader)
    found = await read_site(wrong, state.ids.id_site or "")
    assert found.reader is Reader.REFUSED


async def test_a_reader_that_is_not_there(platform: Platform, project: SiteProject) -> None:
    nobody = Platform(platform.provisioning, platform.reading, "nobody-of-this-name")
    with pytest.raises(MatomoError, match=r"User 'nobody-of-this-name' doesn't exist\."):
        await set_up(nobody, project, Diary({}))


async def test_a_report_is_read_as_the_reader(platform: Platform, project: SiteProject) -> None:
    state = await set_up(platform, project, Diary({}))
    parameters = {"idSite": state.ids.id_site or "", "period": "day", "date": "today"}
    assert b'"nb_visits":0' in await whole(platform.reading, Request("VisitsSummary.get", parameters))
    ids = SiteIds.of_metadata(state.ids.merged_into({})).dimensions[Scope.ACTION]
    of_dimension = parameters | {"idDimension": ids["program"]}
    asked = Request("CustomDimensions.getCustomDimension", of_dimension)
    assert await whole(platform.reading, asked) == b"[]"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("VisitsSummary.get", {"period": "day", "date": "bogus"}),
        ("VisitsSummary.get", {"date": "today"}),
        ("VisitsSummary.get", {"idSite": "4000000", "period": "day", "date": "today"}),
        ("NoPlugin.get", {"period": "day", "date": "today"}),
    ],
)
async def test_a_report_that_matomo_refuses(
    platform: Platform, project: SiteProject, method: str, parameters: dict[str, str]
) -> None:
    state = await set_up(platform, project, Diary({}))
    sent = {"idSite": state.ids.id_site or ""} | parameters
    with pytest.raises(MatomoError):
        await platform.reading.open_report(Request(method, sent), MAX_BYTES)


async def test_what_is_in_the_query_wins_over_the_body(
    peer: Peer, platform: Platform, project: SiteProject
) -> None:
    """Why nothing of a caller's may ever come into the URL."""
    state = await set_up(platform, project, Diary({}))
    sent = {
        "module": "API",
        "format": "json",
        "token_auth": peer.token,
        "method": "SitesManager.getSiteFromId",
    }
    async with httpx.AsyncClient(base_url=peer.url, trust_env=False) as plain:
        answer = await plain.post(f"/index.php?idSite={state.ids.id_site}", data=sent | {"idSite": "4000000"})
    assert answer.json()["group"] == project.id


@pytest.mark.parametrize("name", [" idSite", "idSite%00x", "token.auth"])
async def test_php_reads_odd_names_as_the_real_ones(
    peer: Peer, platform: Platform, project: SiteProject, name: str
) -> None:
    """Why names of callers are compared letter by letter with those that are allowed."""
    state = await set_up(platform, project, Diary({}))
    wrong = "wrong" if "token" in name else "4000000"
    body = (
        f"module=API&format=json&method=SitesManager.getSiteFromId&idSite={state.ids.id_site}"
        f"&token_auth={peer.token}&{name.replace(' ', '%20')}={wrong}"
    )
    async with httpx.AsyncClient(base_url=peer.url, trust_env=False) as plain:
        answer = await plain.post(
            "/index.php", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    assert project.id not in answer.text


async def test_two_dimensions_at_once_race(platform: Platform, project: SiteProject) -> None:
    """Why set-ups of one project come one after the other. A real Matomo wins the race most of the time."""
    site = str(await platform.provisioning.change("SitesManager.addSite", siteName="N", group=project.id))
    await asyncio.gather(
        *(
            platform.provisioning.change(
                "CustomDimensions.configureNewCustomDimension",
                idSite=site, name=f"D {number}", scope="visit", active=1,
            )
            for number in range(4)
        ),
        return_exceptions=True,
    )  # fmt: skip
    found = await read_site(platform, site)
    assert 1 <= len(found.dimensions or ()) <= 4
    assert found.free_slots["visit"] == 5 - len(found.dimensions or ())
