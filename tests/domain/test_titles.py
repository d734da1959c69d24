"""`broker.domain.titles`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.titles import camel_case


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Who wins", "whoWins"),
        ("Who wins?", "whoWins"),
        ("  best   player - 2026 ", "bestPlayer2026"),
        ("Man of the Match", "manOfTheMatch"),
        ("FIFA world cup", "fifaWorldCup"),
        ("Who's the MVP", "whosTheMvp"),
        ("iPhone or eReader", "iPhoneOrEReader"),
        ("vote", "vote"),
        ("Über uns", "überUns"),
        ("snake_case-and-dash", "snakeCaseAndDash"),
        ("?!", ""),
    ],
)
def test_a_title_is_camel_cased(title: str, name: str) -> None:
    assert camel_case(title) == name


@given(st.text(max_size=40))
def test_a_camel_cased_title_has_nothing_but_letters_and_digits(title: str) -> None:
    name = camel_case(title)
    assert name == "" or name.isalnum()
