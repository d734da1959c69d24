"""`bench.publish`: requests, the ways that are compared, and the plot."""

import json

import pytest

from bench.publish.doors import STAMP, build_body, build_metadata, parse_listening
from bench.publish.hops import HOPS, divide
from bench.report import build_rows_table

LISTENING = (
    "   1: 0100007F:7531 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 4711 1 0 100 0 0 10 0"
)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_each_event_has_room_for_its_time(batch: int) -> None:
    body = build_body(batch)
    stamped = body.replace(STAMP, '"sent":' + str(10**18))
    assert body.count(STAMP) == batch
    assert len(stamped) == len(body)
    parsed = json.loads(stamped)
    assert [event["metadata"]["sent"] for event in parsed.get("events", [parsed])] == [10**18] * batch


def test_behind_the_doors_an_event_is_as_large() -> None:
    metadata = json.loads(build_body(1))["metadata"]
    assert json.loads(build_metadata(0)) == metadata


def test_a_listening_socket_has_a_port() -> None:
    assert parse_listening(LISTENING, {"4711"}) == 30001


@pytest.mark.parametrize(
    ("line", "inode"), [(LISTENING, "4712"), (LISTENING.replace(" 0A ", " 01 "), "4711")]
)
def test_other_sockets_have_none(line: str, inode: str) -> None:
    assert parse_listening(line, {inode}) is None


WAYS = {
    "HTTP acknowledged_ms": 5.0,
    "past the ingress acknowledged_ms": 4.5,
    "behind the doors acknowledged_ms": 3.0,
    "behind the doors publish→viewer_ms": 3.75,
    "call": 1.0,
    "followed": 3.5,
}


def test_hops_are_what_lies_between_the_ways() -> None:
    hops = divide(WAYS)
    assert list(hops) == [f"{name}_ms" for name in HOPS]
    assert list(hops.values()) == [0.5, 1.5, 1.0, 2.0, 1.0, 0.25]


def test_hops_add_up_to_the_acknowledged_way() -> None:
    hops = divide(WAYS)
    assert sum(hops[f"{name}_ms"] for name in ("ingress", "replica", "call", "commit")) == 5.0


def test_a_figure_that_a_row_lacks_is_a_dash() -> None:
    table = build_rows_table("Rates", {"a": {"x_ms": 1.25}, "b": {"y": 1234.0}}, 1)
    assert [list(column.cells) for column in table.columns] == [["a", "b"], ["1.25", "-"], ["-", "1,234"]]
