"""The plan: compares the required set-up of a site with Matomo's. Pure; all decisions are made here.

`assess` gives the status of a site together with the steps that complete it, so that what GET says and what
POST and PUT do cannot differ. `advance` says how the state looks once a step is done. Doing the first step
and assessing again, until there is none, leads to `ok`, from any state that is not `errors` and that Matomo
lets us complete; what was done stays done, so that it may be broken off and begun again after any step.

Dimensions and reports are found by their names: Matomo's ids in the project's metadata are a copy. Names are
compared as their keys (`broker.analytics.wanted`), because clients cannot tell apart what has the same key.
The ids that a step brings are written to metadata before the next step.

What cannot be mended by adding is an error: Matomo can neither delete a dimension nor change its scope, and
what a person has defined differently is not ours to overwrite.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from broker.analytics.site import Dimension, FoundSite, Reader, Report, SiteIds, report_dimension
from broker.analytics.wanted import Scope, Wanted, WantedDimension, WantedReport
from broker.domain.titles import camel_case

T = TypeVar("T", Dimension, Report)

_READER_FAULTS = {
    Reader.REFUSED: "Matomo does not accept the read-only user's token",
    Reader.OTHER: "the read-only user's token is not that of the user who has view access",
}


class Status(StrEnum):
    """What the interface calls the state of a site."""

    OK = "ok"
    INCOMPLETE = "incomplete"
    ERRORS = "errors"
    NOT_CREATED = "not-created"


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the plan depends on.

    Attributes:
        project_id: also the group of the project's site.
        ids: what the project's metadata holds.
        candidates: sites of the project's group, ascending; they matter while metadata names no site.
        found: the site that metadata names, None while it names none.
    """

    project_id: str
    ids: SiteIds
    candidates: tuple[str, ...] = ()
    found: FoundSite | None = None

    @property
    def is_own(self) -> bool:
        """Whether the site is in the project's group, or in none, as one that was made by hand may be."""
        return self.found is None or fault_of_group(self.found.group, self.project_id) is None

    def without(self, sites: Collection[str]) -> "State":
        """The same without some of the candidates."""
        return replace(self, candidates=tuple(one for one in self.candidates if one not in sites))


@dataclass(frozen=True, slots=True)
class AddSite:
    """Make a site in the project's group."""


@dataclass(frozen=True, slots=True)
class KeepIds:
    """Write the ids to the project's metadata."""

    ids: SiteIds


@dataclass(frozen=True, slots=True)
class AddDimension:
    """Add a custom dimension."""

    wanted: WantedDimension


@dataclass(frozen=True, slots=True)
class AddReport:
    """Add a custom report; `dimensions` are Matomo's names of those that it is about."""

    wanted: WantedReport
    dimensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrantView:
    """Let the read-only user see the site."""


SetupStep = AddSite | KeepIds | AddDimension | AddReport | GrantView


@dataclass(frozen=True, slots=True)
class BadDimension:
    """A dimension that is not as it should be; `ids` are those of Matomo that are meant, if there are any."""

    wanted: WantedDimension
    reason: str
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BadReport:
    """A report that is not as it should be."""

    wanted: WantedReport
    reason: str
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assessment:
    """The status of a site and what to do about it.

    Attributes:
        ids: the site's, of the dimensions and reports that are as they should be.
        step: the next thing to do; None when nothing is left that can be done.
    """

    status: Status
    message: str
    ids: SiteIds
    missing_dimensions: tuple[WantedDimension, ...] = ()
    bad_dimensions: tuple[BadDimension, ...] = ()
    missing_reports: tuple[WantedReport, ...] = ()
    bad_reports: tuple[BadReport, ...] = ()
    step: SetupStep | None = None


def fault_of_group(group: str, project_id: str) -> str | None:
    """Why a site of a group is not the project's; None where it is."""
    if group in ("", project_id):
        return None
    return f"the site belongs to the group {group} in Matomo, not to {project_id}"


def assess(wanted: Wanted, state: State) -> Assessment:
    """The status, and the next step."""
    if state.ids.is_malformed:
        return Assessment(
            Status.ERRORS, "the project's metadata.analytics.idSite is not the id of a site", state.ids
        )
    if state.ids.id_site is None or state.found is None:
        return _assess_absent(state)
    return _assess_found(wanted, state, state.found)


def advance(state: State, step: SetupStep, new_id: str = "") -> State:
    """The state after a step.

    Args:
        new_id: what Matomo called what the step made.
    """
    if isinstance(step, AddSite):
        return replace(state, candidates=(new_id,))
    if isinstance(step, KeepIds):
        return replace(state, ids=step.ids)
    found = state.found
    assert found is not None, "steps on a site follow from what was found"
    if isinstance(step, AddDimension):
        return replace(state, found=_with_dimension(found, step.wanted, new_id))
    if isinstance(step, AddReport):
        return replace(state, found=_with_report(found, step, new_id))
    return replace(state, found=replace(found, reader=Reader.VIEW))


def _assess_absent(state: State) -> Assessment:
    text = "the project has no site yet; POST creates it"
    if not state.candidates:
        return Assessment(Status.NOT_CREATED, text, state.ids, step=AddSite())
    # The oldest, so that whoever repeats takes the same.
    ids = SiteIds(min(state.candidates, key=int))
    return Assessment(Status.NOT_CREATED, text, state.ids, step=KeepIds(ids))


def _assess_found(wanted: Wanted, state: State, found: FoundSite) -> Assessment:
    fault = fault_of_group(found.group, state.project_id)
    if fault is not None:
        return Assessment(Status.ERRORS, fault, state.ids)
    if found.dimensions is None:
        return Assessment(
            Status.ERRORS, "the plugin CustomDimensions is not active in Matomo", state.ids,
            missing_dimensions=wanted.dimensions, missing_reports=wanted.reports,
        )  # fmt: skip
    dimensions = _judge_dimensions(wanted, state.ids, found)
    reports = _judge_reports(wanted, dimensions, found)
    known = state.ids
    kept = replace(
        known,
        dimensions={scope: {**known.dimensions[scope], **dimensions.ids[scope]} for scope in Scope},
        reports={**known.reports, **reports.ids},
    )
    return Assessment(
        *_status(state, found, kept, dimensions, reports),
        ids=SiteIds(known.id_site, dimensions=dimensions.ids, reports=reports.ids),
        missing_dimensions=dimensions.missing,
        bad_dimensions=dimensions.bad,
        missing_reports=reports.missing,
        bad_reports=reports.bad,
        step=_next_step(state, found, kept, dimensions, reports),
    )


@dataclass(frozen=True, slots=True)
class _Dimensions:
    ids: Mapping[Scope, Mapping[str, str]]
    missing: tuple[WantedDimension, ...]
    bad: tuple[BadDimension, ...]


@dataclass(frozen=True, slots=True)
class _Reports:
    ids: Mapping[str, str]
    missing: tuple[WantedReport, ...]
    bad: tuple[BadReport, ...]


def _judge_dimensions(wanted: Wanted, ids: SiteIds, found: FoundSite) -> _Dimensions:
    good: dict[Scope, dict[str, str]] = {scope: {} for scope in Scope}
    missing, bad = list[WantedDimension](), list[BadDimension]()
    free = {scope: found.free_slots.get(scope, 0) for scope in Scope}
    claimed = {(entry.scope, entry.key) for entry in wanted.dimensions}
    for entry in wanted.dimensions:
        same_key = [one for one in found.dimensions or () if camel_case(one.name) == entry.key]
        matches = [one for one in same_key if one.scope == entry.scope]
        elsewhere = [one for one in same_key if (one.scope, entry.key) not in claimed]
        renamed = _renamed(entry, ids, found, claimed)
        if matches:
            reason = _fault_of_dimensions(entry, matches)
            if reason:
                bad.append(BadDimension(entry, reason, _ids_of(matches)))
            else:
                good[entry.scope][entry.key] = matches[0].id
        elif elsewhere:
            reason = f"has the scope {elsewhere[0].scope}"
            bad.append(BadDimension(entry, reason, _ids_of(elsewhere)))
        elif renamed:
            bad.append(BadDimension(entry, f"is called {renamed.name}", (renamed.id,)))
        elif free[entry.scope] <= 0:
            bad.append(BadDimension(entry, f"has no free slot in the scope {entry.scope}"))
        else:
            free[entry.scope] -= 1
            missing.append(entry)
    return _Dimensions(good, tuple(missing), tuple(bad))


def _renamed(
    wanted: WantedDimension, ids: SiteIds, found: FoundSite, claimed: Collection[tuple[Scope, str]]
) -> Dimension | None:
    """The dimension that metadata names for this one and that now has a name of its own.

    To add another one would take a slot for ever and part the figures of before from those of after. Where it
    has the name of another that is wanted, metadata is left from an earlier site whose ids meant others.
    """
    known = ids.dimensions[wanted.scope].get(wanted.key)
    one = next((one for one in found.dimensions or () if one.id == known), None)
    if one is None or camel_case(one.name) == wanted.key:
        return None
    return None if (one.scope, camel_case(one.name)) in claimed else one


def _fault_of_dimensions(wanted: WantedDimension, found: Sequence[Dimension]) -> str:
    """What is wrong with the dimensions of a name and scope; empty when nothing is."""
    if len(found) > 1:
        return f"exists {len(found)} times"
    (one,) = found
    if not one.is_active:
        return "is not active"
    if one.name != wanted.name:
        return f"is called {one.name}"
    if one.extractions != tuple((entry.dimension, entry.pattern) for entry in wanted.extractions):
        return "is extracted differently"
    if wanted.extractions and one.case_sensitive is not wanted.case_sensitive:
        return "treats upper and lower case differently"
    return ""


def _judge_reports(wanted: Wanted, dimensions: _Dimensions, found: FoundSite) -> _Reports:
    if found.reports is None:
        return _Reports({}, wanted.reports, ())
    good: dict[str, str] = {}
    missing, bad = list[WantedReport](), list[BadReport]()
    for entry in wanted.reports:
        matches = [one for one in found.reports if camel_case(one.name) == entry.key]
        if not matches:
            missing.append(entry)
            continue
        reason = _fault_of_reports(entry, matches, dimensions)
        if reason:
            bad.append(BadReport(entry, reason, _ids_of(matches)))
        else:
            good[entry.key] = matches[0].id
    return _Reports(good, tuple(missing), tuple(bad))


def _fault_of_reports(wanted: WantedReport, found: Sequence[Report], dimensions: _Dimensions) -> str:
    """What is wrong with the reports of a name; empty when nothing is."""
    if len(found) > 1:
        return f"exists {len(found)} times"
    (one,) = found
    if not one.is_active:
        return "is not active"
    if one.name != wanted.name:
        return f"is called {one.name}"
    # Which dimension a report should be about is not known while that one is not as it should be itself.
    bad = {f"{entry.wanted.scope}.{entry.wanted.key}" for entry in dimensions.bad}
    has_known = bad.isdisjoint(wanted.dimensions)
    names = _report_dimensions(wanted, dimensions.ids)
    for is_same, what in (
        (one.type == wanted.type, f"is of the type {one.type}"),
        (not has_known or one.dimensions == names, "has other dimensions"),
        (one.metrics == frozenset(wanted.metrics), "has other metrics"),
        (one.segment == wanted.segment, "has another segment"),
    ):
        if not is_same:
            return what
    return ""


def _report_dimensions(
    wanted: WantedReport, ids: Mapping[Scope, Mapping[str, str]]
) -> tuple[str, ...] | None:
    """Matomo's names of a report's dimensions; None while one of them is not there as it should be."""
    names = []
    for name in wanted.dimensions:
        scope, _, key = name.partition(".")
        if scope not in [known.value for known in Scope]:
            names.append(name)
            continue
        found = ids[Scope(scope)].get(key)
        if found is None:
            return None
        names.append(report_dimension(found))
    return tuple(names)


def _status(
    state: State, found: FoundSite, kept: SiteIds, dimensions: _Dimensions, reports: _Reports
) -> tuple[Status, str]:
    faults = [f"the dimension {bad.wanted.name} {bad.reason}" for bad in dimensions.bad]
    faults += [f"the report {bad.wanted.name} {bad.reason}" for bad in reports.bad]
    faults += [_READER_FAULTS[found.reader]] if found.reader in _READER_FAULTS else []
    if faults:
        return Status.ERRORS, "; ".join(faults)
    lacks = [f"the dimension {entry.name} is missing" for entry in dimensions.missing]
    if found.reports is None and reports.missing:
        lacks.append("the plugin CustomReports is not active in Matomo, so there are no custom reports")
    else:
        lacks += [f"the report {entry.name} is missing" for entry in reports.missing]
    if kept != state.ids:
        lacks.append("the project's metadata lacks ids")
    if found.reader is Reader.NONE:
        lacks.append("the read-only user has no view access")
    if lacks:
        return Status.INCOMPLETE, "; ".join(lacks)
    return Status.OK, "the site is complete"


def _next_step(
    state: State, found: FoundSite, kept: SiteIds, dimensions: _Dimensions, reports: _Reports
) -> SetupStep | None:
    if dimensions.bad or reports.bad or found.reader in _READER_FAULTS:
        return None
    if kept != state.ids:
        return KeepIds(kept)
    if dimensions.missing:
        return AddDimension(dimensions.missing[0])
    if reports.missing and found.reports is not None:
        names = _report_dimensions(reports.missing[0], dimensions.ids)
        assert names is not None, "all dimensions are there, as none is missing or bad"
        return AddReport(reports.missing[0], names)
    return GrantView() if found.reader is Reader.NONE else None


def _with_dimension(found: FoundSite, wanted: WantedDimension, new_id: str) -> FoundSite:
    new = Dimension(
        new_id,
        wanted.name,
        wanted.scope,
        extractions=tuple((entry.dimension, entry.pattern) for entry in wanted.extractions),
        case_sensitive=wanted.case_sensitive,
    )
    free = {**found.free_slots, wanted.scope: found.free_slots.get(wanted.scope, 0) - 1}
    return replace(found, dimensions=(*(found.dimensions or ()), new), free_slots=free)


def _with_report(found: FoundSite, step: AddReport, new_id: str) -> FoundSite:
    wanted = step.wanted
    new = Report(new_id, wanted.name, wanted.type, step.dimensions, frozenset(wanted.metrics), wanted.segment)
    return replace(found, reports=(*(found.reports or ()), new))


def _ids_of(found: Sequence[T]) -> tuple[str, ...]:
    return tuple(one.id for one in found)
