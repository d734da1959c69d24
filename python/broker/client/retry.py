"""When a call is retried, and after how long: pure rules, no I/O.

A failure is *clear* when it is certain that nothing was done (the connection was never made, 429, 503
`unavailable` or `maintenance`), else *open*: the call may have taken effect. What is no answer of the broker,
such as the page of a proxy in front of it or of a server that is being stopped, is open too, whatever its
status.

Open failures are repeated only for calls that can be repeated without harm: what changes nothing, and changes
under an idempotency key, which the broker makes only once.

Delays are drawn with full jitter, uniformly between nothing and a ceiling that doubles, because clients that
lose one server together must not come back together.
"""

import random
from dataclasses import dataclass
from enum import Enum

from broker.concurrency.back_off import Backoff, Draw


class Safety(Enum):
    """Whether a call may be made twice."""

    REPEATABLE = "twice is as good as once"
    KEYED = "the broker does it once, by its idempotency key"
    ONCE = "a second time would do it again"


class Failure(Enum):
    """What is known of a call that failed."""

    CLEAR = "it did nothing"
    OPEN = "it may have been done"
    FINAL = "trying again would not help"


_FAILURES = {429: Failure.CLEAR, 503: Failure.CLEAR, 502: Failure.OPEN, 504: Failure.OPEN}
_OUTCOME_UNKNOWN = "outcome_unknown"
_REMEMBERED = frozenset(
    {"upstream_failed", "upstream_timeout", "unprocessable_image"}
)  # by the broker, 300 s


def failure_of_error(status: int, name: str) -> Failure:
    """What an error of the broker says of the call."""
    if name in _REMEMBERED:
        return Failure.FINAL
    return Failure.OPEN if name == _OUTCOME_UNKNOWN else _FAILURES.get(status, Failure.FINAL)


def safety_of_method(method: str) -> Safety:
    """Of calls that say nothing else: a GET changes nothing, and every change has a key."""
    return Safety.REPEATABLE if method == "GET" else Safety.KEYED


def is_retried(failure: Failure, safety: Safety) -> bool:
    """Whether a call of this safety is tried again after this failure."""
    return failure is Failure.CLEAR or (failure is Failure.OPEN and safety is not Safety.ONCE)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard one call is tried.

    Attributes:
        deadline_s: no try begins later than this after the first; 0 tries once.
        timeout_s: how long one try may take to connect, and to be answered.
        backoff: the delays between tries; a longer `Retry-After` wins.
    """

    # a stop takes up to 15 s and a start as long again, more on a busy machine
    deadline_s: float = 90.0
    # a publish may be retried inside the broker for 10 s before it answers 503
    timeout_s: float = 15.0
    backoff: Backoff = Backoff()

    def wait_s(
        self, attempt: int, elapsed_s: float, retry_after_s: float | None, draw: Draw = random.random
    ) -> float | None:
        """Seconds to wait before the next try, or None when the deadline leaves no room for one."""
        wait_s = max(self.backoff.delay_s(attempt, draw), retry_after_s or 0.0)
        return wait_s if elapsed_s + wait_s < self.deadline_s else None
