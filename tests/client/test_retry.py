"""When a call is repeated and after how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.retry import Backoff, Failure, RetryPolicy, Safety, failure_of_status, is_retried


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delay_lies_below_its_ceiling(attempt: int, drawn: float) -> None:
    delay = Backoff(0.1, 5.0).delay_s(attempt, lambda: drawn)
    assert 0 <= delay < 5.0
    assert delay <= 0.1 * 2 ** min(attempt, 40)


def test_ceiling_doubles_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [round(backoff.delay_s(n, lambda: 1.0), 3) for n in range(4)] == [0.1, 0.2, 0.4, 0.5]


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1)])
def test_backoff_without_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="base_s"):
        Backoff(base, cap)


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (429, Failure.CLEAR),
        (503, Failure.CLEAR),
        (502, Failure.OPEN),
        (504, Failure.OPEN),
        (400, Failure.FINAL),
        (401, Failure.FINAL),
        (404, Failure.FINAL),
        (500, Failure.FINAL),
    ],
)
def test_status_tells_what_is_known(status: int, failure: Failure) -> None:
    assert failure_of_status(status) is failure


def test_only_repeatable_calls_survive_doubt() -> None:
    assert is_retried(Failure.OPEN, Safety.REPEATABLE)
    assert not is_retried(Failure.OPEN, Safety.ONCE)
    assert is_retried(Failure.CLEAR, Safety.ONCE)
    assert not is_retried(Failure.FINAL, Safety.REPEATABLE)


def test_wait_ends_at_the_deadline() -> None:
    policy = RetryPolicy(deadline_s=10, backoff=Backoff(1, 1))
    assert policy.wait_s(0, 8.9, None, lambda: 1.0) == 1.0
    assert policy.wait_s(0, 9.0, None, lambda: 1.0) is None


def test_longer_retry_after_wins() -> None:
    policy = RetryPolicy(deadline_s=10, backoff=Backoff(1, 1))
    assert policy.wait_s(0, 0, 3.0, lambda: 0.5) == 3.0
    assert policy.wait_s(0, 0, 0.1, lambda: 0.5) == 0.5
    assert policy.wait_s(0, 0, 60.0, lambda: 0.5) is None
