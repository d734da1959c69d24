"""`broker.rest.trusted_proxies`: addresses from behind proxies."""

import pytest

from broker.rest.trusted_proxies import TrustedProxies


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
