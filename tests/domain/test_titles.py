"""`broker.domain.titles`."""

import unicodedata

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
        ("\u0926\u093f\u0928", "\u0926\u093f\u0928"),  # differ by their marks alone
        ("\u0926\u093e\u0928", "\u0926\u093e\u0928"),
        ("cafe\u0301 au lait", "caf\u00e9AuLait"),
        ("CAFE\u0301", "caf\u00e9"),
        ("\u0915\u094d\u200d\u0937", "\u0915\u094d\u0937"),  # a joiner cannot be seen
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u062e\u0648\u0627\u0647\u0645"),
        ("\u2764\ufe0f or \u0301b", "orB"),  # a mark on no letter begins no word
        ("\U0001f600", ""),
        ("\U00010428b \U00010428b", "\U00010428b\U00010400b"),
    ],
)
def test_a_title_is_camel_cased(title: str, name: str) -> None:
    assert camel_case(title) == name


@given(st.text(max_size=40))
def test_a_camel_cased_title_has_nothing_but_letters_digits_and_their_marks(title: str) -> None:
    name = camel_case(title)
    assert {unicodedata.category(each)[0] for each in name} <= set("LNM")
    assert unicodedata.category(name[:1] or "a")[0] in "LN"


def test_a_title_is_read_no_further_than_is_cheap() -> None:
    """Normalising costs the square of a run of marks."""
    assert camel_case("a" * 999 + " bc") == "a" * 999
    assert camel_case("a" * 998 + " bc") == "a" * 998 + "B"
