"""Where the SDK connects to."""

import pytest

from broker.client.address import account_of, is_local_name, websocket_options
from broker.client.connection_pool import parse_base_url


@pytest.mark.parametrize(
    "text", ["http://demo.localhost:8000", "http://demo.localhost:8000/", "http://demo.localhost:8000/api/v1"]
)
def test_base_url_ends_at_the_api(text: str) -> None:
    assert str(parse_base_url(text)) == "http://demo.localhost:8000/api/v1"


@pytest.mark.parametrize(
    "text", ["demo.localhost:8000", "ftp://x", "http://", "http://x/other", "http://x?a=1", "http://x:y"]
)
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_base_url(text)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("demo.localhost", True),
        ("a.b.LOCALHOST.", True),
        ("localhost", False),
        ("demo.localhost.com", False),
        (None, False),
    ],
)
def test_names_below_localhost_are_local(host: str | None, local: bool) -> None:
    assert is_local_name(host) is local


@pytest.mark.parametrize(
    ("host", "account"),
    [
        ("demo.localhost", "demo"),
        ("Arena.broker.example.org.", "arena"),
        ("localhost", "demo"),
        ("127.0.0.1", "demo"),
        ("[::1]", "demo"),
    ],
)
def test_first_label_names_the_account(host: str, account: str) -> None:
    assert account_of(parse_base_url(f"http://{host}:8000").host) == account


def test_websocket_to_a_local_name_goes_to_loopback() -> None:
    assert websocket_options("ws://demo.localhost:81/x") == {"host": "127.0.0.1", "port": 81, "proxy": None}
    assert websocket_options("wss://demo.localhost/x")["port"] == 443
    assert websocket_options("ws://example.org/x") == {}


def test_websocket_url_needs_its_scheme() -> None:
    with pytest.raises(ValueError, match="ws or wss"):
        websocket_options("http://demo.localhost/")
