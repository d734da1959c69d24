"""The figures as charts (PNG), beside the JSON that has them as numbers."""

from collections.abc import Sequence
from pathlib import Path

from bench.report import Medians, Results

PANELS = (
    ("alone_cpu_us", "One message at a time:\nCPU a delivery, µs"),
    ("paced_cpu_us", "100 messages/s:\nCPU a delivery, µs"),
    ("burst_per_s", "As fast as possible:\ndeliveries/s"),
    ("alone_last_ms", "Until the last viewer has it, ms"),
    ("connection_bytes", "Memory of an idle connection, bytes"),
    ("handshakes_per_s", "Handshakes/s"),
)
OURS, THEIRS = "#c2410c", "#64748b"
DPI = 110


def draw(results: Results, path: Path) -> list[Path]:
    """Draw what was measured, if anything, to files named for the JSON file; returns them.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    drawn = []
    for subscribers in sorted({subscribers for subscribers, _ in results.medians}):
        medians = {
            name: figures for (count, name), figures in results.medians.items() if count == subscribers
        }
        target = path.with_name(f"{path.stem}-{subscribers}-viewers.png")
        draw_side_by_side(medians, f"{subscribers:,} viewers, {describe(results)}", target)
        drawn.append(target)
    for part, scenes in results.scenes.items():
        target = path.with_name(f"{path.stem}-{part}.png")
        drawing = DRAWINGS.get(part, draw_scenes)
        drawing(scenes, f"{part}, {describe(results)}", target)
        drawn.append(target)
    return [target for target in drawn if target.exists()]


def describe(results: Results) -> str:
    """The machine in a few words."""
    machine = results.machine
    where = f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}"
    return f"medians of {results.runs}; {where}"


def draw_side_by_side(medians: dict[str, Medians], title: str, path: Path) -> None:
    """A panel of bars for each figure that somebody has."""
    from matplotlib import pyplot

    panels = [panel for panel in PANELS if any(panel[0] in figures for figures in medians.values())]
    if not panels:
        return
    rows = -(-len(panels) // 2)
    figure, axes = pyplot.subplots(rows, 2, figsize=(12, 1 + 3.2 * rows), layout="constrained", squeeze=False)
    for place, axis in enumerate(axes.flat):
        axis.set_visible(place < len(panels))
    for axis, (name, heading) in zip(axes.flat, panels, strict=False):
        having = {contender: figures[name] for contender, figures in medians.items() if name in figures}
        draw_bars(axis, list(having), list(having.values()), heading)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def draw_scenes(scenes: dict[str, Medians], title: str, path: Path) -> None:
    """A panel for the times and one for the CPU; counts and rates are in the table only."""
    from matplotlib import pyplot

    panels = [(heading, pick_bars(scenes, unit)) for unit, heading in (("_ms", "ms"), ("CPU_us", "CPU, µs"))]
    panels = [(heading, bars) for heading, bars in panels if bars]
    if not panels:
        return
    lines = [len(bars) for _, bars in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(10, 1 + len(panels) + 0.3 * sum(lines)),
        layout="constrained",
        squeeze=False,
        height_ratios=[count + 2 for count in lines],
    )
    for axis, (heading, bars) in zip(axes.flat, panels, strict=True):
        draw_bars(axis, list(bars), list(bars.values()), heading)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def draw_hops(scenes: dict[str, Medians], title: str, path: Path) -> None:
    """One bar for each way, divided into its hops or whole; milliseconds."""
    from matplotlib import pyplot

    lines: dict[str, Medians] = {}
    for scene, figures in scenes.items():
        parts = {name.removesuffix("_ms"): value for name, value in figures.items()}
        lines |= {scene: parts} if scene in DIVIDED else {name: {"": parts[name]} for name in parts}
    figure, axis = pyplot.subplots(figsize=(12, 1.5 + 0.45 * len(lines)), layout="constrained")
    colours = pyplot.get_cmap("tab10")
    for line, parts in lines.items():
        left = 0.0
        for place, (name, value) in enumerate(parts.items()):
            bar = axis.barh([line], [value], left=left, color=colours(place) if name else THEIRS)
            axis.bar_label(bar, [f"{name}\n{value:.2f}".strip()], label_type="center", fontsize=8)
            left += max(0.0, value)
    axis.invert_yaxis()
    axis.set_xlabel("ms")
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def pick_bars(scenes: dict[str, Medians], unit: str) -> dict[str, float]:
    """The figures with this in their name, each named with its scene."""
    return {
        f"{scene}: {name.replace(unit, '').strip('_').replace('_', ' ')}": value
        for scene, figures in scenes.items()
        for name, value in figures.items()
        if unit in name
    }


def draw_bars(axis, names: Sequence[str], values: Sequence[float], heading: str) -> None:  # type: ignore[no-untyped-def]  # matplotlib is optional
    """Bars with their numbers, the first on top."""
    bars = axis.barh(names, values, color=[OURS if name.startswith("broker") else THEIRS for name in names])
    labels = [f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values]
    axis.bar_label(bars, labels, padding=2, fontsize=8)
    axis.invert_yaxis()
    axis.set_title(heading, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)


DIVIDED = {"a single event"}
"""Of the hops, what is one way in parts; everything else is a whole way a figure."""
DRAWINGS = {"hops": draw_hops}
"""Part → how it is drawn, where bars for each figure would not do."""
