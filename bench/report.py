"""Medians over the runs, as tables and as JSON."""

import json
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.measure import Sample

FIGURES = (
    ("alone_cpu_us", "one at a time: CPU, µs", 2),
    ("alone_last_ms", "last one, ms", 1),
    ("alone_p50_ms", "p50, ms", 2),
    ("alone_p99_ms", "p99, ms", 2),
    ("paced_cpu_us", "100/s: CPU, µs", 2),
    ("paced_per_s", "a second", 0),
    ("paced_p99_ms", "p99, ms", 1),
    ("burst_cpu_us", "as fast as possible: CPU, µs", 2),
    ("burst_per_s", "a second", 0),
    ("connection_bytes", "bytes a viewer", 0),
    ("handshakes_per_s", "joins/s", 0),
    ("handshake_cpu_us", "CPU each, µs", 1),
    ("alone_client_cpu_us", "client, CPU, µs", 2),
)
"""(figure, heading, decimals), in the order of the table."""

Medians = dict[str, float]


@dataclass(slots=True)
class Results:
    """Everything that one call of the bench has measured."""

    machine: dict[str, object]
    runs: int
    medians: dict[tuple[int, str], Medians] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    product: dict[str, Medians] = field(default_factory=dict)
    scenes: dict[str, dict[str, Medians]] = field(default_factory=dict)
    """part (`viewers`, `storms`) → what was done → figure → median."""


def take_medians(samples: Iterable[Sample]) -> dict[tuple[int, str], Medians]:
    """(subscribers, contender) → figure → median over the runs; a figure that is not a number is left out."""
    gathered: dict[tuple[int, str], list[dict[str, float]]] = {}
    for sample in samples:
        gathered.setdefault((sample.subscribers, sample.contender), []).append(sample.figures)
    return {key: take_median(figures) for key, figures in gathered.items()}


def take_median(runs: Iterable[dict[str, float]]) -> Medians:
    """Figure → median over the runs that have it."""
    gathered: dict[str, list[float]] = {}
    for figures in runs:
        for name, value in figures.items():
            if not math.isnan(value):
                gathered.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in gathered.items()}


def build_table(medians: dict[tuple[int, str], Medians], contenders: Sequence[str], runs: int) -> Table:
    """A line for each contender, a block for each number of subscribers; CPU is a delivery's."""
    table = Table(
        title=f"Side by side, medians of {runs} runs",
        title_justify="left",
        padding=(0, 0),
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    for _, heading, _ in FIGURES:
        table.add_column(heading, justify="right", vertical="bottom")
    for subscribers in sorted({subscribers for subscribers, _ in medians}):
        table.add_row(f"[bold]{subscribers:,} subscribers")
        for name in contenders:
            figures = medians.get((subscribers, name), {})
            table.add_row(name, *(show(figures.get(figure), decimals) for figure, _, decimals in FIGURES))
        table.add_section()
    return table


def show(value: float | None, decimals: int) -> str:
    """A figure with separators; a dash where nothing was measured."""
    return "-" if value is None else f"{value:,.{decimals}f}"


def build_scenes_table(title: str, scenes: dict[str, Medians], runs: int) -> Table:
    """A line for each figure of each thing that was done."""
    table = Table(title=f"{title}, medians of {runs} runs", title_justify="left")
    for name in ("what", "figure"):
        table.add_column(name)
    table.add_column("value", justify="right")
    for scene, figures in scenes.items():
        for index, (name, value) in enumerate(figures.items()):
            decimals = 0 if abs(value) >= 1000 or value == int(value) else 2
            table.add_row("" if index else scene, name.replace("_", " "), show(value, decimals))
        table.add_section()
    return table


def build_rows_table(title: str, scenes: dict[str, Medians], runs: int) -> Table:
    """A line for each thing that was done; its figures stand in columns."""
    table = Table(title=f"{title}, medians of {runs} runs", title_justify="left", padding=(0, 0))
    table.add_column("what", no_wrap=True)
    names = list(dict.fromkeys(name for figures in scenes.values() for name in figures))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", vertical="bottom")
    for scene, figures in scenes.items():
        table.add_row(scene, *(show(figures.get(name), pick_decimals(figures.get(name))) for name in names))
    return table


def pick_decimals(value: float | None) -> int:
    """Three digits, about."""
    return 0 if value is None or abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def build_product_table(latencies: dict[str, Medians], viewers: int, runs: int) -> Table:
    """The whole product: from a producer's call to its viewers."""
    title = f"Whole product, publish→{viewers} viewers, medians of {runs} runs"
    table = Table("published over", title=title, title_justify="left")
    for name in ("p50, ms", "p99, ms", "acknowledged p50, ms"):
        table.add_column(name, justify="right")
    for door, figures in latencies.items():
        cells = [figures["p50_ms"], figures["p99_ms"], figures["acknowledged_p50_ms"]]
        table.add_row(door, *(f"{value:.2f}" for value in cells))
    return table


def list_versions(samples: Iterable[Sample]) -> dict[str, str]:
    """Contender → the version that ran."""
    return {sample.contender: sample.version for sample in samples if sample.version}


def write_json(directory: Path, results: Results) -> Path:
    """Write everything measured to a file named for the time; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    document: dict[str, Any] = {
        "machine": results.machine,
        "runs_each": results.runs,
        "versions": list_versions(results.samples),
        "results": [
            {"subscribers": subscribers, "contender": name, "medians": figures}
            for (subscribers, name), figures in results.medians.items()
        ],
        "runs": [list_measured(sample) for sample in results.samples],
        "product": results.product,
        "scenes": results.scenes,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def list_measured(sample: Sample) -> dict[str, Any]:
    """A sample without what is not a number."""
    figures = {name: value for name, value in sample.figures.items() if not math.isnan(value)}
    return asdict(sample) | {"figures": figures}
