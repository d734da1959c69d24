"""As much as can be published durably, and how late it is below that."""

from bench.measure import to_ms
from bench.processes import cpu_s
from bench.product import Product
from bench.publish.doors import Doors, Published
from bench.report import Medians

DOORS = ("HTTP", "WebSocket")
BATCH = 100
IN_FLIGHT = {1: (1, 16, 64, 256), BATCH: (1, 16, 64)}
"""Events of one request → requests at a time."""
KINDS = ("client", "ingress", "replica", "owner", "gateway", "PostgreSQL")
SHARES = (0.1, 0.5, 0.9)
"""Of the largest rate, at which latencies are taken."""
PACED_IN_FLIGHT = 256
_WARM = 20
"""Requests a connection, by which the rate is guessed."""
_MOST_EVENTS = 200_000
"""Of one round: 20 viewers have as many latencies as their client keeps."""


def measure_rate(
    doors: Doors, product: Product, door: str, batch: int, in_flight: int, seconds: float
) -> tuple[Medians, list[str]]:
    """As fast as requests are answered; figures and faults."""
    warm = doors.publish(door, batch, in_flight, _WARM * in_flight)
    guess = int(requests_per_s(warm) * seconds)
    requests = max(in_flight, min(guess, _MOST_EVENTS // batch))
    before = cpu_s(product)
    done = doors.publish(door, batch, in_flight, requests)
    after = cpu_s(product)
    events = requests * batch
    used_s = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    used_s["client"] = done.client["cpu_s"]
    figures: Medians = {
        "events_per_s": requests_per_s(done) * batch,
        "acknowledged_p50_ms": to_ms(done.client["p50_us"]),
        "acknowledged_p99_ms": to_ms(done.client["p99_us"]),
    }
    for kind in KINDS:
        figures[f"{kind}_CPU_us"] = used_s.get(kind, 0.0) / events * 1e6
    figures["rest_CPU_us"] = sum(used_s[kind] for kind in used_s if kind not in KINDS) / events * 1e6
    return figures, warm.faults + done.faults


def measure_latency(
    doors: Doors, door: str, most_per_s: float, share: float, seconds: float
) -> tuple[Medians, list[str]]:
    """Single events at a share of the largest rate; figures and faults."""
    per_s = max(1, int(most_per_s * share))
    requests = min(int(per_s * seconds) + 1, _MOST_EVENTS)
    done = doors.publish(door, 1, PACED_IN_FLIGHT, requests, per_s)
    return {
        "events_per_s": requests_per_s(done),
        "viewer_p50_ms": to_ms(done.viewers["latency_p50_us"]),
        "viewer_p99_ms": to_ms(done.viewers["latency_p99_us"]),
        "acknowledged_p50_ms": to_ms(done.client["p50_us"]),
        "acknowledged_p99_ms": to_ms(done.client["p99_us"]),
    }, done.faults


def requests_per_s(done: Published) -> float:
    """The rate of a round."""
    return float(done.client["replies"] / done.client["microseconds"] * 1e6)
