"""The demonstration's judgement and its sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.demo.figures import (
    Meter,
    Story,
    Viewer,
    VoteFigures,
    judge,
    judge_answers,
    percentile,
    sparkline,
)

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


def _votes() -> VoteFigures:
    """Three first answers and a repeat acknowledged, one too late."""
    votes = VoteFigures(sent=5, late=1)
    for option, is_repeat in ((0, False), (1, False), (1, False), (0, True)):
        votes.acknowledge("a", option, is_repeat=is_repeat)
    return votes


RIGHT = {"a": {0: 1, 1: 2, 2: 0}}


def test_answers_that_are_all_counted_are_fine() -> None:
    votes = _votes()
    assert votes.acknowledged == 4
    assert judge_answers(votes, RIGHT | {"b": {0: 0}}, {"a": {0: 1, 1: 2}}) == ()
    assert judge_answers(VoteFigures(), {}, {}) == ()


@pytest.mark.parametrize(
    "wrong", [{}, {"a": {0: 1, 1: 1}}, {"a": {0: 2, 1: 2}}, {"a": {0: 2, 1: 1}}, RIGHT | {"b": {0: 1}}]
)
def test_answers_that_are_lost_doubled_or_made_up_are_faults(wrong: dict[str, dict[int, int]]) -> None:
    (fault,) = judge_answers(_votes(), wrong, RIGHT)
    assert fault.startswith("the report has ")
    (fault,) = judge_answers(_votes(), RIGHT, wrong)
    assert fault.startswith("the channel has ")


def test_answer_without_an_outcome_is_a_fault() -> None:
    votes = _votes()
    votes.sent += 2
    votes.faults.append("voter-1 could not answer: why")
    assert judge_answers(votes, RIGHT, RIGHT) == (
        "voter-1 could not answer: why",
        "1 answers were neither acknowledged nor refused",
    )


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
