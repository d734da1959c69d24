import pytest

from broker.actors.placement import node_of


def test_slots_go_round_the_nodes() -> None:
    assert [node_of(index, ["b", "c", "a"]) for index in range(5)] == ["a", "b", "c", "a", "b"]
    with pytest.raises(ValueError, match="no node"):
        node_of(0, [])
