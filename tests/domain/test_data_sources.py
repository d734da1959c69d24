from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.data_sources import (
    DataSource,
    OutgoingRequest,
    SourceCall,
    build_request,
    find_data_source,
    merge_body,
    require_methods,
)
from broker.errors import InvalidRequest, MethodNotAllowed

URL = "https://api.example.com/scores"


def source(**members: Any) -> DataSource:
    found = find_data_source([{"id": "a", "type": "api", "url": URL} | members], "a")
    assert found is not None
    return found


def build(
    made: DataSource, method: str = "GET", query: Any = None, headers: Any = None, body: Any = None
) -> OutgoingRequest:
    return build_request(made, SourceCall(method, query or {}, headers or {}, body))


def test_found_by_id() -> None:
    entries = [
        5,
        {"id": "b", "type": "api", "url": "x"},
        {"id": "a", "type": "api", "url": URL, "colour": "red"},
    ]
    found = find_data_source(entries, "a")
    assert found is not None
    assert found.url == URL


@pytest.mark.parametrize("sources", [None, {}, "x", [], [{"id": "b"}], [{"id": ["a"]}], [None]])
def test_what_is_not_there_is_none(sources: Any) -> None:
    assert find_data_source(sources, "a") is None


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ({"url": None}, "url"),
        ({"type": "sheet"}, "type"),
        ({"method": "PATCH"}, "method"),
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"timeoutMs": 60_001}, "timeoutMs"),
        ({"cacheSeconds": -1}, "cacheSeconds"),
        ({"cacheSeconds": 86_401}, "cacheSeconds"),
        ({"headers": {"a": []}}, "headers.a"),
    ],
)
def test_member_at_fault_is_named(members: dict[str, Any], member: str) -> None:
    with pytest.raises(InvalidRequest, match=member):
        source(**members)


@pytest.mark.parametrize(
    "members", [{"timeoutMs": 1}, {"timeoutMs": 60_000}, {"cacheSeconds": 0}, {"cacheSeconds": 86_400}]
)
def test_edges_are_taken(members: dict[str, Any]) -> None:
    source(**members)


@pytest.mark.parametrize(
    ("members", "allowed"),
    [
        ({}, {"GET", "POST", "PUT", "DELETE"}),
        ({"method": "POST"}, {"POST"}),
        ({"methods": ["GET", "PUT"]}, {"GET", "PUT"}),
        ({"method": "POST", "methods": ["GET"]}, {"GET"}),
        ({"methods": []}, {"GET", "POST", "PUT", "DELETE"}),
    ],
)
def test_methods(members: dict[str, Any], allowed: set[str]) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        if method in allowed:
            assert build(source(**members), method).method == method
        else:
            with pytest.raises(MethodNotAllowed):
                build(source(**members), method)


@pytest.mark.parametrize(
    "sources",
    [None, {}, "x", 5, [], [5], [{}], [{"methods": None}], [{"methods": "GET"}], [{"methods": ["GET"]}]],
)
def test_other_sources_are_stored_whatever_they_look_like(sources: Any) -> None:
    require_methods(sources, "s")


def test_an_empty_list_of_methods_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^s\[2\]\.methods: ") as caught:
        require_methods([5, {"methods": ["GET"]}, {"methods": []}], "s")
    assert [fault.field for fault in caught.value.faults] == ["s[2].methods"]


@pytest.mark.parametrize(
    ("members", "query", "sent"),
    [
        ({}, {}, ""),
        ({"query": {"a": "1", "b": 2}}, {}, "?a=1&b=2"),
        ({"query": {"a": "1", "b": 2}}, {"b": "3", "c": "4"}, "?a=1&b=3&c=4"),
        ({"query": {"a": "1"}}, {"a": ""}, "?a="),
        ({"query": {"a": "1", "n": None}}, {"a": None}, "?a=1"),
        ({"query": {"a": ["1", "2"]}}, {"b": ["3", "4"]}, "?a=1&a=2&b=3&b=4"),
        ({"query": {"t": True, "f": 1.5}}, {}, "?t=true&f=1.5"),
        ({"url": URL + "?a=1&a=2&b=3#top", "query": {"b": "4"}}, {"c": "5"}, "?a=1&a=2&b=4&c=5"),
        ({"url": URL + "?a=1"}, {"a": "2"}, "?a=2"),
        ({}, {"q": "a b&c=d/ü"}, "?q=a+b%26c%3Dd%2F%C3%BC"),
    ],
)
def test_parameters_override_one_by_one(members: dict[str, Any], query: dict[str, Any], sent: str) -> None:
    assert build(source(**members), query=query).url == URL + sent


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_no_parameter_changes_where_the_request_goes(query: dict[str, str]) -> None:
    try:
        url = build(source(), query=query).url
    except InvalidRequest:
        return
    assert url.partition("?")[0] == URL
    assert "#" not in url


@pytest.mark.parametrize(
    ("default", "given", "merged"),
    [
        (None, None, None),
        ({"a": 1}, None, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"d": 2}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": 1}, [1], [1]),
        ([1], {"a": 1}, {"a": 1}),
        ({"a": 1}, 0, 0),
    ],
)
def test_bodies_are_merged_by_member(default: Any, given: Any, merged: Any) -> None:
    assert merge_body(default, given) == merged


def test_body_is_json() -> None:
    sent = build(source(body={"a": 1}), "POST", body={"b": 2})
    assert sent.body is not None
    assert orjson.loads(sent.body) == {"a": 1, "b": 2}
    assert sent.headers == {"content-type": "application/json"}


def test_body_is_a_form_where_the_source_says_so() -> None:
    made = source(body={"a": 1}, headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert build(made, "PUT", body={"b": "x y", "c": [1, 2]}).body == b"a=1&b=x+y&c=1&c=2"


@pytest.mark.parametrize("sent", [{}, {"content-type": "application/json"}, {"content-type": "text/plain"}])
def test_the_sources_media_type_stands_whatever_the_caller_sends(sent: dict[str, str]) -> None:
    form = "application/x-www-form-urlencoded"
    request = build(source(headers={"content-Type": form}), "POST", headers=sent, body={"b": "x y"})
    assert (request.headers, request.body) == ({"content-type": form}, b"b=x+y")


@pytest.mark.parametrize("members", [{}, {"headers": {"Content-Type": None}}])
def test_the_callers_media_type_is_taken_where_the_source_has_none(members: dict[str, Any]) -> None:
    sent = build(source(**members), "POST", headers={"content-type": "application/merge-patch+json"}, body={})
    assert sent.headers == {"content-type": "application/merge-patch+json"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_some_methods_send_no_body(method: str) -> None:
    sent = build(source(body={"a": 1}, headers={"Content-Type": "a/b"}), method, body={"b": 2})
    assert sent.body is None
    assert sent.headers == {}


def test_listed_headers_override_and_others_stay_away() -> None:
    made = source(headers={"X-Api-Key": "default", "X-Kept": 5})
    sent = build(
        made, headers={"x-api-key": "mine", "x-other": "no", "accept": "text/csv", "user-agent": "no"}
    )
    assert sent.headers == {"x-api-key": "mine", "x-kept": "5", "accept": "text/csv"}


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "cookie",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "proxy-authorization",
        "accept-encoding",
    ],
)
def test_callers_own_headers_are_never_forwarded(name: str) -> None:
    made = source(headers={name: None, "X-Kept": "k"})
    assert build(made, headers={name: "secret"}).headers == {"x-kept": "k"}


def test_sources_own_authorization_stays_whatever_the_caller_sends() -> None:
    made = source(headers={"Authorization": "Bearer of-the-source"})
    assert build(made, headers={"authorization": "mine"}).headers == {"authorization": "Bearer of-the-source"}


def test_header_that_the_connection_names_is_not_forwarded() -> None:
    made = source(headers={"X-Key": "default"})
    assert build(made, headers={"connection": "close, X-Key", "x-key": "mine"}).headers == {
        "x-key": "default"
    }


@pytest.mark.parametrize(
    ("name", "value"), [("a b", "x"), ("x", "a\r\nb: c"), ("x", "\x00"), ("", "x"), ("x:", "y")]
)
def test_header_that_cannot_be_sent_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest):
        build(source(headers={name: value}))


def test_callers_header_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        build(source(), headers={"accept": "a\r\nb: c"})


def test_secrets_of_a_broken_source_are_not_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        source(headers={"x": ["secret"]}, url="https://api.example.com")
    assert "secret" not in str(caught.value.body())
