"""Executes the plan: reads the state of a site in Matomo and performs steps until none is left.

What is told to metadata goes through a `Notebook`, which the caller makes; whoever holds it is alone with the
project. Reading asks with both users: what the provisioning one sees, and whether the read-only one sees it.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker.analytics.errors import MatomoError, PlatformError, SiteNotFound
from broker.analytics.matomo import Matomo, Request
from broker.analytics.plan import (
    AddDimension,
    AddReport,
    AddSite,
    GrantView,
    KeepIds,
    SetupStep,
    State,
    advance,
    assess,
)
from broker.analytics.site import (
    FoundSite,
    Reader,
    SiteIds,
    parse_dimension,
    parse_id,
    parse_report,
)
from broker.analytics.wanted import Wanted

OLDEST_MAJOR_VERSION = 5
_MAX_SITE_NAME_CHARACTERS = 90  # of Matomo's column
_MAX_STEPS = 1_000  # a plan has some dozens; what goes on after so many goes round in circles
_VIEW = ("view", "write", "admin")  # each can view


class Notebook(Protocol):
    """Where a set-up writes what it knows. Only one set-up of a project has it at a time."""

    async def keep(self, ids: SiteIds) -> None:
        """Write ids to the project's metadata, durably, and nothing else of it.

        Raises:
            Conflict: another set-up has taken over meanwhile.
        """

    async def begin(self) -> None:
        """Make sure, before each step, that this set-up still has the project. Raises as `keep`."""


@dataclass(frozen=True, slots=True)
class Platform:
    """An account's Matomo: the provisioning user's view of it, and the read-only user's."""

    provisioning: Matomo
    reading: Matomo
    reader: str


@dataclass(frozen=True, slots=True)
class SiteProject:
    """The project whose site it is."""

    id: str
    name: str


async def read_state(platform: Platform, project: SiteProject, ids: SiteIds) -> State:
    """What the plan depends on.

    Raises:
        SiteNotFound: Matomo does not have the site that the ids name.
        MatomoError, PlatformError: Matomo fails or is too old.
    """
    if ids.is_malformed:
        return State(project.id, ids)
    if ids.id_site is None:
        sites = await _group_sites(platform.provisioning, project.id)
        return State(project.id, ids, tuple(sites))
    return State(project.id, ids, found=await read_site(platform, ids.id_site))


async def read_site(platform: Platform, id_site: str) -> FoundSite:
    """What Matomo has of a site. Raises as `read_state`."""
    told, seen = await asyncio.gather(
        _ask_site(platform.provisioning, id_site), _ask_reader(platform.reading), return_exceptions=True
    )
    for outcome in (told, seen):
        if isinstance(outcome, BaseException):
            raise outcome
    assert not isinstance(told, BaseException), "raised above"
    found, access = told
    is_listed = access.get(platform.reader) in _VIEW
    return replace(found, reader=_reader(seen, id_site, is_listed=is_listed))


async def complete(
    wanted: Wanted, platform: Platform, project: SiteProject, state: State, notebook: Notebook
) -> State:
    """Do steps until none is left, then read everything again: only Matomo knows whether it did what it said.

    Broken off anywhere, it can be begun again: what is there is found.

    Raises:
        SiteNotFound, MatomoError, PlatformError: as `read_state`.
        Conflict: see `Notebook`.
    """
    for _ in range(_MAX_STEPS):
        step = assess(wanted, state).step
        if step is None:
            return replace(state, found=await read_site(platform, _id_site(state)))
        await notebook.begin()
        new_id = await _do(step, platform, project, state, notebook)
        state = advance(state, step, new_id)
        if state.ids.id_site is not None and state.found is None:
            state = replace(state, found=await read_site(platform, state.ids.id_site))
    raise PlatformError("Matomo did not store the change")


async def _do(
    step: SetupStep, platform: Platform, project: SiteProject, state: State, notebook: Notebook
) -> str:
    """Do one step; returns the id of what it made, or nothing."""
    matomo = platform.provisioning
    match step:
        case AddSite():
            name = project.name[:_MAX_SITE_NAME_CHARACTERS]
            made = await matomo.change("SitesManager.addSite", siteName=name, group=project.id)
        case KeepIds(ids):
            await notebook.keep(ids)
            return ""
        case AddDimension(wanted):
            made = await matomo.change(
                "CustomDimensions.configureNewCustomDimension",
                idSite=_id_site(state),
                name=wanted.name,
                scope=wanted.scope.value,
                active=1,
                extractions=[
                    {"dimension": entry.dimension, "pattern": entry.pattern} for entry in wanted.extractions
                ],
                caseSensitive=int(wanted.case_sensitive),
            )
        case AddReport(wanted, dimensions):
            made = await matomo.change(
                "CustomReports.addCustomReport",
                idSite=_id_site(state),
                name=wanted.name,
                reportType=wanted.type,
                metricIds=list(wanted.metrics),
                dimensionIds=list(dimensions),
                description=wanted.description,
                segmentFilter=wanted.segment,
            )
        case GrantView():
            await matomo.change(
                "UsersManager.setUserAccess",
                userLogin=platform.reader,
                access="view",
                idSites=_id_site(state),
            )
            return ""
    new_id = parse_id(made)
    if new_id is None:
        raise PlatformError("Matomo did not return the id of what it created", log_text=f"{step!r}: {made!r}")
    return new_id


async def _ask_site(matomo: Matomo, id_site: str) -> tuple[FoundSite, dict[str, str]]:
    """The site, whose reader is not known yet, and what access users have to it."""
    of_site = {"idSite": id_site}
    version, has_dimensions, has_reports, site = await matomo.read_all(
        Request("API.getMatomoVersion", {}),
        Request("API.isPluginActivated", {"pluginName": "CustomDimensions"}),
        Request("API.isPluginActivated", {"pluginName": "CustomReports"}),
        Request("SitesManager.getSiteFromId", of_site),
    )
    _require_version(version)
    if not isinstance(site, dict) or parse_id(site.get("idsite")) != id_site:
        # A site that is not there is refused in words only, in the language of the user.
        known = await matomo.read("SitesManager.getSitesIdWithAtLeastViewAccess")
        if isinstance(known, list) and id_site not in [parse_id(one) for one in known]:
            raise SiteNotFound(f"Matomo has no site {id_site}")
        raise (
            site if isinstance(site, MatomoError) else PlatformError("Matomo returned no data of the site")
        )
    requests = [Request("UsersManager.getUsersAccessFromSite", of_site)]
    if _is_on(has_dimensions):
        requests.append(Request("CustomDimensions.getConfiguredCustomDimensions", of_site))
        requests.append(Request("CustomDimensions.getAvailableScopes", of_site))
    if _is_on(has_reports):
        requests.append(Request("CustomReports.getConfiguredReports", of_site))
    replies = iter(await matomo.read_all(*requests))
    access = _good(next(replies))
    found = FoundSite(
        site=site,
        dimensions=_parsed(parse_dimension, next(replies)) if _is_on(has_dimensions) else None,
        free_slots=_free_slots(next(replies)) if _is_on(has_dimensions) else {},
        reports=_parsed(parse_report, next(replies)) if _is_on(has_reports) else None,
        reader=Reader.NONE,
    )
    listed = access.items() if isinstance(access, dict) else ()
    return found, {str(login): str(right) for login, right in listed}


async def _ask_reader(matomo: Matomo) -> list[str] | None:
    """The sites that the read-only user sees; None when Matomo does not accept its token."""
    try:
        known = await matomo.read("SitesManager.getSitesIdWithAtLeastViewAccess")
    except MatomoError as error:
        if error.is_refused_token:
            return None
        raise
    return [str(one) for one in known] if isinstance(known, list) else []


async def _group_sites(matomo: Matomo, group: str) -> list[str]:
    """The sites of a group, ascending."""
    version, sites = await matomo.read_all(
        Request("API.getMatomoVersion", {}), Request("SitesManager.getSitesFromGroup", {"group": group})
    )
    _require_version(version)
    found = _good(sites)
    # Databases compare without regard to case and to spaces at the end; we do not.
    members = [one for one in found if isinstance(one, dict) and one.get("group") == group]
    ids = [parse_id(one.get("idsite")) for one in members]
    return sorted((id_ for id_ in ids if id_ is not None), key=int)


def _require_version(version: object) -> None:
    major = str(_good(version)).partition(".")[0]
    if not major.isdecimal() or int(major) < OLDEST_MAJOR_VERSION:
        raise PlatformError(f"Matomo is {str(version)[:20]}; {OLDEST_MAJOR_VERSION}.0 or newer is required")


def _good(reply: Any) -> Any:
    if isinstance(reply, MatomoError):
        raise reply
    return reply


def _is_on(reply: Any) -> bool:
    return _good(reply) in (True, 1, "1")


def _parsed(parse: Any, reply: Any) -> tuple[Any, ...]:
    found = _good(reply)
    try:
        return tuple(parse(one) for one in found)
    except (ValueError, TypeError, AttributeError) as error:
        raise PlatformError("Matomo's description of the site is malformed", log_text=repr(error)) from error


def _free_slots(reply: Any) -> dict[str, int]:
    scopes = _good(reply)
    try:
        return {str(one["value"]): int(one["numSlotsLeft"]) for one in scopes}
    except (ValueError, TypeError, KeyError) as error:
        raise PlatformError("Matomo did not return its free slots", log_text=repr(error)) from error


def _reader(seen: Any, id_site: str, *, is_listed: bool) -> Reader:
    if seen is None:
        return Reader.REFUSED
    if id_site in seen:
        return Reader.VIEW
    return Reader.OTHER if is_listed else Reader.NONE


def _id_site(state: State) -> str:
    assert state.ids.id_site is not None, "a site is there before steps on it"
    return state.ids.id_site
