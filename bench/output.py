"""What all parts of the bench print and write."""

import sys
from pathlib import Path

from rich.console import Console

from bench.machine import describe_machine
from bench.plots import draw
from bench.report import Results, write_json

RESULTS = Path(__file__).parent / "results"
WIDE = 150
"""Columns where the table goes to a file."""


def open_console() -> Console:
    """Standard output, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def start_results(console: Console, runs: int) -> Results:
    """Say on what is measured, before the measuring itself loads it."""
    results = Results(describe_machine(), runs)
    console.print(", ".join(f"{name} {value}" for name, value in results.machine.items()))
    return results


def conclude(results: Results, faults: list[str], console: Console) -> int:
    """Print what went wrong, write the files; returns the exit status."""
    for fault in faults:
        console.print(f"[red]{fault}")
    path = write_json(RESULTS, results)
    console.print(f"written to {path}")
    try:
        for chart in draw(results, path):
            console.print(f"drawn in {chart}")
    except ImportError as error:
        console.print(f"[yellow]no plots: {error}; `make bench` installs what they need")
    return 1 if faults else 0
