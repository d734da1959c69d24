"""The judge of votes finds each fault that it is there for, and says in words what it found and expected."""

from typing import Any

import pytest

from tests.adversity.votes import VotingShow


def make_poll(*totals: int, impressions: int = 4, context: str = "asked") -> dict[str, Any]:
    """The entry of a report, with so many votes of each option."""
    return {
        "measureName": "whoWins",
        "contextId": context,
        "options": [{"measureValue": index, "total": total} for index, total in enumerate(totals)],
        "impressions": {"total": impressions},
    }


def findings(*polls: dict[str, Any], seen: list[int] | None = None) -> list[str]:
    """What is found where four visitors were shown one poll and three of them voted."""
    show = VotingShow("http://localhost", "final", {}, context="asked", shown=4)
    show.chosen = {"ada": 0, "bob": 2, "eve": 2}
    show.seen = [0, 3] if seen is None else seen
    show.report = {"responses": list(polls)}
    return show.judge()


def test_a_right_report_has_no_findings() -> None:
    assert findings(make_poll(1, 0, 2)) == []


@pytest.mark.parametrize(
    ("polls", "told"),
    [
        ([make_poll(1, 0, 1)], "[1, 0, 1] were counted, [1, 0, 2] were acknowledged"),
        ([make_poll(1, 0, 2, impressions=5)], "5 impressions were counted, 4 were shown"),
        (
            [],
            "the report has the polls [], not one of whoWins in asked, for which [1, 0, 2] were acknowledged",
        ),
        (
            [make_poll(1, 0, 2, context="other")],
            "has the polls [('whoWins', 'other')], not one of whoWins in",
        ),
        ([make_poll(1, 0, 2), make_poll(1, 0, 2, context="other")], "('whoWins', 'other')], not one of"),
    ],
)
def test_a_report_that_is_wrong_is_told_in_words(polls: list[dict[str, Any]], told: str) -> None:
    (finding,) = findings(*polls)
    assert told in finding


def test_results_that_count_too_many_are_found() -> None:
    assert findings(make_poll(1, 0, 2), seen=[0, 4, 3]) == ["results said 4 of 3"]


def test_results_that_nobody_has_seen_are_no_fault_of_the_report() -> None:
    assert findings(make_poll(1, 0, 2), seen=[]) == []
