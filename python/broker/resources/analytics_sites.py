"""The analytics site of a project: verify it, create it, complete it.

What is to be done follows from `broker.analytics.plan`; here are the callers, the lease that lets one set-up
of a project run at a time, and the object that all three answer. A set-up that ends leaves its lease at once;
one that dies, or after whose last request Matomo may still be at work, leaves it to time.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field

from broker.analytics.errors import (
    BadConfig,
    MatomoError,
    PlatformError,
    SiteExists,
    SiteNotFound,
    site_error,
)
from broker.analytics.plan import State, Status, assess
from broker.analytics.setup import SiteProject, complete, read_state
from broker.analytics.site import SiteIds
from broker.analytics.wanted import Scope, WantedDimension
from broker.domain import permissions
from broker.domain.audit import Actor, AuditEntry
from broker.domain.idempotency import Repeated
from broker.domain.values import FreeObject, Id, Model
from broker.errors import BrokerError, Conflict
from broker.operations.analytics_platform import AnalyticsPlatforms, OpenedProject
from broker.operations.context import Context
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Reply
from broker.storage.analytics import Lease

_SEE_GET = "call GET for details"


class SiteParams(Model):
    """Names a project."""

    project_id: Id


class DimensionIds(Model):
    """Ids of custom dimensions by their camelCase names."""

    visit: dict[str, str]
    action: dict[str, str]


class MissingDimension(Model):
    """A custom dimension that the site lacks."""

    name: str
    scope: Scope


class FaultyDimension(MissingDimension):
    """A custom dimension that is not as it should be."""

    reason: str
    ids: list[str] = Field(description="Matomo's ids of these dimensions.")


class MissingReport(Model):
    """A custom report that the site lacks."""

    name: str


class FaultyReport(MissingReport):
    """A custom report that is not as it should be."""

    reason: str
    ids: list[str] = Field(description="Matomo's ids of these reports.")


class SiteStatus(Model):
    """What a project's analytics site is like."""

    status: Status
    message: str = Field(description="The reason for the status.")
    id_site: str | None
    site: FreeObject | None = Field(description="The site as Matomo describes it.")
    dimensions: list[FreeObject] = Field(
        description="All custom dimensions of the site, as Matomo describes them."
    )
    dimension_ids: DimensionIds
    missing_dimensions: list[MissingDimension]
    bad_dimensions: list[FaultyDimension]
    reports: list[FreeObject] = Field(description="All custom reports of the site, as Matomo describes them.")
    report_ids: dict[str, str]
    bad_reports: list[FaultyReport]
    missing_reports: list[MissingReport]
    proxy_has_access: bool = Field(description="Whether the user that reads reports can view the site.")


async def _get_site(context: Context, params: SiteParams) -> SiteStatus:
    opened = await _opened(context, params.project_id)
    platforms, account = context.services.analytics, context.principal.account
    if opened.ids.id_site is None:
        return _status(State(opened.project.id, opened.ids), platforms)
    await _require_ours(platforms, account, opened)
    try:
        return _status(await _read(platforms, account, opened), platforms)
    except MatomoError as error:
        raise site_error(error) from error


async def _create_site(context: Context, params: SiteParams) -> Reply:
    status = await _apart(_create(context, params))
    return Reply(status, {"Location": f"/api/v1/projects/{params.project_id}/analytics/site"})


async def _complete_site(context: Context, params: SiteParams) -> SiteStatus:
    return await _apart(_finish(context, params))


async def _apart(work: Coroutine[Any, Any, SiteStatus]) -> SiteStatus:
    """Run a set-up in a task of its own, so that each of its writes commits by itself (`Database.unit`)."""
    return await asyncio.create_task(work, name="analytics set-up")


async def _create(context: Context, params: SiteParams) -> SiteStatus:
    await _opened(context, params.project_id)
    platforms = context.services.analytics
    async with _set_up(context, params.project_id, "created") as (opened, notebook):
        if opened.ids.id_site is not None or opened.ids.is_malformed:
            raise SiteExists("the project already has a site: verify it with GET, finish it with PUT")
        state = await _read(platforms, context.principal.account, opened)
        return await _complete(platforms, opened, state, notebook)


async def _finish(context: Context, params: SiteParams) -> SiteStatus:
    await _opened(context, params.project_id)
    platforms, account = context.services.analytics, context.principal.account
    async with _set_up(context, params.project_id, "completed") as (opened, notebook):
        if opened.ids.id_site is None and not opened.ids.is_malformed:
            raise BadConfig("the project has no site; create it with POST")
        await _require_ours(platforms, account, opened)
        state = await _read(platforms, account, opened)
        found = assess(platforms.wanted, state)
        if found.status is Status.ERRORS:
            raise BadConfig(f"{found.message}; {_SEE_GET}")
        await notebook.claim(opened.ids.id_site or "")
        return await _complete(platforms, opened, state, notebook)


async def _opened(context: Context, project_id: str) -> OpenedProject:
    permissions.require_project(context.rule, context.principal, project_id)
    return await context.services.analytics.open(context.principal.account, project_id)


async def _require_ours(platforms: AnalyticsPlatforms, account: str, opened: OpenedProject) -> None:
    id_site = opened.ids.id_site
    if id_site is not None and await platforms.storage.others(account, opened.access.url, [id_site]):
        raise _not_ours(id_site)


async def _read(platforms: AnalyticsPlatforms, account: str, opened: OpenedProject) -> State:
    platform = platforms.platform(opened.access)
    state = await read_state(platform, _project(opened), opened.ids)
    others = await platforms.storage.others(account, opened.access.url, state.candidates)
    return state.without(others)


async def _complete(
    platforms: AnalyticsPlatforms, opened: OpenedProject, state: State, notebook: "_Notebook"
) -> SiteStatus:
    """Do what is left to do. Raises BadConfig when that meets something that cannot be mended."""
    platform = platforms.platform(opened.access)
    state = await complete(platforms.wanted, platform, _project(opened), state, notebook)
    found = assess(platforms.wanted, state)
    if found.status is Status.ERRORS:
        raise BadConfig(f"{found.message}; {_SEE_GET}")
    return _status(state, platforms)


@asynccontextmanager
async def _set_up(
    context: Context, project_id: str, done: str
) -> AsyncIterator[tuple[OpenedProject, "_Notebook"]]:
    """Hold the project's lease for the block; the project is read when it is held.

    Raises:
        Conflict: another set-up has it.
        PlatformError: Matomo failed.
    """
    platforms, account = context.services.analytics, context.principal.account
    lease = platforms.lease(account, project_id)
    await platforms.storage.take_lease(lease)
    is_over = True
    try:
        await _require_first(context)
        opened = await platforms.open(account, project_id)
        yield (
            opened,
            _Notebook(platforms, opened, lease, Actor.of(context.principal), f"analyticsSite.{done}"),
        )
    except MatomoError as error:
        is_over = not error.is_going_on
        raise site_error(error) from error
    except (BrokerError, Repeated):
        raise
    except BaseException:  # cancelled, perhaps while Matomo is at work
        is_over = False
        raise
    finally:
        if is_over:
            await platforms.storage.release(lease)


async def _require_first(context: Context) -> None:
    """Raise Repeated when the request's key has a result, before anything is asked of Matomo."""
    if context.key is not None:
        kept = await context.services.idempotency.find(context.principal.account, context.key)
        if kept is not None:
            raise Repeated(kept)


class _Notebook:
    """Writes for one set-up; see `broker.analytics.setup.Notebook`. The first step is logged."""

    def __init__(
        self, platforms: AnalyticsPlatforms, opened: OpenedProject, lease: Lease, by: Actor, action: str
    ) -> None:
        self._storage = platforms.storage
        self._url = opened.access.url
        self._lease = lease
        self._entry: AuditEntry | None = AuditEntry(by, action, opened.project.id)

    async def begin(self) -> None:
        await self._storage.renew(self._lease, self._entry)
        self._entry = None

    async def keep(self, ids: SiteIds) -> None:
        assert ids.id_site is not None, "a plan keeps ids of a site"
        is_ours = await self._storage.keep(self._lease, self._url, ids.id_site, ids.merged_into)
        if not is_ours:
            raise Conflict("another account has taken over the site")

    async def claim(self, id_site: str) -> None:
        """Make the site the account's. Raises SiteNotFound when it is another one's."""
        if not await self._storage.claim(self._lease, self._url, id_site):
            raise _not_ours(id_site)


def _not_ours(id_site: str) -> SiteNotFound:
    """The error for an unknown site: to this account the site does not exist."""
    return SiteNotFound(f"Matomo has no site {id_site}")


def _project(opened: OpenedProject) -> SiteProject:
    return SiteProject(opened.project.id, opened.project.name)


def _status(state: State, platforms: AnalyticsPlatforms) -> SiteStatus:
    found, told = state.found, assess(platforms.wanted, state)
    ids = told.ids.dimensions
    # A site of another group is not the project's, so nothing of it is told.
    shown = found if found is not None and state.is_own else None
    return SiteStatus(
        status=told.status,
        message=told.message,
        id_site=state.ids.id_site,
        site=dict(shown.site) if shown else None,
        dimensions=[dict(one.raw) for one in shown.dimensions or ()] if shown else [],
        dimension_ids=DimensionIds(visit=dict(ids[Scope.VISIT]), action=dict(ids[Scope.ACTION])),
        missing_dimensions=[MissingDimension(**_named(one)) for one in told.missing_dimensions],
        bad_dimensions=[
            FaultyDimension(**_named(bad.wanted), reason=bad.reason, ids=list(bad.ids))
            for bad in told.bad_dimensions
        ],
        reports=[dict(one.raw) for one in shown.reports or ()] if shown else [],
        report_ids=dict(told.ids.reports),
        bad_reports=[
            FaultyReport(name=bad.wanted.name, reason=bad.reason, ids=list(bad.ids))
            for bad in told.bad_reports
        ],
        missing_reports=[MissingReport(name=one.name) for one in told.missing_reports],
        proxy_has_access=found is not None and state.is_own and found.can_be_read,
    )


def _named(wanted: WantedDimension) -> dict[str, Any]:
    return {"name": wanted.name, "scope": wanted.scope}


_PATH = "/projects/{projectId}/analytics/site"
_ONE = {"projectId": "football"}
_CONCURRENT = "While a set-up of the project is under way, another one is 409."

OPERATIONS = of_resource(
    "Analytics",
    Operation(
        name="getAnalyticsSite",
        summary="Verify a project's analytics site",
        handler=_get_site,
        route=Route(
            "GET",
            _PATH,
            description="Compares the required set-up of the site with Matomo's. The status is `errors` if"
            " PUT cannot correct a difference: an item exists twice, is inactive, or is defined"
            " differently.",
        ),
        errors=(SiteNotFound, PlatformError),
        example=_ONE,
    ),
    Operation(
        name="createAnalyticsSite",
        summary="Create a project's analytics site",
        result=SiteStatus,
        handler=_create_site,
        is_resumable=True,
        route=Route(
            "POST",
            _PATH,
            status=201,
            description="Makes a site with its custom dimensions and reports, lets the read-only user view"
            " it, and writes each id to the project's metadata as soon as it is known. Where an earlier call"
            f" was broken off, what it made is taken. {_CONCURRENT}",
            location="/projects/{projectId}/analytics/site",
            locates_itself=True,
        ),
        errors=(SiteExists, BadConfig, PlatformError),
        example=_ONE,
    ),
    Operation(
        name="completeAnalyticsSite",
        summary="Complete a project's analytics site",
        handler=_complete_site,
        is_resumable=True,
        route=Route(
            "PUT",
            _PATH,
            description="Adds what the site lacks, as POST does. Needs a site id in the project's metadata,"
            f" and GET must not answer `errors`. {_CONCURRENT}",
        ),
        errors=(SiteNotFound, BadConfig, PlatformError),
        example=_ONE,
    ),
)
