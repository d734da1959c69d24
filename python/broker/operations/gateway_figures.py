"""What all gateways together do, for `/metrics`, the statistics and the demo."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.storage.gateways import GatewayRow

# Figure → (metric, meaning); a gateway's heartbeat carries figures of these names.
GAUGES = {
    "connections": ("broker_gateway_connections", "Open WebSocket connections."),
    "subscriptions": ("broker_gateway_subscriptions", "Subscriptions of open connections."),
    "logs": ("broker_gateway_logs", "Topics whose pushes are kept in memory."),
    "log_bytes": ("broker_gateway_log_bytes", "Bytes of those pushes."),
    "sessions": ("broker_gateway_sessions", "Access tokens in use."),
    "calls_running": ("broker_gateway_calls_running", "Calls that run in Python now."),
    "calls_waiting": ("broker_gateway_calls_waiting", "Calls that wait for their turn."),
}
COUNTERS = {
    "deliveries": ("broker_gateway_deliveries", "Notifications given to connections."),
    "delivered_bytes": ("broker_gateway_delivered_bytes", "Bytes of those notifications."),
    "messages_in": ("broker_gateway_messages_in", "Messages from clients."),
    "slow_consumers": ("broker_gateway_slow_consumers", "Connections closed for falling behind."),
    "handshakes": ("broker_gateway_handshakes", "WebSocket handshakes completed."),
    "answers_native": ("broker_gateway_answers_native", "Votes taken without Python."),
    "refused": ("broker_gateway_refused", "Connections and handshakes refused."),
}


def total(gateways: Iterable[GatewayRow], figure: str) -> float:
    """The sum of one figure over all gateways; one that does not know it counts as 0."""
    return sum(gateway.figures.get(figure, 0) for gateway in gateways)


def metric_families(gateways: Sequence[GatewayRow]) -> list[Metric]:
    """The figures in Prometheus' terms, one sample a gateway."""
    families: list[Metric] = []
    for figure, (name, text) in GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["gateway"])
        _add(gauge, gateways, figure)
        families.append(gauge)
    for figure, (name, text) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["gateway"])
        _add(counter, gateways, figure)
        families.append(counter)
    return families


def render(gateways: Sequence[GatewayRow]) -> bytes:
    """The figures in Prometheus' text format."""
    families = metric_families(gateways)
    return generate_latest(_Fixed(families))


@dataclass(frozen=True, slots=True)
class _Fixed(Collector):
    """Families that are there already."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _add(
    family: GaugeMetricFamily | CounterMetricFamily, gateways: Sequence[GatewayRow], figure: str
) -> None:
    for gateway in gateways:
        family.add_metric([gateway.id], gateway.figures.get(figure, 0))
