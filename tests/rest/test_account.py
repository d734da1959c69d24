"""`broker.rest.account`: accounts from hosts, addresses from behind proxies."""

import pytest

from broker.rest.account import TrustedProxies, account_of_host


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


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("9.9.9.9", "", "9.9.9.9"),
        ("9.9.9.9", "1.1.1.1", "9.9.9.9"),  # no proxy of ours: anybody can write that
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "1.1.1.1", "1.1.1.1"),
        ("127.0.0.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        ("127.0.0.1", "6.6.6.6, 1.1.1.1, 10.0.0.2", "1.1.1.1"),
        ("127.0.0.1", "1.1.1.1, nonsense", "127.0.0.1"),
        ("127.0.0.1", "1.1.1.1:5555", "1.1.1.1"),
        ("127.0.0.1", "[2001:db8::1]:5555", "2001:db8::1"),
        ("127.0.0.1", "2001:DB8::1", "2001:db8::1"),
        ("127.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("", "1.1.1.1", ""),
    ],
)
def test_the_nearest_address_that_is_no_proxy_of_ours(peer: str, forwarded: str, caller: str) -> None:
    assert TrustedProxies(["127.0.0.0/8", "10.0.0.0/8"]).caller(peer, forwarded) == caller
