"""`broker.rest.account`: accounts from hosts."""

import pytest

from broker.rest.account import account_of_host


@pytest.mark.parametrize(
    ("host", "account"),
    [
        ("", "demo"),
        ("tv.example", "demo"),
        ("nrk.tv.example", "nrk"),
        ("NRK.TV.Example:443", "nrk"),
        ("nrk.tv.example.", "nrk"),
        ("a.nrk.tv.example", "a.nrk"),
        (".tv.example", ""),
        ("nrktv.example", "demo"),
        ("10.0.0.1", "demo"),
        ("[::1]:8000", "demo"),
        ("nrk.localhost", "demo"),
    ],
)
def test_the_label_in_front_of_the_public_host(host: str, account: str) -> None:
    assert account_of_host(host, "tv.example", "demo") == account
