"""`broker.rest.callers`: who calls, by what the ingress says of it."""

import pytest

from broker.errors import InsufficientScope
from broker.rest.callers import Callers, CallOrigin
from broker.rest.trusted_proxies import TrustedProxies

KEY = "0123456789abcdef"
FRONT_DOOR = "10.0.0.1"


def identify(key: str, *headers: tuple[bytes, bytes], peer: str = "127.0.0.1") -> CallOrigin:
    callers = Callers(key, TrustedProxies([FRONT_DOOR]))
    scope = {"headers": list(headers), "client": (peer, 1)}
    return callers.identify(scope, dict(headers))


def told(text: str) -> tuple[bytes, bytes]:
    return b"x-broker-ingress", text.encode()


@pytest.mark.parametrize(
    ("ingress", "address", "is_operator"),
    [
        ("public 192.0.2.1", "192.0.2.1", False),
        ("operations 127.0.0.1", "127.0.0.1", True),
        ("public 2001:db8::1", "2001:db8::1", False),
        ("public ::ffff:192.0.2.1", "192.0.2.1", False),
    ],
)
def test_the_caller_is_whom_the_ingress_names(ingress: str, address: str, is_operator: bool) -> None:
    assert identify(KEY, told(f"{KEY} {ingress}"), peer="10.0.0.9") == CallOrigin(address, is_operator)


@pytest.mark.parametrize(
    "ingress",
    [
        "",
        "public 192.0.2.1",
        f"{KEY}x public 192.0.2.1",
        f"{KEY[:-1]} public 192.0.2.1",
        f" {KEY} public 192.0.2.1",
    ],
)
def test_whoever_does_not_know_the_key_is_refused(ingress: str) -> None:
    for headers in ([told(ingress)], []):
        with pytest.raises(InsufficientScope):
            identify(KEY, *headers)


def test_nothing_that_a_stranger_writes_counts() -> None:
    forged = (b"x-forwarded-for", b"6.6.6.6")
    assert identify(KEY, told(f"{KEY} public 192.0.2.1"), forged).address == "192.0.2.1"
    assert identify("", forged, peer="192.0.2.1").address == "192.0.2.1"


def test_a_front_door_says_for_whom_it_calls() -> None:
    ingress = told(f"{KEY} public {FRONT_DOOR}")
    lines = [(b"x-forwarded-for", b"6.6.6.6, 192.0.2.7"), (b"x-forwarded-for", FRONT_DOOR.encode())]
    assert identify(KEY, ingress, lines[0]).address == "192.0.2.7"
    assert identify(KEY, ingress, *lines).address == "192.0.2.7"


def test_the_key_is_taken_out_of_the_headers() -> None:
    headers = dict([told(f"{KEY} public 192.0.2.1"), (b"host", b"a")])
    Callers(KEY, TrustedProxies([])).identify({"headers": list(headers.items())}, headers)
    assert headers == {b"host": b"a"}
