"""A plan, the constants and the comparisons, as tables."""

from collections.abc import Iterable

from rich.table import Table

from bench.capacity.check import Comparison as Checked
from bench.capacity.constants import Constants
from bench.capacity.model import Plan, Use
from bench.capacity.published import Comparison
from bench.capacity.scene import Hardware, Scene


def build_plans_table(plans: dict[str, tuple[Scene, Plan]], hardware: Hardware) -> Table:
    """A column for each scene: what it needs."""
    title = (
        f"Nodes of {hardware.cores} cores, {hardware.memory_gb:g} GB and {hardware.gbit_per_s:g} Gbit/s,"
        f" of which {hardware.busy:.0%} may be used; one that may fail comes on top"
    )
    table = _open_table(title, "", *plans)
    figures = [_describe(scene, one) for scene, one in plans.values()]
    for name in figures[0]:
        table.add_row(name, *(figure[name] for figure in figures))
    return table


def build_uses_table(name: str, found: Plan) -> Table:
    """What is full first, and at what load."""
    table = _open_table(f"{name}: what is full first", "resource", "load", "used", "full at", "")
    for use in found.uses:
        if use.load:
            over = " [red](more than there is)" if use.used > 1 else ""
            table.add_row(
                use.resource, _show(use.load), f"{use.used:.1%}", _show(use.full_at), use.unit + over
            )
    return table


def build_bounds_table(name: str, found: Plan, relay_hop_ms: float) -> Table:
    """What the centre bears, however many nodes there are."""
    title = (
        f"{name}: where more nodes help no more. Where there are many gateways, relays feed the others, which"
        f" takes some {relay_hop_ms:g} ms more"
    )
    table = _open_table(title, "bound", "gateways", "viewers", "then")
    for bound in found.bounds:
        table.add_row(bound.resource, _show(bound.gateways), _show(bound.viewers), bound.remedy)
    return table


def build_comparison_table(comparisons: Iterable[Comparison]) -> Table:
    """Centrifugo's published figures beside ours."""
    table = _open_table(
        "Centrifugo, as published, and the broker, by this model",
        "load",
        "Centrifugo",
        "broker",
        "of",
        "but",
        "source",
    )
    for one in comparisons:
        table.add_row(one.load, _show(one.theirs), _show(one.ours), one.unit, one.reserve, one.source)
    return table


def build_check_table(title: str, comparisons: Iterable[Checked]) -> Table:
    """What the model says beside what was measured."""
    table = _open_table(title, "what", "predicted", "measured", "unit", "off by")
    for one in comparisons:
        off = f"{one.deviation:+.1%}"
        table.add_row(
            one.what, _show(one.predicted), _show(one.measured), one.unit, off if one.holds else f"[red]{off}"
        )
    return table


def build_constants_table(constants: Constants) -> Table:
    """Every figure with its unit and its source."""
    table = _open_table("Constants", "name", "value", "unit", "source")
    for one in constants:
        table.add_row(one.name, _show(one.value), one.unit, one.source)
    return table


def say_limits(name: str, found: Plan) -> str:
    """What is full first and what next, in a sentence."""
    first, second = find_limits(found)
    return (
        f"{name}: {first.resource} is full first, at {_show(first.full_at)} {first.unit}"
        f" ({first.used:.0%} used); then {second.resource}, at {_show(second.full_at)} {second.unit}"
        f" ({second.used:.0%} used)."
    )


def find_limits(found: Plan) -> tuple[Use, Use]:
    """The fullest resource, and the fullest of another kind; all processors of gateways are one."""
    first = found.uses[0]
    kind = first.resource.partition(",")[0]
    return first, next(use for use in found.uses if use.resource.partition(",")[0] != kind)


def _describe(scene: Scene, found: Plan) -> dict[str, str]:
    millions, memory_gb = scene.viewers / 1e6, found.memory_bytes / 1e9
    return {
        "viewers, programs": f"{scene.viewers:,}, {scene.programs:,}",
        "events/s of a program, votes": f"{scene.events_per_s:g}, {scene.votes:,}",
        "nodes, decided by": f"{found.nodes}, {found.decided_by}",
        "owners, counters": f"{found.owners}, {found.counters}",
        "cores busy (PostgreSQL's)": f"{found.cores:.1f} ({found.postgres_cores:.2f})",
        "memory, GB": f"{memory_gb:.0f}",
        "network out of a node, Gbit/s": f"{found.node_bytes_per_s * 8 / 1e9:.2f}",
        "connections to PostgreSQL": f"{found.postgres_connections}",
        "cores, GB a million viewers": f"{found.cores / millions:.1f}, {memory_gb / millions:.1f}",
    }


def _open_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _show(value: float) -> str:
    """A figure with three digits that mean something, or whole."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
