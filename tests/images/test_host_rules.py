"""Which hosts an account takes images from."""

import pytest

from broker.fetching.errors import ForbiddenUrl
from broker.images.host_rules import HostRules

RULES = HostRules.of(["example.com", "*.cdn.example.net"])


def test_without_an_entry_any_host_will_do() -> None:
    HostRules().check("https://anything.example.org/a.png")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "https://EXAMPLE.com./a.png",
        "http://example.com:80/",
        "https://a.cdn.example.net/",
        "https://a.b.cdn.example.net/",
    ],
)
def test_a_listed_host_is_taken(url: str) -> None:
    RULES.check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://www.example.com/",
        "https://example.com.evil.test/",
        "https://notexample.com/",
        "https://cdn.example.net/",
        "https://evilcdn.example.net/",
        "https://ex\u0430mple.com/",
        "http://8.8.8.8/",
    ],
)
def test_another_host_is_refused(url: str) -> None:
    with pytest.raises(ForbiddenUrl):
        RULES.check(url)


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "https://a.test", "a.test/", "a.test:80", "a..test", "A.test"]
)
def test_what_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="must be a host name"):
        HostRules.of([entry])
