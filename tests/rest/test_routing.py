"""`broker.rest.routing`."""

import pytest

from broker.errors import InvalidRequest
from broker.resources.catalogue import build_registry
from broker.rest.routing import RouteTable


@pytest.fixture(scope="module")
def table() -> RouteTable:
    return RouteTable(build_registry().routed)


@pytest.mark.parametrize("item", ["x", "a%2Fb", "%c3%a9", "x" * 2_000])
def test_a_path_is_found_again_as_at_first(table: RouteTable, item: str) -> None:
    path = f"/api/v1/storage/own/{item}".encode()
    endpoints, values = table.find(path)
    assert endpoints["GET"].operation.name == "getStoredValue"
    assert values[0] == "own"
    assert table.find(path) == (endpoints, values)


def test_an_encoded_slash_separates_nothing(table: RouteTable) -> None:
    assert table.find(b"/api/v1/storage/own/a%2Fb")[1] == ["own", "a/b"]


@pytest.mark.parametrize(
    "path", ["", "/", "/api", "/api/v1", "/api/v2/programs", "/programs", "/api/v1/programs/x/y"]
)
def test_what_is_nobodys_is_not_found(table: RouteTable, path: str) -> None:
    assert table.find(path.encode()) == ({}, [])


def test_what_is_no_utf8_is_refused_each_time(table: RouteTable) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            table.find(b"/api/v1/programs/%ff")
