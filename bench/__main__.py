"""Measures ours and its peers side by side, and prints one table.

    python -m bench [--runs N] [--quick] [--subscribers N …] [--contenders NAME …] [--no-product]
    python -m bench viewers [--count N] …
    python -m bench storms [NAME …] …
    python -m bench http [--runs N] [--seconds S] [--cases NAME …] [--quick]
    python -m bench owner [--runs N] [--quick]
    python -m bench traces [--runs N] [--quick]
    python -m bench publish [--runs N] [--seconds S] [--quick]
    python -m bench startup [--runs N] [--idle S] [--quick]
    python -m bench votes [--runs N] [--quick]
    python -m bench images [PART …] [--runs N] [--seconds S] [--requests N] [--quick]
    python -m bench images-quality
    python -m bench socket-votes [--runs N] [--connections N] [--quick]
    python -m bench disruption [--clients N] [--seconds S] [--runs N] [--quick]
    python -m bench tls [--viewers N] [--messages N] [--runs N] [--quick]
    python -m bench dashboard [--rate N] [--seconds S] [--runs N] [--quick]
    python -m bench page [--rate N] [--seconds S] [--runs N] [--quick]
    python -m bench capacity [--viewers N] [--programs P] … [--calibrate] [--check]
    python -m bench against DIRECTORY [http] [idle] [--runs N] [--seconds S] [--idle S]

Each run starts every contender afresh, one after the other, so that whatever else the machine does hits all
alike. The exit status is 1 when a viewer lost, doubled or missed a message, or a contender failed; a peer
that cannot be installed is said to be missing and does not count.
"""

import argparse
import statistics
import sys

from rich.console import Console
from rich.progress import Progress

from bench import (
    against,
    dashboard,
    disruption,
    owner,
    page,
    socket_votes,
    startup,
    storms,
    tls,
    traces,
    viewers,
    votes,
)
from bench.capacity import command as capacity
from bench.child import ChildError
from bench.contenders import CONTENDERS, Contender, build_examples, keep_installed
from bench.images import command as images
from bench.images_quality import command as images_quality
from bench.machine import raise_open_files
from bench.measure import Sample, measure
from bench.output import conclude, open_console, start_results
from bench.product import VIEWERS, ProductError, measure_product
from bench.publish import command as publish
from bench.report import build_product_table, build_table, list_versions, take_medians
from bench.rest import command as http

SPARE_FILES = 100
PRODUCT_MESSAGES = 200


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    arguments = parse_arguments(words)
    console = open_console()
    runs = 1 if arguments.quick else arguments.runs
    open_files = raise_open_files(max(arguments.subscribers) + SPARE_FILES)
    if max(arguments.subscribers) > open_files - SPARE_FILES:
        console.print(f"only {open_files} files may be open; raise the hard limit (ulimit -Hn)")
        return 1
    with console.status("building the load client"):
        build_examples()
    chosen = [one for one in CONTENDERS if not arguments.contenders or one.name in arguments.contenders]
    with console.status("installing the peers that are not there yet"):
        contenders = keep_installed(chosen, lambda text: console.print(f"[yellow]{text}"))
    results = start_results(console, runs)
    results.samples = run_all(contenders, arguments.subscribers, runs, arguments.quick, console)
    product, faults = run_product(runs, console) if arguments.product else ({}, [])
    results.medians, results.product = take_medians(results.samples), product
    console.print(build_table(results.medians, [one.name for one in contenders], runs))
    versions = list_versions(results.samples)
    console.print("; ".join(f"{name}: {version}" for name, version in versions.items()))
    if product:
        console.print(build_product_table(product, VIEWERS, runs))
    faults += [
        f"{one.contender}, {one.subscribers}: {fault}" for one in results.samples for fault in one.faults
    ]
    return conclude(results, faults, console)


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each contender; the table has their medians"
    )
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    parser.add_argument("--subscribers", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--contenders", nargs="+", choices=[one.name for one in CONTENDERS])
    parser.add_argument(
        "--no-product", dest="product", action="store_false", help="leave the whole product out"
    )
    return parser.parse_args(words)


def run_all(
    contenders: list[Contender], subscribers: list[int], runs: int, is_quick: bool, console: Console
) -> list[Sample]:
    """Every contender with every number of subscribers, in turns; a contender that fails gives a fault."""
    samples = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=runs * len(subscribers) * len(contenders))
        for _ in range(runs):
            for count in subscribers:
                for contender in contenders:
                    progress.update(task, description=f"{contender.name}, {count:,}")
                    try:
                        samples.append(measure(contender, count, is_quick))
                    except ChildError as error:
                        samples.append(Sample(contender.name, count, faults=[str(error)]))
                    progress.advance(task)
    return samples


def run_product(runs: int, console: Console) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The product's latencies, medians over the runs, and faults."""
    gathered: dict[str, dict[str, list[float]]] = {}
    faults: list[str] = []
    with console.status("measuring the whole product"):
        for _ in range(runs):
            try:
                latencies, seen = measure_product(PRODUCT_MESSAGES)
            except (ProductError, ChildError, OSError) as error:
                return {}, [*faults, f"product: {error}"]
            faults += seen
            for door, figures in latencies.items():
                for name, value in figures.items():
                    gathered.setdefault(door, {}).setdefault(name, []).append(value)
    return {
        door: {name: statistics.median(values) for name, values in figures.items()}
        for door, figures in gathered.items()
    }, faults


PARTS = {
    "against": against.main,
    "capacity": capacity.main,
    "tls": tls.main,
    "dashboard": dashboard.main,
    "disruption": disruption.main,
    "http": http.main,
    "images": images.main,
    "images-quality": images_quality.main,
    "owner": owner.main,
    "page": page.main,
    "publish": publish.main,
    "socket-votes": socket_votes.main,
    "startup": startup.main,
    "storms": storms.main,
    "traces": traces.main,
    "viewers": viewers.main,
    "votes": votes.main,
}

if __name__ == "__main__":
    part = PARTS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.exit(part(sys.argv[2:]) if part else main(sys.argv[1:]))
