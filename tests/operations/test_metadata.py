"""`broker.operations.metadata`: free-form objects within limits."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequest, PayloadTooLarge
from broker.operations.metadata import compact

LIMIT = 2**53


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [None, {}])
def test_nothing_is_an_empty_object(value: Any) -> None:
    assert compact(value, "metadata") == b"{}"


@pytest.mark.parametrize("number", [LIMIT, -LIMIT, LIMIT - 1, 0, True, 1e300])
def test_numbers_that_every_reader_keeps(number: float) -> None:
    assert orjson.loads(compact({"n": [number]}, "metadata")) == {"n": [number]}


def test_depth_at_its_edge() -> None:
    assert compact(nested(64), "metadata")
    for depth in (65, 255, 1000):
        with pytest.raises(InvalidRequest, match="metadata: must not be nested more than 64 deep"):
            compact(nested(depth), "metadata")


def test_size_at_its_edge_counts_utf8() -> None:
    value = {"é": "ü"}
    size = len('{"é":"ü"}'.encode())
    assert len(compact(value, "metadata", size)) == size
    with pytest.raises(PayloadTooLarge) as raised:
        compact(value, "metadata", size - 1)
    assert raised.value.faults[0].field == "metadata"


@given(st.dictionaries(st.text(), st.integers(-LIMIT, LIMIT) | st.text(), max_size=5))
def test_it_is_the_same_object(value: dict[str, Any]) -> None:
    assert orjson.loads(compact(value, "metadata")) == value
