"""`python -m bench http`: the HTTP door beside a bare deployment."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.child import ChildError
from bench.contenders import ROOT
from bench.machine import describe_machine
from bench.product import ProductError
from bench.rest.instance import running_instance
from bench.rest.measure import Round, measure

RESULTS = Path(__file__).parents[1] / "results"
_WIDE = 140
_QUICK_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; 1 when a request failed or a floor was missed."""
    options = parse_options(arguments)
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    with console.status("building the HTTP client"):
        subprocess.run(
            ["cargo", "build", "--release", "--quiet", "--example", "http_load"], cwd=ROOT, check=True
        )
    machine = describe_machine()
    seconds, runs = (_QUICK_S, 1) if options.quick else (options.seconds, options.runs)
    floors: dict[str, float] = {}
    rounds: list[Round] = []
    try:
        with console.status("starting the product"), running_instance() as instance:
            for case, result in measure(instance, runs, options.connections, seconds, options.cases):
                floors[case.name] = case.floor
                rounds.append(result)
    except (ProductError, ChildError) as error:
        console.print(f"[red]{error}", markup=True)
        return 1
    console.print(build_table(rounds, floors, options.connections))
    path = write_json(RESULTS, machine, rounds)
    console.print(f"written to {path}")
    return 0 if options.quick or not find_missed(rounds, floors) else 1


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench http", description="The HTTP door, side by side.")
    parser.add_argument(
        "--runs", type=int, default=5, help="rounds of each case; the table has their medians"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of one round")
    parser.add_argument("--connections", type=int, default=64, help="kept, each with one request under way")
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast")
    return parser.parse_args(arguments)


def shares(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Case → the API's rate by the bare deployment's, one number a pair of rounds."""
    found: dict[str, list[float]] = {}
    for name in dict.fromkeys(one.case for one in rounds):
        bare = [one.per_s for one in rounds if (one.case, one.side) == (name, "bare")]
        ours = [one.per_s for one in rounds if (one.case, one.side) == (name, "broker")]
        found[name] = [mine / base for mine, base in zip(ours, bare, strict=True)]
    return found


def find_missed(rounds: Sequence[Round], floors: dict[str, float]) -> list[str]:
    """The cases whose median share is under their floor."""
    return [name for name, found in shares(rounds).items() if statistics.median(found) < floors[name]]


def build_table(rounds: Sequence[Round], floors: dict[str, float], connections: int) -> Table:
    """Both sides of each case."""
    runs = len(rounds) // (2 * len(floors))
    title = f"HTTP beside a bare Serve deployment, {connections} connections, medians of {runs} rounds"
    table = Table("case", title=title, title_justify="left")
    parts = list(rounds[0].cpu_us)
    for name in ("requests/s", "share", "p50, ms", "p99, ms", *(f"{part}, µs" for part in parts)):
        table.add_column(name, justify="right")
    for name, found in shares(rounds).items():
        for side in ("bare", "broker"):
            own = [one for one in rounds if (one.case, one.side) == (name, side)]
            share = f"{statistics.median(found):.0%}" if side == "broker" else f"(≥ {floors[name]:.0%})"
            cells = [f"{statistics.median(one.per_s for one in own):,.0f}", share]
            cells += [
                f"{statistics.median(figures):.1f}"
                for figures in zip(*((o.p50_ms, o.p99_ms) for o in own), strict=True)
            ]
            cells += [f"{statistics.median(one.cpu_us[part] for one in own):.0f}" for part in parts]
            table.add_row(f"{name}" if side == "broker" else f"{name}, bare", *cells)
        table.add_section()
    return table


def write_json(directory: Path, machine: dict[str, object], rounds: Sequence[Round]) -> Path:
    """Write everything measured to a file named for the time; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("http-%Y%m%dT%H%M%SZ.json", time.gmtime())
    path.write_text(
        json.dumps({"machine": machine, "rounds": [asdict(one) for one in rounds]}, indent=1) + "\n"
    )
    return path
