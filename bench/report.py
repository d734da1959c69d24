"""Medians over the runs, as a table and as JSON."""

import json
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from bench.measure import Sample

ROWS = (
    ("alone_cpu_us", "one message at a time: CPU a delivery, µs", 2),
    ("alone_last_ms", "… until the last viewer has it, ms", 1),
    ("alone_p50_ms", "… publish→viewer p50, ms", 2),
    ("alone_p99_ms", "… publish→viewer p99, ms", 2),
    ("paced_cpu_us", "100 messages/s: CPU a delivery, µs", 2),
    ("paced_per_s", "… deliveries/s", 0),
    ("paced_p99_ms", "… publish→viewer p99, ms", 1),
    ("burst_cpu_us", "as fast as possible: CPU a delivery, µs", 2),
    ("burst_per_s", "… deliveries/s", 0),
    ("connection_bytes", "memory of an idle connection, bytes", 0),
    ("handshakes_per_s", "handshakes/s (ours: with subscribe)", 0),
    ("handshake_cpu_us", "… CPU each, µs", 1),
    ("alone_client_cpu_us", "the load client's own CPU a delivery, µs", 2),
)
"""(figure, what it is, decimals), in the order of the table."""

Medians = dict[str, float]


def take_medians(samples: Iterable[Sample]) -> dict[tuple[int, str], Medians]:
    """(subscribers, contender) → figure → median over the runs; a figure that is not a number is left out."""
    gathered: dict[tuple[int, str], dict[str, list[float]]] = {}
    for sample in samples:
        figures = gathered.setdefault((sample.subscribers, sample.contender), {})
        for name, value in sample.figures.items():
            if not math.isnan(value):
                figures.setdefault(name, []).append(value)
    return {
        key: {name: statistics.median(values) for name, values in figures.items()}
        for key, figures in gathered.items()
    }


def build_table(medians: dict[tuple[int, str], Medians], contenders: Sequence[str], runs: int) -> Table:
    """All figures side by side, one block for each number of subscribers."""
    table = Table(title=f"Side by side, medians of {runs} runs", title_justify="left")
    table.add_column("figure", no_wrap=True)
    for name in contenders:
        table.add_column(name, justify="right")
    for subscribers in sorted({subscribers for subscribers, _ in medians}):
        own = [medians.get((subscribers, name), {}) for name in contenders]
        table.add_row(f"[bold]{subscribers:,} subscribers")
        for figure, text, decimals in ROWS:
            cells = [f"{figures[figure]:,.{decimals}f}" if figure in figures else "-" for figures in own]
            if any(figure in figures for figures in own):
                table.add_row(text, *cells)
        table.add_section()
    return table


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


def write_json(
    directory: Path,
    machine: dict[str, object],
    medians: dict[tuple[int, str], Medians],
    samples: Sequence[Sample],
    product: dict[str, Medians],
) -> Path:
    """Write everything measured to a file named for the time; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    results = [
        {"subscribers": subscribers, "contender": name, "medians": figures}
        for (subscribers, name), figures in medians.items()
    ]
    runs = [
        {
            "subscribers": sample.subscribers,
            "contender": sample.contender,
            "figures": {name: value for name, value in sample.figures.items() if not math.isnan(value)},
            "faults": sample.faults,
        }
        for sample in samples
    ]
    document = {"machine": machine, "results": results, "runs": runs, "product": product}
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
