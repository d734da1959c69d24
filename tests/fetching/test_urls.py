import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.fetching.errors import ForbiddenUrl, InvalidUrl
from broker.fetching.urls import AllowList, ParsedUrl, parse_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://example.com", ("http", "example.com", 80, b"/")),
        ("HTTPS://Example.COM:443/a?b=c#d", ("https", "example.com", 443, b"/a?b=c")),
        ("http://example.com:8080/", ("http", "example.com", 8080, b"/")),
        ("http://[2606:4700::1111]/", ("http", "2606:4700::1111", 80, b"/")),
        ("http://bücher.example/ü", ("http", "xn--bcher-kva.example", 80, b"/%C3%BC")),
        ("http://example.com./", ("http", "example.com.", 80, b"/")),
    ],
)
def test_parts(text: str, parts: tuple[str, str, int, bytes]) -> None:
    target = parse_url(text)
    assert (target.scheme, target.host, target.port, target.path) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "//example.com",
        "ftp://example.com",
        "file:///etc/passwd",
        "javascript:1",
        "gopher://x",
        "http://",
        "http:///x",
        "http://user@example.com",
        "http://user:secret@example.com",
        "http://:@example.com",
        "http://exa mple.com",
        "http://example.com:0",
        "http://example.com:65536",
        "http://example.com:x",
        "http://[::1",
        "http://[fe80::1%25eth0]/",
        "http://exa%6dple.com",
        "http://a_b\\@c",
        "http://①②⑦.⓪.⓪.①",
        "http://example..com",
        "http://" + "x" * 64 + ".com",
        "http://example.com/\x00",
        "http://example.com/\r\nX: y",
        "http://\ud800/",
    ],
)
def test_what_is_no_url_for_us(text: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(text)


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "017700000001", "1.2.3.4.5"]
)
def test_odd_numbers_are_forbidden(host: str) -> None:
    with pytest.raises(ForbiddenUrl):
        parse_url(f"http://{host}/")


@pytest.mark.parametrize(("length", "is_taken"), [(8192, True), (8193, False)])
def test_length_is_bounded(length: int, is_taken: bool) -> None:
    text = "http://example.com/".ljust(length, "x")
    if is_taken:
        assert parse_url(text).path.endswith(b"x")
    else:
        with pytest.raises(InvalidUrl):
            parse_url(text)


@given(st.text(max_size=80))
def test_any_text_is_a_target_or_an_error(text: str) -> None:
    for url in (text, f"http://{text}", f"https://example.com:{text}"):
        try:
            target = parse_url(url)
        except (InvalidUrl, ForbiddenUrl):
            continue
        assert isinstance(target, ParsedUrl)
        assert target.host.isascii()


def test_secrets_of_a_refused_url_are_not_told() -> None:
    with pytest.raises(InvalidUrl) as caught:
        parse_url("http://user:secret@example.com")
    assert "secret" not in str(caught.value.body())


@pytest.mark.parametrize(
    ("entry", "open_", "closed"),
    [
        (
            "internal",
            [("internal", 80), ("internal", 8080), ("internal.", 1)],
            [("internal.x", 80), ("x", 80)],
        ),
        ("internal:8080", [("internal", 8080)], [("internal", 80), ("internal", 8081)]),
        ("internal:80", [("internal", 80)], [("internal", 443)]),
        (" Internal:443 ", [("internal", 443)], [("internal", 80)]),
        ("10.0.0.5", [("10.0.0.5", 80)], [("10.0.0.50", 80), ("internal", 80)]),
        ("[::1]:9000", [("::1", 9000)], [("::1", 80)]),
        ("[fd00::1]", [("fd00::1", 5)], [("fd00::2", 5)]),
    ],
)
def test_entries_open_what_they_name(
    entry: str, open_: list[tuple[str, int]], closed: list[tuple[str, int]]
) -> None:
    allow = AllowList([entry])
    assert [place for place in open_ if not allow.covers(*place)] == []
    assert [place for place in closed if allow.covers(*place)] == []


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "http://x",
        "x/y",
        "x:0",
        "x:65536",
        "x:y",
        "u@x",
        "x?y",
        "x#y",
        "::1",
        "[::1",
        "127.1",
        "x:",
        "*",
        "10.0.0.0/8",
    ],
)
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(ValueError, match="host"):
        AllowList([entry])
