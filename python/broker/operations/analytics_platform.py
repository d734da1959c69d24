"""The Matomo of an account: credentials and connections.

The default account's is that of the settings; `broker account set` gives any account one of its own, the
default account too. An operator chooses the address, so it may be inside the network.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from broker.analytics.errors import AnalyticsNotConfigured
from broker.analytics.matomo import Matomo, MatomoConfig, open_http
from broker.analytics.setup import Platform
from broker.analytics.site import SiteIds
from broker.analytics.wanted import Wanted, WantedError, load_wanted
from broker.errors import NotFound
from broker.ids import IdSource
from broker.operations.report_replies import ReportReplies
from broker.settings import SettingError, Settings, environment_name
from broker.storage.analytics import Analytics, AnalyticsProject, Lease, MatomoAccess

# A set-up renews its lease before each change, so it lasts longer than one takes, and then for as long as
# Matomo may still be at work on one whose answer did not come.
_LEASE_SPARE_S = 30.0


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
        storage: Analytics,
        replies: ReportReplies,
        wanted: Wanted,
    ) -> None:
        self.storage = storage
        self.replies = replies
        self.wanted = wanted
        self._settings = settings
        self._ids = ids
        self._config = MatomoConfig(timeout_s=settings.matomo_timeout_s)
        # Opened when they are needed: most processes never do. Slow readers of reports hold connections, so
        # set-ups have their own.
        self._http: httpx.AsyncClient | None = None
        self._report_http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
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
        """The id of the project's site. Raises NotFound without one, and where it is another account's."""
        id_site = opened.ids.id_site
        if id_site is None:
            raise NotFound(f"the project {opened.project.id} has no analytics site")
        if await self.storage.others(account, opened.access.url, [id_site]):
            raise NotFound(f"the project {opened.project.id} has no analytics site")
        return id_site

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
