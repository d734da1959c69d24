"""When a call is repeated and after how long."""

import pytest

from broker.client import Backoff
from broker.client.retry import (
    Failure,
    RetryPolicy,
    Safety,
    failure_of_error,
    is_retried,
    safety_of_method,
)


@pytest.mark.parametrize(
    ("status", "name", "failure"),
    [
        (429, "slow_down", Failure.CLEAR),
        (503, "unavailable", Failure.CLEAR),
        (503, "maintenance", Failure.CLEAR),
        (503, "outcome_unknown", Failure.OPEN),
        (502, "bad_gateway", Failure.OPEN),
        (504, "gateway_timeout", Failure.OPEN),
        (400, "invalid_request", Failure.FINAL),
        (401, "invalid_token", Failure.FINAL),
        (404, "not_found", Failure.FINAL),
        (500, "internal_error", Failure.FINAL),
    ],
)
def test_error_tells_what_is_known(status: int, name: str, failure: Failure) -> None:
    assert failure_of_error(status, name) is failure


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_changes_have_a_key(method: str) -> None:
    assert (safety_of_method(method), safety_of_method("GET")) == (Safety.KEYED, Safety.REPEATABLE)


def test_only_repeatable_calls_survive_doubt() -> None:
    assert is_retried(Failure.OPEN, Safety.REPEATABLE)
    assert is_retried(Failure.OPEN, Safety.KEYED)
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
