import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.crowd import divide, join_reports, list_faults


@given(st.integers(1, 200_000), st.integers(1, 30_000))
def test_shares_are_even_and_none_is_too_large(count: int, most: int) -> None:
    shares = divide(count, most)
    assert sum(shares) == count
    assert max(shares) <= most
    assert max(shares) - min(shares) <= 1
    assert (len(shares) - 1) * most < count


@pytest.mark.parametrize("most", [0, -100])
def test_no_room_is_said(most: int) -> None:
    with pytest.raises(ValueError, match="hard limit"):
        divide(1, most)


def report(**fields: object) -> dict[str, object]:
    clean = {"lost": 0, "missing": 0, "doubled": 0, "closed": 0, "unrecovered": 0}
    return {"phase": "done", "delivered": 10, "seconds": 1.0, "latency_p99_us": 5, **clean, **fields}


def test_several_clients_are_one_with_the_worst_times() -> None:
    joined = join_reports([report(latency_p99_us=7, lost=1), report(seconds=3.0, latency_p99_us=None)])
    assert joined["delivered"] == 20
    assert joined["seconds"] == 3.0
    assert joined["latency_p99_us"] == 7
    assert list_faults("broadcast", joined) == ["broadcast: 1 lost"]
