"""`python -m bench http`: the HTTP door beside a bare deployment."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.child import ChildError
from bench.contenders import ROOT
from bench.machine import describe_machine
from bench.product import ProductError
from bench.rest.instance import running_instance
from bench.rest.measure import SIDES, Round, measure

RESULTS = Path(__file__).parents[1] / "results"
CONNECTIONS = 64
_WIDE = 160
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
    console.print(build_table(rounds, floors, runs))
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
    parser.add_argument(
        "--connections", type=int, nargs="+", default=[CONNECTIONS], help="each with one request under way"
    )
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast")
    return parser.parse_args(arguments)


Group = tuple[str, int]
"""A case, and how many connections it was measured with."""


def group(rounds: Sequence[Round]) -> dict[Group, tuple[list[Round], list[Round]]]:
    """The bare rounds of each group and ours, in pairs."""
    groups: dict[Group, tuple[list[Round], list[Round]]] = {}
    for one in rounds:
        sides = groups.setdefault((one.case, one.connections), ([], []))
        sides[SIDES.index(one.side)].append(one)
    return groups


def share(bare: Sequence[Round], ours: Sequence[Round]) -> float:
    """The API's rate by the bare deployment's: the median over the pairs of rounds."""
    return statistics.median(mine.per_s / base.per_s for mine, base in zip(ours, bare, strict=True))


def find_missed(rounds: Sequence[Round], floors: dict[str, float]) -> list[Group]:
    """What stays under its floor. The floors are for 64 connections; other numbers have none."""
    return [
        place
        for place, sides in group(rounds).items()
        if place[1] == CONNECTIONS and share(*sides) < floors[place[0]]
    ]


def build_table(rounds: Sequence[Round], floors: dict[str, float], runs: int) -> Table:
    """A row for each case and number of connections; the bare deployment's figures stand in brackets."""
    title = f"HTTP beside a bare Serve deployment (its figures in brackets), medians of {runs} rounds"
    table = Table("case", title=title, title_justify="left")
    for name in ("connections", "requests/s", "share", "at least", "p50, ms", "p99, ms"):
        table.add_column(name, justify="right")
    for part in ("replica", "ingress", "owner", "counter", "gateway", "postgres", "client"):
        table.add_column(f"{part}, µs", justify="right")
    for (name, connections), (bare, ours) in group(rounds).items():
        floor = f"{floors[name]:.0%}" if connections == CONNECTIONS else "-"
        table.add_row(
            name,
            str(connections),
            pair(bare, ours, lambda one: one.per_s, 0),
            f"{share(bare, ours):.0%}",
            floor,
            pair(bare, ours, lambda one: one.p50_ms, 1),
            pair(bare, ours, lambda one: one.p99_ms, 1),
            pair(bare, ours, lambda one: one.cpu_us["bare" if one.side == "bare" else "replica"], 0),
            pair(bare, ours, lambda one: one.cpu_us["ingress"], 0),
            *(
                f"{statistics.median(one.cpu_us[part] for one in ours):.0f}"
                for part in ("owner", "counter", "gateway", "postgres", "client")
            ),
        )
    return table


def pair(
    bare: Sequence[Round], ours: Sequence[Round], figure: Callable[[Round], float], decimals: int
) -> str:
    """The median of ours, and the bare one's in brackets."""
    mine, base = (statistics.median(map(figure, side)) for side in (ours, bare))
    return f"{mine:,.{decimals}f} ({base:,.{decimals}f})"


def write_json(directory: Path, machine: dict[str, object], rounds: Sequence[Round]) -> Path:
    """Write everything measured to a file named for the time; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("http-%Y%m%dT%H%M%SZ.json", time.gmtime())
    path.write_text(
        json.dumps({"machine": machine, "rounds": [asdict(one) for one in rounds]}, indent=1) + "\n"
    )
    return path
