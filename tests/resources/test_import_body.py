"""`broker.resources.import_body`, against the JSON parser on the whole text."""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.strict_json import parse_json
from broker.errors import InvalidRequest, PayloadTooLarge
from broker.resources.import_body import ImportScanner, import_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.fixed_dictionaries(
    {"events": st.lists(VALUES, max_size=6)},
    optional={"programId": VALUES, "exportedTime": VALUES, 'od"d\\': VALUES},
)


def scan(pieces: Iterable[bytes], limit_bytes: int = 1 << 20) -> dict[str, Any]:
    """What the scanner finds, put together again."""
    scanner = ImportScanner(limit_bytes)
    found: dict[str, Any] = {}
    for piece in (*pieces, None):
        for field, value in scanner.feed(piece or b"", is_last=piece is None):
            if field.startswith("events["):
                assert field == f"events[{len(found.setdefault('events', []))}]"
                found["events"].append(value)
            else:
                found[field] = value
    return found


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)] or [b""]


@given(BODIES, st.integers(1, 40), st.booleans())
def test_it_finds_what_the_parser_finds(body: dict[str, Any], size: int, indent: bool) -> None:
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2 if indent else 0)
    assert scan(cut(text, size)) == orjson.loads(text)


@pytest.mark.parametrize("number", ["9007199254740994.0", "9007199254740993e-3", "[9007199254740994.5]"])
def test_a_long_number_that_is_cut_before_its_fraction_is_no_integer(number: str) -> None:
    text = f'{{"events": [{number}, 1]}}'.encode()
    for at in range(1, len(text)):
        assert scan([text[:at], text[at:]]) == orjson.loads(text)


@given(BODIES, st.data())
def test_a_body_that_is_cut_short_is_refused(body: dict[str, Any], data: st.DataObject) -> None:
    text = orjson.dumps(body)
    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InvalidRequest):
        scan([text[:end]])


@given(st.binary(max_size=60), st.integers(1, 8))
def test_no_bytes_break_it(text: bytes, size: int) -> None:
    try:
        found = scan(cut(b'{"events":[' + text, size))
    except InvalidRequest:
        return
    assert found == orjson.loads(b'{"events":[' + text)


@given(st.text(alphabet='{}[],:"\\ ae1', max_size=30), st.integers(1, 5))
def test_it_takes_nothing_that_the_parser_refuses(text: str, size: int) -> None:
    whole = text.encode()
    try:
        found = scan(cut(whole, size))
    except InvalidRequest:
        return
    assert found == orjson.loads(whole)


PIECES = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"a"', '"b"', '"\\u0061"', '"\\ud800"', "1", "-0", "01", "1e400", "2.5e-3",
     "9007199254740993", "true", "nul", '"\x01"', " ", "\\", '"', "[" * 70]
)  # fmt: skip
VALUE_TEXTS = VALUES.map(lambda value: orjson.dumps(value).decode())


@given(st.lists(PIECES | VALUE_TEXTS, max_size=6).map("".join), st.integers(1, 9))
def test_it_takes_what_every_other_body_may_have(text: str, size: int) -> None:
    """A body is read alike whether it is there or still coming."""
    body = f'{{"x":{text}}}'.encode()
    try:
        expected = parse_json(body)
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            scan(cut(body, size))
    else:
        assert scan(cut(body, size)) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a" 1}',
        '{"a":1 "b":2}',
        '{"a":}',
        '{"a":1,}',
        '{"events":[1,]}',
        '{"events":[1 2]}',
        "{a:1}",
        "{} {}",
    ],
)
def test_what_stands_between_values_is_looked_at(text: str) -> None:
    for size in (1, 3, 100):
        with pytest.raises(InvalidRequest):
            scan(cut(text.encode(), size))


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '{"events":[],"events":[]}', '{"a":1,"\\u0061":2}'])
def test_a_member_that_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must not be repeated"):
        scan([text.encode()])


def test_at_the_limit_and_over_it() -> None:
    element = b'"' + b"x" * 98 + b'"'
    assert scan([b'{"events":[' + element + b"]}"], 100)["events"] == ["x" * 98]
    for pieces in ([b'{"events":[1,"x' + element[1:] + b"]}"], cut(b'{"events":[1,"x' + element[1:], 7)):
        with pytest.raises(PayloadTooLarge, match=r"events\[1\]"):
            scan(pieces, 100)
    with pytest.raises(PayloadTooLarge, match="programId"):
        scan([b'{"programId":"' + b"x" * 100], 100)
    with pytest.raises(PayloadTooLarge, match="body"):
        scan([b'{"' + b"x" * 100], 100)


@pytest.mark.anyio
async def test_what_is_no_json_inside_is_named() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"events":[{"a":1},{"a":tru}]}'

    with pytest.raises(InvalidRequest, match=r"events\[1\]: is not JSON"):
        async for _ in import_members(chunks(), 1000):
            pass


SHAPES: dict[str, Callable[[int], bytes]] = {
    "text": lambda n: b'"' + b"x" * n + b'"',
    "escapes": lambda n: b'"' + b"\\\\" * (n // 2) + b'"',
    "quotes": lambda n: b'"' + b'\\"' * (n // 2) + b'"',
    "brackets in text": lambda n: b'"' + b"{" * n + b'"',
    "white space": lambda n: b"[" + b" " * n + b"]",
    "numbers": lambda n: b"[" + b"1," * (n // 2) + b"1]",
    "digits": lambda n: b"[0." + b"1" * n + b"]",
    "names": lambda n: b"{" + b",".join(b'"%d":0' % k for k in range(n // 10)) + b"}",
}


@pytest.mark.anyio
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_sender_that_trickles_costs_in_proportion(shape: str) -> None:
    """Doubled twice, in parts of seven bytes: sixteen times the work where each part is looked at anew."""

    async def cost_s(value_bytes: int) -> float:
        text = b'{"events":[' + SHAPES[shape](value_bytes) + b"]}"

        async def chunks() -> AsyncIterator[bytes]:
            for piece in cut(text, 7):
                yield piece

        began = time.process_time()
        assert len([found async for found in import_members(chunks(), 2 << 20)]) == 1
        return time.process_time() - began

    costs = [await cost_s(size) for size in (250_000, 500_000, 1_000_000)]
    assert costs[2] < 10 * costs[0], f"CPU seconds of 250, 500 and 1,000 kB: {costs}"
