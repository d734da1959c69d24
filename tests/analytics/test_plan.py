"""`broker.analytics.plan`: on any site that Matomo can have."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.analytics.plan import (
    AddDimension,
    AddReport,
    AddSite,
    Assessment,
    GrantView,
    KeepIds,
    State,
    Status,
    advance,
    assess,
)
from broker.analytics.site import Dimension, FoundSite, Reader, Report, SiteIds, report_dimension
from broker.analytics.wanted import (
    Extraction,
    Scope,
    Wanted,
    WantedDimension,
    WantedReport,
    load_wanted,
)

PROJECT = "football"
WANTED = Wanted(
    version=1,
    dimensions=(
        WantedDimension(name="Platform", scope=Scope.VISIT),
        WantedDimension(name="Program", scope=Scope.VISIT),
        WantedDimension(name="Program", scope=Scope.ACTION),
        WantedDimension(
            name="Program event",
            scope=Scope.ACTION,
            extractions=(Extraction(dimension="urlparam", pattern="event"),),
        ),
    ),
    reports=(
        WantedReport(name="Programs", dimensions=("action.program", "Actions.PageUrl"), metrics=("hits",)),
        WantedReport(name="Platforms", dimensions=("visit.platform",), metrics=("nb_visits", "hits")),
    ),
)
NAMES = ["Platform", "Program", "program", "Program event", "Program Event", "Something else"]


@dataclass
class Model:
    """The simplest Matomo and project: what steps do to them."""

    metadata: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, FoundSite] = field(default_factory=dict)
    has_reports: bool = True
    changes: int = 0

    def state(self) -> State:
        ids = SiteIds.of_metadata(self.metadata)
        if ids.id_site is not None:
            return State(PROJECT, ids, found=self.sites[ids.id_site])
        group = [id_ for id_, found in self.sites.items() if found.group == PROJECT]
        return State(PROJECT, ids, candidates=tuple(group))

    def do(self, state: State) -> tuple[str, Any]:
        """The next step of the state, done; returns what Matomo called what was made."""
        step = assess(WANTED, state).step
        self.changes += step is not None
        id_site = state.ids.id_site or ""
        match step:
            case AddSite():
                new = str(len(self.sites) + 1)
                reports = () if self.has_reports else None
                self.sites[new] = FoundSite(
                    {"idsite": new, "group": PROJECT}, {"visit": 5, "action": 5}, (), reports, Reader.NONE
                )
                return new, step
            case KeepIds(ids):
                self.metadata = ids.merged_into(self.metadata)
                return "", step
            case AddDimension() | AddReport():
                found = self.sites[id_site]
                known = (found.dimensions if isinstance(step, AddDimension) else found.reports) or ()
                new = str(max((int(one.id) for one in known), default=0) + 1)
            case _:
                new = ""
        if step is not None:
            after = advance(replace(state, found=self.sites[id_site]), step, new)
            assert after.found is not None
            self.sites[id_site] = after.found
        return new, step


def complete(model: Model, most: int = 100) -> int:
    """Do as `broker.analytics.setup.complete` does, at most so many steps; returns how many were done."""
    state = model.state()
    for done in range(most):
        new_id, step = model.do(state)
        if step is None:
            return done
        state = advance(state, step, new_id)
        if state.ids.id_site is not None and state.found is None:
            state = replace(state, found=model.sites[state.ids.id_site])
    return most


ids_of_matomo = st.integers(1, 12).map(str)
dimensions = st.builds(
    Dimension,
    id=ids_of_matomo,
    name=st.sampled_from(NAMES),
    scope=st.sampled_from(["visit", "action"]),
    is_active=st.sampled_from([True, True, True, False]),
    extractions=st.sampled_from([(), (("urlparam", "event"),)]),
    case_sensitive=st.booleans(),
)
reports = st.builds(
    Report,
    id=ids_of_matomo,
    name=st.sampled_from(["Programs", "programs", "Platforms", "Mine"]),
    type=st.sampled_from(["table", "evolution"]),
    dimensions=st.sampled_from([("CustomDimension.CustomDimension1",), ()]),
    metrics=st.sampled_from([frozenset({"hits"}), frozenset({"nb_visits", "hits"})]),
    is_active=st.booleans(),
)
names_of_ids = st.dictionaries(
    st.sampled_from(["platform", "program", "programEvent", "mine"]), ids_of_matomo
)
stored_ids = st.fixed_dictionaries(
    {},
    optional={
        "idSite": st.sampled_from(["1", 1]),
        "dimensionIds": st.fixed_dictionaries({}, optional={"visit": names_of_ids, "action": names_of_ids}),
        "reportIds": names_of_ids,
        "note": st.just("kept"),
    },
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Any project and any site; half of the time what the site has is as it should be."""
    found = draw(st.lists(dimensions, max_size=6, unique_by=lambda one: one.id))
    site = FoundSite(
        site={"idsite": 1, "group": draw(st.sampled_from([PROJECT, "", "other"]))},
        free_slots={"visit": draw(st.integers(0, 5)), "action": draw(st.integers(0, 5))},
        dimensions=tuple(found),
        reports=draw(st.none() | st.lists(reports, max_size=3, unique_by=lambda one: one.id).map(tuple)),
        reader=draw(st.sampled_from([Reader.NONE, Reader.VIEW, Reader.VIEW, Reader.REFUSED, Reader.OTHER])),
    )
    ids: dict[str, Any] | None = draw(st.none() | stored_ids)
    model = Model({"title": "T"} if ids is None else {"title": "T", "analytics": ids}, {"1": site})
    if draw(st.booleans()):
        model.sites["1"] = replace(site, dimensions=(), free_slots={"visit": 5, "action": 5}, reports=())
        complete(model, draw(st.integers(0, 20)))
    return model


PROPERTY = settings(max_examples=200, suppress_health_check=list(HealthCheck))


def check_complete(model: Model) -> None:
    """One site, no double dimension, complete metadata."""
    state = model.state()
    assert state.found is not None
    kept = model.metadata["analytics"]
    for wanted in WANTED.dimensions:
        same = [
            one
            for one in state.found.dimensions or ()
            if one.name == wanted.name and one.scope == wanted.scope
        ]
        assert len(same) == 1
        assert kept["dimensionIds"][wanted.scope][wanted.key] == same[0].id
    for report in WANTED.reports:
        (one,) = [one for one in state.found.reports or () if one.name == report.name]
        assert kept["reportIds"][report.key] == one.id
    assert state.found.reader is Reader.VIEW


@PROPERTY
@given(models())
def test_the_plan_leads_to_ok_from_any_state_without_errors(model: Model) -> None:
    before, metadata = assess(WANTED, model.state()), model.metadata
    complete(model)
    after = assess(WANTED, model.state())
    if before.status is Status.ERRORS:
        assert (model.changes, model.metadata) == (0, metadata) or before.step is None
        return
    if before.status is Status.NOT_CREATED and after.status is Status.ERRORS:
        return  # a site of the group was taken, and it has errors
    assert after.step is None
    has_reports = model.state().found is not None and model.state().found.reports is not None  # type: ignore[union-attr]
    assert after.status is (Status.OK if has_reports else Status.INCOMPLETE)
    if has_reports:
        check_complete(model)


def test_ids_of_an_earlier_site_are_no_renamed_dimensions() -> None:
    """The first dimension of the new site gets the id that another one had on the earlier site."""
    model = Model({"analytics": {"dimensionIds": {"visit": {"program": "1"}}}})
    complete(model)
    assert assess(WANTED, model.state()).status is Status.OK
    check_complete(model)


@PROPERTY
@given(models())
def test_a_second_time_changes_nothing(model: Model) -> None:
    complete(model)
    metadata, changes = model.metadata, model.changes
    assert complete(model) == 0
    assert (model.metadata, model.changes) == (metadata, changes)


@PROPERTY
@given(st.lists(st.integers(0, 6), max_size=8))
def test_broken_off_after_any_steps_it_is_completed_by_repeating(breaks: list[int]) -> None:
    model = Model({"title": "T"})
    for most in breaks:
        complete(model, most)
    complete(model)
    assert len(model.sites) == 1
    assert assess(WANTED, model.state()).status is Status.OK
    check_complete(model)


@PROPERTY
@given(models())
def test_of_metadata_only_analytics_is_touched(model: Model) -> None:
    note = model.metadata.get("analytics", {}).get("note")
    complete(model)
    assert {**model.metadata, "analytics": None} == {"title": "T", "analytics": None}
    assert model.metadata.get("analytics", {}).get("note") == note


@PROPERTY
@given(models())
def test_steps_only_follow_from_what_is_not_ok(model: Model) -> None:
    told = assess(WANTED, model.state())
    if told.status in (Status.OK, Status.ERRORS):
        assert told.step is None
    assert told.message


# -- each fault, by name


def ready() -> Model:
    model = Model()
    complete(model)
    return model


def changed(model: Model, **changes: Any) -> Assessment:
    model.sites["1"] = replace(model.sites["1"], **changes)
    return assess(WANTED, model.state())


def dimensions_of(model: Model) -> list[Dimension]:
    return list(model.sites["1"].dimensions or ())


def test_a_project_without_site_is_not_created() -> None:
    told = assess(WANTED, Model().state())
    assert (told.status, told.step) == (Status.NOT_CREATED, AddSite())


def test_of_several_sites_of_the_group_the_oldest_is_taken() -> None:
    told = assess(WANTED, State(PROJECT, SiteIds(), candidates=("10", "9")))
    assert told.step == KeepIds(SiteIds("9"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_active": False}, "is not active"),
        ({"extractions": ()}, "is extracted differently"),
        ({"case_sensitive": False}, "treats upper and lower case differently"),
        ({"name": "Program Event"}, "is called Program Event"),
        ({"name": "Another"}, "is called Another"),
        ({"scope": "visit"}, "has the scope visit"),
    ],
)
def test_a_dimension_that_is_not_as_it_should_be(change: dict[str, Any], reason: str) -> None:
    model = ready()
    found = dimensions_of(model)
    found[3] = replace(found[3], **change)
    told = changed(model, dimensions=tuple(found))
    assert (told.status, [bad.reason for bad in told.bad_dimensions]) == (Status.ERRORS, [reason])
    assert told.bad_dimensions[0].ids == (found[3].id,)


def test_a_dimension_that_is_there_twice() -> None:
    model = ready()
    found = dimensions_of(model)
    told = changed(model, dimensions=(*found, replace(found[0], id="9")))
    assert [bad.reason for bad in told.bad_dimensions] == ["exists 2 times"]
    assert told.bad_dimensions[0].ids == (found[0].id, "9")


def test_no_free_slot() -> None:
    model = ready()
    model.metadata["analytics"]["dimensionIds"]["visit"] = {}
    told = changed(model, dimensions=tuple(dimensions_of(model)[1:]), free_slots={"visit": 0, "action": 1})
    assert told.status is Status.ERRORS
    assert told.message.startswith("the dimension Platform has no free slot in the scope visit")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_active": False}, "is not active"),
        ({"type": "evolution"}, "is of the type evolution"),
        ({"dimensions": ()}, "has other dimensions"),
        ({"metrics": frozenset({"nb_visits"})}, "has other metrics"),
        ({"segment": "deviceType==tv"}, "has another segment"),
        ({"name": "PROGRAMS"}, "is called PROGRAMS"),
    ],
)
def test_a_report_that_is_not_as_it_should_be(change: dict[str, Any], reason: str) -> None:
    model = ready()
    found = list(model.sites["1"].reports or ())
    found[0] = replace(found[0], **change)
    told = changed(model, reports=tuple(found))
    assert (told.status, [bad.reason for bad in told.bad_reports]) == (Status.ERRORS, [reason])


def test_without_the_plugin_the_rest_is_completed_and_the_message_names_it() -> None:
    model = Model(has_reports=False)
    complete(model)
    told = assess(WANTED, model.state())
    assert told.status is Status.INCOMPLETE
    assert "CustomReports" in told.message
    assert told.missing_reports == WANTED.reports
    assert told.missing_dimensions == ()
    assert model.state().found.reader is Reader.VIEW  # type: ignore[union-attr]


def test_a_dimension_is_missing_while_the_reports_on_it_are_there() -> None:
    model = ready()
    told = changed(model, dimensions=tuple(dimensions_of(model)[:2]))
    assert told.status is Status.ERRORS  # the report is about a dimension that is gone
    assert [one.key for one in told.missing_dimensions] == ["program", "programEvent"]


@pytest.mark.parametrize("reader", [Reader.REFUSED, Reader.OTHER])
def test_a_reader_that_cannot_be_helped(reader: Reader) -> None:
    told = changed(ready(), reader=reader)
    assert (told.status, told.step) == (Status.ERRORS, None)


def test_a_reader_without_view_access_gets_it() -> None:
    told = changed(ready(), reader=Reader.NONE)
    assert (told.status, told.step) == (Status.INCOMPLETE, GrantView())


def test_a_site_of_another_group_is_not_touched() -> None:
    told = changed(ready(), site={"idsite": 1, "group": "other"})
    assert (told.status, told.step) == (Status.ERRORS, None)
    assert told.message == "the site belongs to the group other in Matomo, not to football"


@pytest.mark.parametrize(
    "value", ["all", "1,2", "0", "-1", 0, 1.0, True, ["1"], {"1": "1"}, "1 ", "\u0661", "", "1\n"]
)
def test_what_is_no_id_of_one_site_is_none(value: Any) -> None:
    ids = SiteIds.of_metadata({"analytics": {"idSite": value}})
    assert (ids.id_site, ids.is_malformed) == (None, True)
    assert assess(WANTED, State(PROJECT, ids)).status is Status.ERRORS


def test_ids_that_are_missing_in_metadata_are_written() -> None:
    model = ready()
    model.metadata["analytics"]["dimensionIds"]["visit"]["platform"] = "77"
    told = assess(WANTED, model.state())
    assert (told.status, told.message) == (Status.INCOMPLETE, "the project's metadata lacks ids")
    complete(model)
    check_complete(model)


def test_the_shipped_set_up_fits_into_a_new_site() -> None:
    wanted = load_wanted()
    for scope in Scope:
        assert sum(entry.scope is scope for entry in wanted.dimensions) <= 5
    assert report_dimension("3") == "CustomDimension.CustomDimension3"
