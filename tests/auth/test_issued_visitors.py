"""Visitors that the broker hands out, and what is none."""

import secrets

import pytest

from broker.auth.issued_visitors import LIFETIME_S, issue, read
from broker.auth.signed_visitors import NotSigned

NOW_MS = 1_800_000_000_000
END_MS = NOW_MS + 1_000 * LIFETIME_S
SECRET = b"s" * 32


def test_a_visitor_is_one_until_its_time_is_over() -> None:
    token, expires_s = issue(SECRET, "demo", NOW_MS)
    visitor = read(token, SECRET, "demo", NOW_MS)
    assert expires_s * 1_000 == END_MS
    assert read(token, SECRET, "demo", END_MS - 1) == visitor
    with pytest.raises(NotSigned, match="expired"):
        read(token, SECRET, "demo", END_MS)
    longer = issue(SECRET, "demo", END_MS - 1, visitor)
    assert longer.token != token
    assert read(longer.token, SECRET, "demo", END_MS) == visitor, "the same for longer"


def test_visitors_are_told_apart() -> None:
    tokens = {issue(SECRET, "demo", NOW_MS).token for _ in range(1_000)}
    assert len({read(token, SECRET, "demo", NOW_MS) for token in tokens}) == 1_000
    assert [token for token in tokens if not token.isascii() or len(token) != 44] == []


def test_no_other_account_or_secret_takes_it() -> None:
    token = issue(SECRET, "demo", NOW_MS).token
    for secret, account in ((SECRET, "other"), (b"t" * 32, "demo"), (None, "demo")):
        with pytest.raises(NotSigned):
            read(token, secret, account, NOW_MS)


def test_a_changed_character_makes_it_none() -> None:
    token = issue(SECRET, "demo", NOW_MS).token
    for place in range(len(token)):
        for character in "A_-9":
            if token[place] != character:
                with pytest.raises(NotSigned):
                    read(token[:place] + character + token[place + 1 :], SECRET, "demo", NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "ada", "=" * 44, "A" * 44, "+" * 44, "é" * 44, "\n" * 44, "A" * 43, "A" * 45, "\ud800" * 44]
)
def test_garbage_is_none(text: str) -> None:
    with pytest.raises(NotSigned):
        read(text, SECRET, "demo", NOW_MS)


def test_one_that_is_written_otherwise_is_none() -> None:
    """The standard alphabet would make two names of one visitor, were names counted."""
    for _ in range(50):
        token = issue(secrets.token_bytes(32), "demo", NOW_MS).token
        other = token.replace("-", "+").replace("_", "/")
        if other != token:
            with pytest.raises(NotSigned):
                read(other, SECRET, "demo", NOW_MS)
