"""How long nothing could be published, and how long viewers were told nothing, for each fault."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from tests.adversity.judge import Publish


class Fault(NamedTuple):
    """What was done, when, and when everything was there and at work again; monotonic seconds."""

    name: str
    began_s: float
    over_s: float


class Pause(NamedTuple):
    """A time in which one program took nothing, or one viewer was told nothing."""

    began_s: float
    over_s: float


class Outage(NamedTuple):
    """The longest pauses that a fault made: of the worst program and of the worst viewer; seconds."""

    fault: Fault
    publish_s: float
    delivery_s: float


def publish_pauses(publishes: Iterable[Publish]) -> list[Pause]:
    """The times between acknowledgements of one program, all its producers taken together."""
    moments = sorted(publish.answered_s for publish in publishes if publish.answered_s is not None)
    return [Pause(*pair) for pair in pairwise(moments)]


def outages(
    faults: Sequence[Fault], publishing: Iterable[Sequence[Pause]], delivering: Iterable[Sequence[Pause]]
) -> list[Outage]:
    """What each fault cost; `publishing` is by program, `delivering` by viewer."""
    published = [pause for pauses in publishing for pause in pauses]
    delivered = [pause for pauses in delivering for pause in pauses]
    return [Outage(fault, _longest(published, fault), _longest(delivered, fault)) for fault in faults]


def _longest(pauses: Iterable[Pause], fault: Fault) -> float:
    return max(
        (p.over_s - p.began_s for p in pauses if p.over_s > fault.began_s and p.began_s < fault.over_s),
        default=0.0,
    )


def table(found: Iterable[Outage]) -> str:
    """The outages in Markdown, those of one name in one row: median and worst."""
    rows: Mapping[str, list[Outage]] = defaultdict(list)
    for outage in found:
        rows[outage.fault.name].append(outage)
    lines = [
        "| what happens | times | nothing published: median, worst | nothing delivered: median, worst |",
        "|---|---|---|---|",
    ]
    for name, of_name in sorted(rows.items()):
        publish = [outage.publish_s for outage in of_name]
        delivery = [outage.delivery_s for outage in of_name]
        lines.append(f"| {name} | {len(of_name)} | {_two(publish)} | {_two(delivery)} |")
    return "\n".join(lines)


def _two(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} s, {max(seconds):.1f} s"
