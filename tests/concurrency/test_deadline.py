"""`broker.concurrency.deadline`: looks until what is waited for is there, or time is up."""

import time

from broker.concurrency.deadline import until_deadline


def test_there_is_one_look_when_time_is_up_at_once() -> None:
    assert list(until_deadline(-1.0, 3600.0)) == [None]


def test_the_looks_end_when_time_is_up() -> None:
    began_s = time.monotonic()
    looks = list(until_deadline(0.05, 0.01))
    assert time.monotonic() - began_s >= 0.05, "it ended early"
    assert len(looks) > 1, "it looked once only"
