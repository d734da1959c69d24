"""The demonstration's judgement and its sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.demo.figures import Meter, Story, Viewer, judge, percentile, sparkline

LOG = {5: "a", 6: "b", 8: "c"}  # 7 was a change of an event


def _viewer(*seen: tuple[int, str]) -> Viewer:
    viewer = Viewer(Story(4))
    for seq, event_id in seen:
        viewer.see(seq, event_id)
    return viewer


def test_viewer_who_saw_everything_is_fine() -> None:
    verdict = judge({5: "a", 8: "c"}, LOG, 4, [_viewer((5, "a"), (6, "b"), (8, "c"))])
    assert (verdict.viewers, verdict.events, verdict.faults) == (1, 3, ())


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        ([(5, "a"), (6, "b")], "stopped at 6 of 8"),
        ([], "stopped at 4 of 8"),
        ([(5, "a"), (8, "c")], "other events"),
        ([(5, "a"), (6, "x"), (8, "c")], "other events"),
        ([(5, "a"), (5, "a"), (6, "b"), (8, "c")], "out of order or twice"),
        ([(6, "b"), (5, "a"), (8, "c")], "out of order or twice"),
    ],
)
def test_viewer_who_did_not_is_named(seen: list[tuple[int, str]], fault: str) -> None:
    (text,) = judge({}, LOG, 4, [_viewer(*seen)]).faults
    assert text.startswith("viewer 1 ")
    assert fault in text


def test_viewer_who_had_to_stop_says_why() -> None:
    viewer = _viewer()
    viewer.fault = "history was lost"
    assert judge({}, LOG, 4, [viewer]).faults == ("viewer 1 could not go on: history was lost",)


@pytest.mark.parametrize("acknowledged", [{7: "x"}, {5: "other"}])
def test_acknowledged_event_that_is_not_kept_is_a_fault(acknowledged: dict[int, str]) -> None:
    faults = judge(acknowledged, LOG, 4, []).faults
    assert len(faults) == 1
    assert "acknowledged and is not kept" in faults[0]


def test_meter_counts_by_the_second() -> None:
    meter = Meter()
    assert meter.rate == 0
    meter.count(3.0)
    meter.count(5.0)
    meter.tick()
    assert (meter.rate, meter.total, [*meter.latencies_ms]) == (2, 2, [3.0, 5.0])
    meter.tick()
    assert meter.rate == 0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_percentile_is_the_smallest_value_that_covers_the_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_percentile_of_nothing_is_nought() -> None:
    assert percentile([], 0.5) == 0.0


def test_sparkline_has_a_bar_a_value() -> None:
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
