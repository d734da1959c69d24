from collections import Counter

from broker.owners.placement import owner_of


def test_placement_never_changes() -> None:
    assert [owner_of(f"demo/program/{number}", 8) for number in range(8)] == [0, 7, 7, 3, 7, 5, 4, 1]


def test_topics_are_spread_evenly() -> None:
    counts = Counter(owner_of(f"demo/program/{number}", 4) for number in range(8_000))
    assert [index for index in range(4) if not 1_800 < counts[index] < 2_200] == []


def test_larger_pool_takes_only_what_the_new_owner_wins() -> None:
    for number in range(1_000):
        topic = f"demo/program/{number}"
        assert owner_of(topic, 5) in (owner_of(topic, 4), 4)
