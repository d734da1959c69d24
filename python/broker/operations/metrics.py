"""What is counted of every operation, through either door, in Prometheus' terms.

Nothing here carries an account, a user or an id: a metric must not tell one account of another.
"""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a read of a cached program to an import of 64 MiB.
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REGISTRY = CollectorRegistry()
_CALLS = Counter(
    "broker_operations",
    "Operations run, by name and outcome (`ok` or the name of the error).",
    ["operation", "outcome"],
    registry=REGISTRY,
)
_SECONDS = Histogram(
    "broker_operation_seconds",
    "Time from the call to its result; a streamed result counts to its first part.",
    ["operation"],
    buckets=_BUCKETS_S,
    registry=REGISTRY,
)


@cache
def _counter(operation: str, outcome: str) -> Counter:
    return _CALLS.labels(operation, outcome)


@cache
def _histogram(operation: str) -> Histogram:
    return _SECONDS.labels(operation)


def observe(operation: str, outcome: str, duration_s: float) -> None:
    """Count one call of `operation`."""
    _counter(operation, outcome).inc()
    _histogram(operation).observe(duration_s)


def render() -> bytes:
    """Everything in Prometheus' text format."""
    return generate_latest(REGISTRY)
