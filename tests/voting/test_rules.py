"""`broker.voting.rules`."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker.voting.rules import (
    NOTHING_DECLARED,
    AnswerEntry,
    Declaration,
    ImpressionEntry,
    Visitors,
    count_options,
    live_results,
    parse_declaration,
)

ENTRY = {"measureName": "vote", "contextId": "c", "measureValue": 1, "visitorId": "v"}


def test_a_declaration_is_read_in_full() -> None:
    declared = parse_declaration(
        {
            "title": "Who wins?",
            "options": ["Home", {"label": "Away", "colour": "red"}],
            "opens": 5,
            "closes": 9,
            "allowChange": True,
        }
    )
    assert declared == Declaration("Who wins?", "whoWins", ("Home", "Away"), 5, 9, True)
    assert parse_declaration({"title": "Who wins?", "measureName": "m"}).measure_name == "m"


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        {},
        {
            "title": 5,
            "measureName": [],
            "options": None,
            "opens": None,
            "closes": None,
            "allowChange": "yes",
        },
        {"title": "", "measureName": " ", "options": []},
        {"options": "", "allowChange": 1},
    ],
)
def test_what_is_malformed_counts_as_absent(metadata: object) -> None:
    assert parse_declaration(metadata) == NOTHING_DECLARED


MEASURES = json.loads((Path(__file__).parent / "measures.json").read_text())
"""What the broker makes of metadata; the overlays' tests read it too, for they make the same of it."""


@pytest.mark.parametrize(("metadata", "measure"), [each.values() for each in MEASURES])
def test_a_measure_has_a_name_that_can_be_answered(metadata: Any, measure: str) -> None:
    declared = parse_declaration(metadata).measure_name
    assert declared == measure
    assert AnswerEntry.model_validate(ENTRY | {"measureName": declared}).measure_name == measure


def test_without_a_title_and_a_name_nothing_is_asked() -> None:
    assert parse_declaration({"options": ["a"], "measureName": "a\nb"}).measure_name is None


def test_a_thousand_options_can_be_declared() -> None:
    assert parse_declaration({"options": ["x"] * 1_000}).options == ("x",) * 1_000


@pytest.mark.parametrize("options", [None, "", []])
def test_without_options_any_index_can_be_chosen(options: object) -> None:
    assert (parse_declaration({"options": options}).choices, NOTHING_DECLARED.choices) == (1_000, 1_000)


@pytest.mark.parametrize("options", [" ", "ab", 0, False, True, {}, {"0": "a"}, ["x"] * 1_001])
def test_of_options_that_cannot_be_read_none_can_be_chosen(options: object) -> None:
    declared = parse_declaration({"options": options})
    assert (declared.options, declared.choices) == ((), 0)


def test_an_option_without_a_label_is_shown_as_its_index() -> None:
    options = ["a", None, {}, {"label": None}, {"label": True}, True, [1], {"text": "h"}, "", {"label": ""}]
    declared = parse_declaration({"options": options})
    assert declared.options == ("a", "1", "2", "3", "4", "5", "6", "7", "", "")
    assert declared.choices == 10


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (1_000_000_000_000.0, 1_000_000_000_000),
        (1_000_000_000_000.5, 1_000_000_000_001),
        ("1000000000000", 1_000_000_000_000),
        (-0.5, 0),
        (None, None),
        ("", None),
        ("2020-01-01T00:00:00Z", 1_577_836_800_000),
        ("2020-01-01T01:00:00.250+01:00", 1_577_836_800_250),
        ("2020-01-01", 1_577_836_800_000),
    ],
)
def test_times_may_be_written_as_any_number_or_in_iso_8601(given: object, meant: int | None) -> None:
    declared = parse_declaration({"opens": given, "closes": given})
    assert (declared.opens_ms, declared.closes_ms) == (meant, meant)


@pytest.mark.parametrize(
    "given", [" ", "now", "nan", "2020-13-01T00:00:00Z", False, True, [1], {}, 2**60, float("inf")]
)
def test_a_limit_that_cannot_be_read_closes_the_poll(given: object) -> None:
    late, early = parse_declaration({"closes": given}), parse_declaration({"opens": given})
    assert [late.is_closed(ms) for ms in (0, 2**52)] == [True, True]
    assert [(early.is_open(ms), early.is_closed(ms)) for ms in (0, 2**52)] == [(False, False)] * 2


def test_labels_may_be_numbers() -> None:
    declared = parse_declaration({"options": [1, {"label": 2.5}, {"label": 3.0}, "four"]})
    assert declared.options == ("1", "2.5", "3", "four")


def test_answers_are_taken_from_opening_to_closing() -> None:
    declared = Declaration(opens_ms=5, closes_ms=9)
    assert [declared.is_open(ms) for ms in (4, 5, 8, 9)] == [False, True, True, False]
    assert [declared.is_closed(ms) for ms in (4, 8, 9)] == [False, False, True]
    assert NOTHING_DECLARED.is_open(0)
    assert not NOTHING_DECLARED.is_closed(2**53)


@pytest.mark.parametrize(
    ("value", "choice"), [(0, (0,)), (999, (999,)), ([3], (3,)), ([2, 0, 999], (0, 2, 999))]
)
def test_a_choice_is_an_index_or_several(value: Any, choice: tuple[int, ...]) -> None:
    assert AnswerEntry.model_validate(ENTRY | {"measureValue": value}).measure_value == choice


@pytest.mark.parametrize("value", [-1, 1000, 1.0, "1", True, None, [], [1, 1], [[1]], [0, 1000], {}])
def test_what_is_no_choice_is_refused_as_one_fault(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        AnswerEntry.model_validate(ENTRY | {"measureValue": value})
    assert [fault["loc"] for fault in refused.value.errors()] == [("measureValue",)]


@pytest.mark.parametrize("text", ["x", "x" * 128, "a b", "é中😀", "a/b:c"])
def test_visitors_have_printable_names(text: str) -> None:
    assert AnswerEntry.model_validate(ENTRY | {"visitorId": text}).visitor_id == text


@pytest.mark.parametrize("text", ["", "x" * 1_025, "\n", "a\tb", "\x7f", "\x85", "\u200b", "\u2028", 5, None])
def test_other_names_of_visitors_are_refused(text: Any) -> None:
    for name in ("visitorId", "sessionId"):
        impression = {"measureName": "vote", "contextId": "c", "visitorId": "v", "sessionId": "s"}
        with pytest.raises(ValidationError):
            ImpressionEntry.model_validate(impression | {name: text})


def test_sessions_are_no_longer_than_128() -> None:
    with pytest.raises(ValidationError):
        AnswerEntry.model_validate(ENTRY | {"sessionId": "x" * 129})


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("any", Visitors.ANY), ("issued", Visitors.ISSUED), ("signed", Visitors.SIGNED), (None, None),
        ("isued", Visitors.SIGNED), (True, Visitors.SIGNED), ([], Visitors.SIGNED),
    ],
)  # fmt: skip
def test_a_slip_leaves_no_poll_open(written: Any, wanted: Visitors | None) -> None:
    assert parse_declaration({"visitors": written}).visitors is wanted


def test_a_session_may_be_absent_from_an_answer_only() -> None:
    assert AnswerEntry.model_validate(ENTRY).session_id is None
    with pytest.raises(ValidationError):
        ImpressionEntry.model_validate({"measureName": "vote", "contextId": "c", "visitorId": "v"})


def test_counts_have_all_declared_options_and_what_was_chosen() -> None:
    assert count_options([], 0) == {}
    assert count_options([[]], 2) == {0: 0, 1: 0}
    assert count_options([[1, 2], [0, 1, 0, 4]], 2) == {0: 1, 1: 3, 3: 4}


def test_results_say_what_they_are_limited_to() -> None:
    assert live_results("demo", "vote", {0: 2, 1: 0}) == {
        "accountId": "demo", "measureName": "vote", "results": {"0": 2, "1": 0}, "total": 2,
    }  # fmt: skip
    limited = live_results("demo", "vote", {}, project_id="p", context_id="c")
    assert (limited["projectId"], limited["contextId"], limited["total"]) == ("p", "c", 0)
    assert limited["isDeclared"] is False
    assert live_results("demo", "vote", {}, context_id="c", is_declared=True)["isDeclared"] is True
