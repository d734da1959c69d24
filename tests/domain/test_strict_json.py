"""Strict reading of JSON, against the standard library's parser with every rule spelled out."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.strict_json import ENVELOPE_DEPTH, MAX_DEPTH, parse_json, require_depth
from broker.domain.values import MAX_INTEGER
from broker.errors import InvalidRequest

MAX_NESTED = MAX_DEPTH + ENVELOPE_DEPTH


def refused(text: bytes, field: str = "") -> str:
    """The field that is named as the one at fault."""
    with pytest.raises(InvalidRequest) as error:
        parse_json(text, field)
    (fault,) = error.value.faults
    return fault.field


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + b"1" * (opening != b"[") + closing * depth


@pytest.mark.parametrize("text", [b"{}", b" [1] ", b'"a\\u0022b"', b"null", b'{"a":{"a":{"a":1}}}', b"1e3"])
def test_ordinary_json_is_read(text: bytes) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b'{"a":Infinity}',
        b"-Infinity",
        b"1e400",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'"\xc0\xaf"',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"01",
        b"{'a':1}",
        b'{"a":1,}',
        b"{} {}",
        b'"\x01"',
        b"[" * 60 + b"]",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    assert refused(text) == "body"
    assert refused(text, "events[3]") == "events[3]"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"a":1,"a":2}', "a"),
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"a":1,"a" :"\\u0022\\u0022"}', "a"),
        (b'{"b":{"":0,"":1}}', "b."),
        (b'{"x":[{"y":0},{"y":1,"y":"\\""}]}', "x[1].y"),
        (b'[{"a\\"":1,"a\\"":2}]', '[0].a"'),
    ],
)
def test_a_repeated_name_is_refused_with_its_place(text: bytes, field: str) -> None:
    assert refused(text) == field


@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_at_their_edge(sign: str) -> None:
    assert parse_json(f'{{"n":{sign}{MAX_INTEGER}}}'.encode()) == {"n": int(f"{sign}{MAX_INTEGER}")}
    for number in (MAX_INTEGER + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**18, 10**40, 10**300):
        assert refused(f'{{"m":{{"n":[1,{sign}{number}]}}}}'.encode()) == "m.n[1]"
    assert refused(f'{{"n":{sign}1{"0" * 5000}}}'.encode()) == "n"


@pytest.mark.parametrize(
    "text",
    [b'{"id":"99999999999999999999999"}', b"1.00000000000000000000001", b"12345678901234567890.5", b"1e30"],
)
def test_long_numbers_that_are_no_integers_are_read(text: bytes) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_depth_at_its_edge(opening: bytes, closing: bytes) -> None:
    each = len(opening.translate(None, b'"a:'))
    parse_json(nested(MAX_NESTED // each, opening, closing))
    for depth in (MAX_NESTED // each + 1, 200, 100_000):
        assert refused(nested(depth, opening, closing)) == ("a" if opening[:1] == b"{" else "body")


def test_the_member_that_is_too_deep_is_named() -> None:
    for depth in (MAX_NESTED, 2_000):
        deep = nested(depth)
        assert refused(b'{"a":[[1]],"m":{"b":' + deep + b'},"z":"]"}') == "m"
        assert refused(b'{"metadata":' + deep + b"}", "events[3]") == "events[3].metadata"
        assert refused(b"[1," + deep + b"]", "patch") in ("patch", "patch[1]")
    inside = b'{"events":[{"m":1},{"m":1,"n":' + nested(MAX_DEPTH + 1) + b"}]}"
    assert refused(inside) == "events[1].n"


@pytest.mark.parametrize("text", [b'["[[{"]', b'["\\"[{", "\\\\"]', b'{"a[":"]]]]"}'])
def test_brackets_in_strings_are_not_counted(text: bytes) -> None:
    assert parse_json(b"[" + b",".join([text] * 100) + b"]") == [json.loads(text)] * 100
    # They must not hide real ones, either.
    assert refused(b'["]",' * 100 + b"1" + b',"["]' * 100) == "body"


def test_many_flat_values_are_not_deep() -> None:
    assert len(parse_json(b'{"events":[' + b",".join([b'{"m":{"a":[]}}'] * 1000) + b"]}")["events"]) == 1000


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_depth_of_a_value_at_its_edge(make: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = make(value)
    require_depth(value, "content")
    with pytest.raises(InvalidRequest, match="content: must not be nested more than 64 deep"):
        require_depth(make(value), "content")


class _Pairs(list[tuple[str, Any]]):
    """An object with its members as they are written, repeated ones too."""


def _written(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _is_acceptable(value: Any, depth: int = 0) -> bool:
    """The rules, one by one."""
    if isinstance(value, _Pairs):
        names = [name for name, _ in value]
        items = [item for _, item in value]
        return len(set(names)) == len(names) and all(_is_acceptable(item, depth + 1) for item in items)
    if isinstance(value, list):
        return all(_is_acceptable(item, depth + 1) for item in value)
    return not isinstance(value, int) or abs(value) <= MAX_INTEGER


_NAMES = st.sampled_from(["a", "b", '"', "\\", ":", "u0022", "é"])
_LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | _NAMES
)
_LEAVES = _LEAVES.filter(lambda value: value not in (float("inf"), float("-inf")))
_TEXTS = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(_NAMES, inner), max_size=4).map(_Pairs),
    max_leaves=12,
).map(lambda value: (value, _written(value)))


@given(_TEXTS, st.booleans())
def test_exactly_what_breaks_no_rule_is_read(sample: tuple[Any, str], raw: bool) -> None:
    value, written = sample
    try:
        text = orjson.dumps(json.loads(written)) if raw and _is_acceptable(value) else written.encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        return
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:  # a lone surrogate
        return
    if _is_acceptable(value):
        assert parse_json(text) == json.loads(written)
    else:
        refused(text)
