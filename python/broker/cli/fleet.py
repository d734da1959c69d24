"""What `broker top` shows: the pages of metrics of all nodes, read twice, as figures of nodes and processes.

Counters become rates over the time between the two readings; those of a process that was not there before, or
that has started anew, count from the next reading on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from broker.metrics import catalogue
from broker.metrics.catalogue import PROCESS_LABELS, Definition

Process = tuple[str, str, str]
"""Node, kind and number."""

_HIGH = 0.99


@dataclass(frozen=True, slots=True)
class Reading:
    """The pages of all nodes at one time.

    Attributes:
        at_s: of a clock that nobody sets.
        samples: name → process → values with their own labels.
        failed: URL → why it could not be read.
    """

    at_s: float
    samples: Mapping[str, Mapping[Process, Mapping[tuple[str, ...], float]]]
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """One node. Rates are per second, times in seconds; None is unknown, as before the second reading.

    Attributes:
        refusing: of the `doors`, the processes that take changes, those that refuse them for maintenance.
    """

    node: str
    viewers: int
    subscriptions: int
    joins: float | None
    deliveries: float | None
    delay_p99_s: float | None
    loop_lag_s: float
    messages: float | None
    refused: float | None
    memory_bytes: int
    cpu: float | None
    silent: tuple[str, ...]
    refusing: int
    doors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFigures:
    """One owner or counter, in the same units."""

    node: str
    process: str
    pid: str
    slot: str
    topics: int
    followers: int
    changes: float | None
    write_p99_s: float | None
    waiting: int
    lag_s: float
    cpu: float | None


def read(pages: Mapping[str, str], failed: Mapping[str, str], at_s: float) -> Reading:
    """Pages in Prometheus' text format, by the URLs that they were read from."""
    samples: dict[str, dict[Process, dict[tuple[str, ...], float]]] = defaultdict(lambda: defaultdict(dict))
    for page in pages.values():
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = dict(sample.labels)
                node, kind, pid = (labels.pop(name, "") for name in PROCESS_LABELS)
                bound = labels.pop("le", None)
                own = (*labels.values(), bound) if bound else tuple(labels.values())
                samples[sample.name][node, kind, pid][own] = sample.value
    return Reading(at_s, samples, failed)


def list_nodes(now: Reading, before: Reading | None) -> list[NodeFigures]:
    """Every node with a process, by name."""
    nodes = sorted({node for node, _, _ in now.samples.get(catalogue.UP.name, {})})
    return [_node(node, now, before) for node in nodes]


def list_slots(now: Reading, before: Reading | None) -> list[SlotFigures]:
    """Every owner and counter, by slot."""
    found = now.samples.get(catalogue.GENERATION.name, {})
    slots = [_slot(process, slot, now, before) for process, values in found.items() for (slot,) in values]
    return sorted(slots, key=lambda each: (each.process, _number(each.slot)))


def _node(node: str, now: Reading, before: Reading | None) -> NodeFigures:
    def is_ours(process: Process) -> bool:
        return process[0] == node

    def total(definition: Definition) -> int:
        return int(sum(_values(now, definition.name, is_ours)))

    def rate(definition: Definition) -> float | None:
        return _rate(now, before, definition.name, is_ours)

    up = now.samples.get(catalogue.UP.name, {})
    silent = sorted(
        f"{kind} {pid}"
        for (where, kind, pid), values in up.items()
        if where == node and not any(values.values())
    )
    doors = list(_values(now, catalogue.MAINTENANCE.name, is_ours))
    return NodeFigures(
        node=node,
        viewers=total(catalogue.CONNECTIONS),
        subscriptions=total(catalogue.SUBSCRIPTIONS),
        joins=rate(catalogue.HANDSHAKES),
        deliveries=rate(catalogue.DELIVERIES),
        delay_p99_s=_quantile(now, before, catalogue.DELAY_SECONDS, is_ours),
        loop_lag_s=max(_values(now, catalogue.LOOP_LAG.name, is_ours), default=0.0),
        messages=rate(catalogue.MESSAGES),
        refused=rate(catalogue.REFUSED),
        memory_bytes=total(catalogue.RESIDENT),
        cpu=rate(catalogue.CPU),
        silent=tuple(silent),
        refusing=int(sum(doors)),
        doors=len(doors),
    )


def _slot(process: Process, slot: str, now: Reading, before: Reading | None) -> SlotFigures:
    def is_it(other: Process) -> bool:
        return other == process

    def one(definition: Definition) -> float:
        return sum(_values(now, definition.name, is_it))

    node, kind, pid = process
    return SlotFigures(
        node=node,
        process=kind,
        pid=pid,
        slot=slot,
        topics=int(one(catalogue.TOPICS) + one(catalogue.TALLIES)),
        followers=int(one(catalogue.FOLLOWERS)),
        changes=_rate(now, before, catalogue.COMMITTED.name, is_it),
        write_p99_s=_quantile(now, before, catalogue.WRITE_SECONDS, is_it),
        waiting=int(one(catalogue.QUEUE)),
        lag_s=one(catalogue.LAG),
        cpu=_rate(now, before, catalogue.CPU.name, is_it),
    )


def _values(reading: Reading, name: str, is_wanted: Callable[[Process], bool]) -> Iterable[float]:
    for process, values in reading.samples.get(name, {}).items():
        if is_wanted(process):
            yield from values.values()


def _rate(
    now: Reading, before: Reading | None, name: str, is_wanted: Callable[[Process], bool]
) -> float | None:
    if before is None or now.at_s <= before.at_s:
        return None
    grown = 0.0
    former = before.samples.get(name, {})
    for process, values in now.samples.get(name, {}).items():
        if is_wanted(process):
            known = former.get(process, values)
            grown += sum(max(0.0, value - known.get(labels, 0.0)) for labels, value in values.items())
    return grown / (now.at_s - before.at_s)


def _quantile(
    now: Reading, before: Reading | None, definition: Definition, is_wanted: Callable[[Process], bool]
) -> float | None:
    """The bound below which 99 of 100 observations between the readings lie; None without any."""
    if before is None:
        return None
    name = f"{definition.name}_bucket"
    grown: dict[float, float] = defaultdict(float)
    former = before.samples.get(name, {})
    for process, values in now.samples.get(name, {}).items():
        known = former.get(process)
        if known is None or not is_wanted(process):
            continue
        for labels, value in values.items():
            # The bound is the last label; buckets count all below theirs.
            grown[float(labels[-1])] += value - known.get(labels, 0.0)
    bounds = sorted(grown)
    if not bounds or grown[bounds[-1]] <= 0:
        return None
    return next(bound for bound in bounds if grown[bound] >= _HIGH * grown[bounds[-1]])


def _number(slot: str) -> tuple[str, int]:
    name, _, number = slot.rpartition("-")
    return name, int(number) if number.isdecimal() else 0
