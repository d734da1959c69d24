"""When a call is tried again, and after how long: pure rules, no I/O.

A failure is *clear* when it is certain that nothing was done (the connection was never made, 429, 503), else
*open*: the call may have taken effect. Open failures are repeated only for calls that can be repeated
without harm: reads, replacements, and creations under an idempotency key, which the broker does only once.

Delays are drawn with full jitter, uniformly between nothing and a ceiling that doubles, because clients that
lose one server together must not come back together.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

Draw = Callable[[], float]
"""Draws uniformly from [0, 1)."""

_MAX_DOUBLINGS = 32  # beyond it every ceiling has long been reached


class Safety(Enum):
    """Whether a call may be made twice."""

    REPEATABLE = "twice is as good as once"
    ONCE = "a second time would do it again"


class Failure(Enum):
    """What is known of a call that failed."""

    CLEAR = "it did nothing"
    OPEN = "it may have been done"
    FINAL = "trying again would not help"


_FAILURES = {429: Failure.CLEAR, 503: Failure.CLEAR, 502: Failure.OPEN, 504: Failure.OPEN}


def failure_of_status(status: int) -> Failure:
    """What an HTTP error status says of the call."""
    return _FAILURES.get(status, Failure.FINAL)


def is_retried(failure: Failure, safety: Safety) -> bool:
    """Whether a call of this safety is tried again after this failure."""
    return failure is Failure.CLEAR or (failure is Failure.OPEN and safety is Safety.REPEATABLE)


def safety_of_change(if_match: str | None) -> Safety:
    """Of a replacement: repeating one that depends on a tag would fail because it was done."""
    return Safety.REPEATABLE if if_match is None else Safety.ONCE


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: the nth delay is drawn from [0, min(cap_s, base_s · 2ⁿ)), n from 0."""

    base_s: float = 0.1
    cap_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError("base_s must be over 0 and at most cap_s")

    def delay_s(self, attempt: int, draw: Draw = random.random) -> float:
        """Seconds to wait after the failed try number `attempt`, counted from 0."""
        ceiling = min(self.cap_s, self.base_s * float(1 << min(attempt, _MAX_DOUBLINGS)))
        return ceiling * draw()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard one call is tried.

    Attributes:
        deadline_s: no try begins later than this after the first; 0 tries once.
        timeout_s: how long one try may take to connect, and to be answered.
        backoff: the delays between tries; a longer `Retry-After` wins.
    """

    deadline_s: float = 30.0
    # a publish may be retried inside the broker for 10 s before it answers 503
    timeout_s: float = 15.0
    backoff: Backoff = Backoff()

    def wait_s(
        self, attempt: int, elapsed_s: float, retry_after_s: float | None, draw: Draw = random.random
    ) -> float | None:
        """Seconds to wait before the next try, or None when the deadline leaves no room for one."""
        wait_s = max(self.backoff.delay_s(attempt, draw), retry_after_s or 0.0)
        return wait_s if elapsed_s + wait_s < self.deadline_s else None
