"""Analytics of the demonstration: a site in the stand-in Matomo, some visits, and the report of them."""

import asyncio

import httpx

from broker.client import AsyncClient
from broker.demo.cast import PROJECT_ID
from broker.demo.matomo import READER, READER_TOKEN, TOKEN, StandIn

_VISITORS = 3


def settings_for(stand_in: StandIn) -> dict[str, str]:
    """The settings, by their names in the environment, of a product whose Matomo it is."""
    return {
        "BROKER_MATOMO_URL": stand_in.url,
        "BROKER_MATOMO_TOKEN": TOKEN,
        "BROKER_MATOMO_READER": READER,
        "BROKER_MATOMO_READER_TOKEN": READER_TOKEN,
    }


async def measure(client: AsyncClient, stand_in: StandIn) -> str:
    """Set the project's site up, send visits as an overlay does, and read their report; needs an admin.

    Returns:
        A line that says what came of it.
    """
    project = await client.projects.get(PROJECT_ID)
    if "analytics" in project.metadata:  # of an earlier run, whose stand-in is gone with its sites
        kept = {name: value for name, value in project.metadata.items() if name != "analytics"}
        await client.projects.update(PROJECT_ID, metadata=kept)
    site = await client.analytics.create_site(PROJECT_ID)
    async with httpx.AsyncClient(base_url=stand_in.url, trust_env=False) as overlay:
        visits = ({"idsite": site.id_site, "rec": 1, "_id": f"visitor-{n}"} for n in range(_VISITORS))
        await asyncio.gather(*(overlay.get("/matomo.php", params=visit) for visit in visits))
    report = await client.analytics.get_report(PROJECT_ID, "VisitsSummary.get", period="day", date="today")
    return (
        f"analytics: site {site.id_site} is {site.status}, and its report counts {report['nb_visits']} visits"
        f" (a stand-in for Matomo, at {stand_in.url})"
    )
