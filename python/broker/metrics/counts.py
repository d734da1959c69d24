"""The counts of one process since its start: plain numbers of one event loop.

They are put into Prometheus' form when they are asked for: its client's own counters have locks, and took a
twentieth of the time of a short request.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from broker.metrics import catalogue
from broker.metrics.catalogue import Definition


class Sample(NamedTuple):
    """One value of one metric.

    Attributes:
        labels: the values of the definition's labels, in their order.
        value: of a histogram, the calls in each bucket (not those below it) and the sum in the end.
    """

    name: str
    labels: Sequence[str]
    value: float | Sequence[float]


class Count:
    """A counter. One without labels begins at 0, so that `increase()` sees its first step."""

    def __init__(self, definition: Definition) -> None:
        self._name = definition.name
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not definition.labels:
            self._values[()] = 0

    def add(self, *labels: str, amount: float = 1) -> None:
        """Count. Labels are values of ours, never what a caller sent."""
        self._values[labels] += amount

    def samples(self) -> Iterator[Sample]:
        """What was counted."""
        for labels, value in self._values.items():
            yield Sample(self._name, labels, value)


class Durations:
    """A histogram of seconds."""

    def __init__(self, definition: Definition) -> None:
        self._name = definition.name
        self._bounds = definition.buckets
        # Calls in each bucket, beyond the one before it; beyond the last; and the sum.
        self._values: defaultdict[tuple[str, ...], list[float]] = defaultdict(
            partial(list, [0.0] * (len(self._bounds) + 2))
        )

    def observe(self, duration_s: float, *labels: str) -> None:
        """Count one call."""
        values = self._values[labels]
        values[bisect_left(self._bounds, duration_s)] += 1
        values[-1] += duration_s

    def samples(self) -> Iterator[Sample]:
        """What was counted."""
        for labels, values in self._values.items():
            yield Sample(self._name, labels, list(values))


OPERATIONS = Count(catalogue.OPERATIONS)
OPERATION_SECONDS = Durations(catalogue.OPERATION_SECONDS)
LOGINS_FAILED = Count(catalogue.LOGINS_FAILED)
RATE_LIMITED = Count(catalogue.RATE_LIMITED)
QUOTA_REFUSALS = Count(catalogue.QUOTA_REFUSALS)
HTTP_RESPONSES = Count(catalogue.HTTP_RESPONSES)
COMMIT_SECONDS = Durations(catalogue.COMMIT_SECONDS)
WRITE_SECONDS = Durations(catalogue.WRITE_SECONDS)
HAND_OVER_SECONDS = Durations(catalogue.HAND_OVER_SECONDS)
COMMITTED = Count(catalogue.COMMITTED)
DOUBTS = Count(catalogue.DOUBTS)
LOSSES = Count(catalogue.LOSSES)
VOTES = Count(catalogue.VOTES)
VOTE_SECONDS = Durations(catalogue.VOTE_SECONDS)
IMAGE_SECONDS = Durations(catalogue.IMAGE_SECONDS)
SLOT_EXCHANGES = Count(catalogue.SLOT_EXCHANGES)
GATEWAY_REPLACEMENTS = Count(catalogue.GATEWAY_REPLACEMENTS)
TASK_RESTARTS = Count(catalogue.TASK_RESTARTS)

_ALL = (
    OPERATIONS, OPERATION_SECONDS, LOGINS_FAILED, RATE_LIMITED, QUOTA_REFUSALS, HTTP_RESPONSES,
    COMMIT_SECONDS, WRITE_SECONDS, HAND_OVER_SECONDS, COMMITTED, DOUBTS, LOSSES, VOTES, VOTE_SECONDS,
    IMAGE_SECONDS, SLOT_EXCHANGES, GATEWAY_REPLACEMENTS, TASK_RESTARTS,
)  # fmt: skip


def samples() -> Iterator[Sample]:
    """Everything that this process has counted."""
    for each in _ALL:
        yield from each.samples()
