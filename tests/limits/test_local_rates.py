"""`broker.limits.local_rates`."""

from hypothesis import given
from hypothesis import strategies as st

from broker.errors import SlowDown
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from tests.auth.services import StoppedClock


def wait_s(rate: LocalRate, key: str = "a", tokens: int = 1) -> int:
    """0 when the tokens are taken, else the seconds to wait."""
    try:
        rate.take(key, tokens)
    except SlowDown as error:
        return error.retry_after_s or -1
    return 0


def test_a_burst_is_taken_and_then_as_many_as_come_back() -> None:
    clock = StoppedClock()
    rate = LocalRate(clock, Rate(2, 5))
    assert [wait_s(rate) for _ in range(6)] == [0, 0, 0, 0, 0, 1]
    clock.ms += 499
    assert wait_s(rate) == 1
    clock.ms += 1
    assert [wait_s(rate), wait_s(rate)] == [0, 1]
    clock.ms += 60_000
    assert [wait_s(rate) for _ in range(6)] == [0, 0, 0, 0, 0, 1]


def test_what_is_refused_takes_nothing() -> None:
    clock = StoppedClock()
    rate = LocalRate(clock, Rate(1, 3))
    assert wait_s(rate, tokens=2) == 0
    assert [wait_s(rate, tokens=2) for _ in range(3)] == [1, 1, 1]
    assert wait_s(rate, tokens=1) == 0


def test_callers_have_buckets_of_their_own() -> None:
    rate = LocalRate(StoppedClock(), Rate(1, 1))
    assert [wait_s(rate, key) for key in ("a", "b", "a")] == [0, 0, 1]


def test_more_than_a_burst_needs_a_full_bucket_and_is_paid_off() -> None:
    clock = StoppedClock()
    rate = LocalRate(clock, Rate(10, 50))
    assert wait_s(rate, tokens=100) == 0
    assert wait_s(rate) == 6  # 5 s of debt, and a tenth for the token
    clock.ms += 5_100
    assert wait_s(rate) == 0
    assert wait_s(rate, tokens=60) == 5


def test_a_rate_of_0_has_no_limit() -> None:
    rate = LocalRate(StoppedClock(), Rate(0, 1))
    assert [wait_s(rate, tokens=1_000) for _ in range(3)] == [0, 0, 0]
    assert len(rate) == 0


def test_full_buckets_are_forgotten() -> None:
    clock = StoppedClock()
    rate = LocalRate(clock, Rate(1, 1))
    for number in range(50):
        wait_s(rate, str(number))
    assert len(rate) == 50
    clock.ms += 1_000
    for number in range(50):
        wait_s(rate, f"later {number}")
    assert len(rate) <= 50


def test_there_are_never_more_than_so_many() -> None:
    rate = LocalRate(StoppedClock(), Rate(1, 1), most=10)
    for number in range(100):
        wait_s(rate, str(number))
    assert len(rate) == 10


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 4)), max_size=40))
def test_no_more_pass_than_burst_and_rate_allow(steps: list[tuple[int, int]]) -> None:
    clock = StoppedClock()
    rate = LocalRate(clock, Rate(2, 4))
    start_ms, passed = clock.ms, 0
    for forward_ms, tokens in steps:
        clock.ms += forward_ms
        if wait_s(rate, tokens=tokens) == 0:
            passed += tokens
        assert passed <= 4 + 2 * (clock.ms - start_ms) / 1000 + 1e-6
