"""Origins are kept as browsers send them, and nothing is kept that no browser sends."""

import pytest

from broker.domain.origins import parse_origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://a.b", "https://a.b"),
        ("HTTPS://A.b/", "https://a.b"),
        ("https://a.b:443", "https://a.b"),
        ("http://a.b:80", "http://a.b"),
        ("http://a.b:443", "http://a.b:443"),
        ("https://a.b:08443", "https://a.b:8443"),
        ("HTTPS://Ä.de", "https://xn--4ca.de"),
        ("https://straße.de", "https://xn--strae-oqa.de"),
        ("http://localhost:9090", "http://localhost:9090"),
        ("http://graphics_1.local", "http://graphics_1.local"),
        ("http://a.b.", "http://a.b."),
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("http://[::0:1]:8000", "http://[::1]:8000"),
        ("http://[::FFFF:1.2.3.4]", "http://[::ffff:102:304]"),
        ("app://obs", "app://obs"),
        ("file://", "file://"),
        ("null", "null"),
    ],
)
def test_origin_is_what_a_browser_sends(text: str, origin: str) -> None:
    assert parse_origin(text) == origin
    assert parse_origin(origin) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "a.b",
        "a.b:443",
        "https://",
        "https:///",
        "https://a.b/path",
        "https://a.b?x",
        "https://a.b#x",
        "https://u@a.b",
        "https://*.b",
        "https://a..b",
        "https://a b",
        " https://a.b",
        "https://a.b\n",
        "https://a%2eb",
        "https://a.b:",
        "https://a.b:0",
        "https://a.b:65536",
        "https://1.2.3",
        "https://1.2.3.256",
        "https://[::1",
        "https://[fe80::1%eth0]",
        "https://[1.2.3.4]",
        "wss://a.b",
        "https://-\u0301.de",
        f"https://{'x' * 64}.de",
        f"https://{'x.' * 200}de",
    ],
)
def test_what_no_browser_sends_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_origin(text)
