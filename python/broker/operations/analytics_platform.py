"""The Matomo of an account: credentials and connections.

The default account's is that of the settings; `broker account set` gives any account one of its own, the
default account too. An operator chooses the address, so it may be inside the network.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from broker.analytics.errors import AnalyticsNotConfigured, BadConfig, MatomoError, report_error
from broker.analytics.matomo import Matomo, MatomoConfig, open_http
from broker.analytics.plan import fault_of_group
from broker.analytics.setup import Platform
from broker.analytics.site import SiteIds, parse_id
from broker.analytics.wanted import Wanted, WantedError, load_wanted
from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.concurrency.loading_cache import LoadingCache
from broker.errors import BadGateway, NotFound
from broker.ids import IdSource
from broker.operations.report_replies import ReportReplies
from broker.settings import SettingError, Settings, environment_name
from broker.storage.analytics import Analytics, AnalyticsProject, Lease, MatomoAccess

# A set-up renews its lease before each change, so it lasts longer than one takes, and then for as long as
# Matomo may still be at work on one whose answer did not come.
_LEASE_SPARE_S = 30.0

# Whose site it is changes when somebody writes metadata or the site's group in Matomo, not with each report.
_OWNERSHIP_S = 60.0
_SITES = 10_000  # remembered at a time


@dataclass(frozen=True, slots=True)
class OpenedProject:
    """A project, the site that its metadata names, and its account's Matomo."""

    project: AnalyticsProject
    ids: SiteIds
    access: MatomoAccess


def wanted_of(settings: Settings) -> Wanted:
    """What sites should have. Raises SettingError for a file that cannot be used."""
    name = settings.matomo_setup
    try:
        return load_wanted(Path(name) if name else None)
    except WantedError as error:
        raise SettingError(f"BROKER_MATOMO_SETUP: {error}") from None


class AnalyticsPlatforms:
    """Opens projects' analytics. Use from one event loop; `close` ends all connections."""

    def __init__(
        self,
        settings: Settings,
        ids: IdSource,
        clock: Clock,
        storage: Analytics,
        replies: ReportReplies,
        wanted: Wanted,
    ) -> None:
        self.storage = storage
        self.replies = replies
        self.wanted = wanted
        self._settings = settings
        self._ids = ids
        self._faults: LoadingCache[tuple[str, str, str, str], str | None] = LoadingCache(
            clock, _OWNERSHIP_S, _SITES
        )
        # By Matomo and site, as last heard: a Matomo that is away says of no site that it is another's.
        self._groups: LruCache[tuple[str, str], str] = LruCache(_SITES)
        self._config = MatomoConfig(timeout_s=settings.matomo_timeout_s)
        # Opened when they are needed: most processes never do. Slow readers of reports hold connections, so
        # set-ups have their own.
        self._http: httpx.AsyncClient | None = None
        self._report_http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._faults.close()
        for http in (self._http, self._report_http):
            if http is not None:
                await http.aclose()

    async def open(self, account: str, project_id: str) -> OpenedProject:
        """A project with its account's Matomo.

        Raises:
            NotFound: no such project.
            AnalyticsNotConfigured: the account has no Matomo.
        """
        project = await self.storage.get_project(account, project_id)
        access = project.access or self._access_of_settings(account)
        return OpenedProject(project, SiteIds.of_metadata(project.metadata), access)

    async def require_own_site(self, account: str, opened: OpenedProject) -> str:
        """The id of the project's site.

        Raises:
            NotFound: it has none, or that is another account's.
            BadConfig: it is another project's.
            BadGateway, GatewayTimeout: Matomo does not say whose it is, and several projects name it.
        """
        id_site = opened.ids.id_site
        if id_site is None:
            raise NotFound(f"the project {opened.project.id} has no analytics site")
        if await self.storage.others(account, opened.access.url, [id_site]):
            raise NotFound(f"the project {opened.project.id} has no analytics site")
        key = (account, opened.project.id, opened.access.url, id_site)
        fault = await self._faults.load(key, lambda: self._find_fault(account, opened, id_site))
        if fault is not None:
            raise BadConfig(fault)
        return id_site

    async def _find_fault(self, account: str, opened: OpenedProject, id_site: str) -> str | None:
        """Why a site is not the project's. Matomo is asked only where there is doubt."""
        project_id = opened.project.id
        if not await self.storage.is_named_twice(account, project_id, id_site):
            return None
        return fault_of_group(await self._group(opened.access, id_site), project_id)

    async def _group(self, access: MatomoAccess, id_site: str) -> str:
        """The group of a site, as Matomo says or, while it does not, as it said last."""
        key = (access.url, id_site)
        try:
            provisioning = self.platform(access).provisioning
            site = await provisioning.read("SitesManager.getSiteFromId", idSite=id_site)
        except MatomoError as error:
            known = self._groups.get(key)
            if known is None:
                raise report_error(error) from error
            return known
        if not isinstance(site, dict) or parse_id(site.get("idsite")) != id_site:
            raise BadGateway("Matomo returned no data of the site")
        group = str(site.get("group") or "")
        self._groups.put(key, group)
        return group

    def platform(self, access: MatomoAccess) -> Platform:
        """The account's Matomo as its two users see it."""
        if self._http is None:
            self._http = open_http(self._config)
        provisioning = Matomo(self._http, access.url, access.token, self._config)
        reading = Matomo(self._http, access.url, access.reader_token, self._config)
        return Platform(provisioning, reading, access.reader)

    def reporting(self, access: MatomoAccess) -> Matomo:
        """The account's Matomo for reports, as the read-only user sees it."""
        if self._report_http is None:
            self._report_http = open_http(replace(self._config, connections=self._config.report_connections))
        return Matomo(self._report_http, access.url, access.reader_token, self._config)

    def lease(self, account: str, project_id: str) -> Lease:
        """A lease to be taken."""
        seconds = 2 * self._config.timeout_s + _LEASE_SPARE_S
        return Lease(account, project_id, self._ids.uuid7(), seconds)

    def _access_of_settings(self, account: str) -> MatomoAccess:
        settings = self._settings
        if account != settings.default_account:
            raise AnalyticsNotConfigured(
                "this account has no Matomo; configure it with `broker account set` (BROKER_MATOMO_URL and"
                " the others are the default account's)"
            )
        for name in ("matomo_url", "matomo_token", "matomo_reader", "matomo_reader_token"):
            if not getattr(settings, name):
                raise AnalyticsNotConfigured(f"analytics is not set up: {environment_name(name)} is missing")
        return MatomoAccess(
            settings.matomo_url.rstrip("/"),
            settings.matomo_token,
            settings.matomo_reader,
            settings.matomo_reader_token,
        )
