"""Token buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.rate_limits import Buckets, Rate, RateLimit, caller_of
from broker.errors import SlowDown
from tests.auth.services import MovedClock

FREE = Rate(0, 1)


class StoppedClock(MovedClock):
    """Moves by hand only."""

    def monotonic_s(self) -> float:
        return self.forward_ms / 1000


def limit(clock: StoppedClock, per_address: Rate, per_account: Rate = FREE) -> RateLimit:
    return RateLimit(clock, per_address, per_account)


def retry_after(rate: RateLimit, account: str = "demo", address: str = "192.0.2.1") -> int | None:
    with pytest.raises(SlowDown) as refused:
        rate.take(account, address)
    return refused.value.retry_after_s


@pytest.mark.parametrize(("per_s", "wait_s"), [(1.0, 1), (0.5, 2), (0.1, 10), (2.0, 1), (0.3, 4)])
def test_retry_after_is_right_to_the_second(per_s: float, wait_s: int) -> None:
    clock = StoppedClock()
    rate = limit(clock, Rate(per_s, 1))
    rate.take("demo", "192.0.2.1")
    assert retry_after(rate) == wait_s
    clock.forward_ms += wait_s * 1000
    rate.take("demo", "192.0.2.1")
    # A second earlier it would have been too early, unless a token comes within the second.
    clock.forward_ms += (wait_s - 1) * 1000
    assert retry_after(rate) == 1


def test_a_burst_is_as_long_as_it_may_be() -> None:
    clock = StoppedClock()
    rate = limit(clock, Rate(1, 3))
    for _ in range(3):
        rate.take("demo", "192.0.2.1")
    retry_after(rate)
    clock.forward_ms += 3_600_000
    for _ in range(3):
        rate.take("demo", "192.0.2.1")
    retry_after(rate)


def test_addresses_and_accounts_count_apart() -> None:
    rate = limit(StoppedClock(), Rate(1, 1), Rate(1, 2))
    rate.take("demo", "192.0.2.1")
    retry_after(rate)
    rate.take("demo", "192.0.2.2")
    retry_after(rate, address="192.0.2.3")  # the account is at its limit
    rate.take("other", "192.0.2.1")


def test_a_refused_request_costs_nothing() -> None:
    clock = StoppedClock()
    rate = limit(clock, Rate(1, 1), Rate(1, 10))
    rate.take("demo", "192.0.2.1")
    for _ in range(50):
        retry_after(rate)
    for number in range(2, 11):
        rate.take("demo", f"192.0.2.{number}")


def test_a_rate_of_zero_has_no_limit() -> None:
    rate = limit(StoppedClock(), FREE)
    for _ in range(1000):
        rate.take("demo", "192.0.2.1")


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_caller(address: str, caller: str) -> None:
    assert caller_of(address) == caller


@given(st.lists(st.integers(0, 3_000), max_size=60), st.integers(1, 5))
def test_never_more_than_the_burst_and_what_was_gained(steps: list[int], burst: int) -> None:
    clock = StoppedClock()
    buckets = Buckets(Rate(1, burst), clock)
    taken = 0
    for step in steps:
        clock.forward_ms += step
        if buckets.wait_s("k") == 0:
            buckets.take("k")
            taken += 1
    assert taken <= burst + sum(steps) / 1000 + 1e-6
