"""What is counted of every operation, through either door, in Prometheus' terms.

Nothing here carries an account, a user or an id: a metric must not tell one account of another. The counts
are plain numbers of one event loop, put into Prometheus' form when they are asked for: its client's own
counters have locks, and took a twentieth of the time of a short request.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a read of a cached program to an import of 64 MiB.
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS = (*map(str, _BUCKETS_S), "+Inf")


class _Durations:
    """How long one operation took: calls in each bucket, beyond the one before it, and seconds in all."""

    __slots__ = ("calls", "total_s")

    def __init__(self) -> None:
        self.calls = [0] * len(_BOUNDS)
        self.total_s = 0.0


class _Operations(Collector):
    """The counts of this process."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], int] = {}
        self._durations: dict[str, _Durations] = {}

    def observe(self, operation: str, outcome: str, duration_s: float) -> None:
        """Count one call."""
        self._calls[operation, outcome] = self._calls.get((operation, outcome), 0) + 1
        durations = self._durations.get(operation)
        if durations is None:
            durations = self._durations[operation] = _Durations()
        durations.calls[bisect_left(_BUCKETS_S, duration_s)] += 1
        durations.total_s += duration_s

    def collect(self) -> Iterator[Metric]:
        """Both metrics, as Prometheus' client writes them."""
        calls = CounterMetricFamily(
            "broker_operations",
            "Operations run, by name and outcome (`ok` or the name of the error).",
            labels=["operation", "outcome"],
        )
        for labels, count in self._calls.items():
            calls.add_metric(labels, count)
        yield calls
        seconds = HistogramMetricFamily(
            "broker_operation_seconds",
            "Time from the call to its result; a streamed result counts to its first part.",
            labels=["operation"],
        )
        for operation, durations in self._durations.items():
            buckets = list(zip(_BOUNDS, accumulate(durations.calls), strict=True))
            seconds.add_metric([operation], buckets, durations.total_s)
        yield seconds


REGISTRY = CollectorRegistry()
_OPERATIONS = _Operations()
REGISTRY.register(_OPERATIONS)

observe = _OPERATIONS.observe


def render() -> bytes:
    """Everything in Prometheus' text format."""
    return generate_latest(REGISTRY)
