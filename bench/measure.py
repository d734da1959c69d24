"""One run of one contender: connect, rest, publish in several ways."""

import time
from dataclasses import dataclass, field
from typing import Any

from bench.child import Child
from bench.contenders import ROOT, Contender, build_load
from broker.deployments.ports import free_port

MESSAGE_BYTES = 300
"""A score update with its envelope."""
SETTLE_S = 0.5
"""After connecting, before memory is read: allocators and accept queues come to rest."""
ROUND_S = 120.0
"""A round that takes longer has failed."""


@dataclass(frozen=True, slots=True)
class Round:
    """A way to publish."""

    name: str
    messages: int
    interval_us: int


@dataclass(slots=True)
class Sample:
    """What one run gave: figure → value, and everything that went wrong."""

    contender: str
    subscribers: int
    version: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def plan_rounds(subscribers: int, is_quick: bool) -> list[Round]:
    """The rounds for so many subscribers (a quarter as long when quick)."""
    part = 4 if is_quick else 1
    alone = Round("alone", max(5, 20 // part), 20_000 + 40 * subscribers)
    burst = Round("burst", max(10, 200_000 // subscribers // part), 0)
    return [alone, Round("paced", 200 // part, 10_000), burst]


def measure(contender: Contender, subscribers: int, is_quick: bool) -> Sample:
    """Run one contender in a fresh process.

    Raises:
        ChildError: the contender or the load client has failed.
    """
    sample = Sample(contender.name, subscribers)
    port = free_port()
    with Child(contender.command(port), ROOT) as server:
        sample.version = server.receive_serving()
        empty_bytes, idle_cpu_s = server.memory_bytes(), server.cpu_s()
        with Child(build_load(port, subscribers, contender), ROOT) as load:
            ready = load.receive()
            sample.figures["handshakes_per_s"] = subscribers / ready["seconds"]
            sample.figures["handshake_cpu_us"] = (server.cpu_s() - idle_cpu_s) / subscribers * 1e6
            time.sleep(SETTLE_S)
            sample.figures["connection_bytes"] = (server.memory_bytes() - empty_bytes) / subscribers
            for plan in plan_rounds(subscribers, is_quick):
                run_round(plan, server, load, sample)
    return sample


def run_round(plan: Round, server: Child, load: Child, sample: Sample) -> None:
    """Publish and put what it cost into the sample."""
    load.send(f"expect {plan.messages} {ROUND_S}")
    load.receive()
    before_s = server.cpu_s()
    server.send(f"publish {plan.messages} {MESSAGE_BYTES} {plan.interval_us}")
    server.receive()
    report = load.receive()
    cpu_s = server.cpu_s() - before_s
    delivered = max(1, report["delivered"])
    figures = {
        "cpu_us": cpu_s / delivered * 1e6,
        "client_cpu_us": report["cpu_s"] / delivered * 1e6,
        "per_s": delivered / max(report["seconds"], 1e-9),
        "p50_ms": to_ms(report["latency_p50_us"]),
        "p99_ms": to_ms(report["latency_p99_us"]),
        "last_ms": to_ms(report["last_viewer_p50_us"]),
    }
    sample.figures |= {f"{plan.name}_{name}": value for name, value in figures.items()}
    sample.faults += find_faults(plan.name, report)


def find_faults(name: str, report: dict[str, Any]) -> list[str]:
    """What the viewers did not get as they should have."""
    kinds = ("lost", "missing", "doubled", "closed", "unrecovered")
    return [f"{name}: {report[kind]} {kind}" for kind in kinds if report[kind]]


def to_ms(microseconds: int | None) -> float:
    """Milliseconds; not a number when nothing was measured."""
    return float("nan") if microseconds is None else microseconds / 1000
