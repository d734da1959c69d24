"""`python -m bench publish`: durable publishing through the whole product.

    python -m bench publish [--runs N] [--seconds S] [--events N] [--quick]

Each run starts `broker up` with one replica, on an empty data directory, with 20 viewers of one program.
"""

import argparse
import subprocess
from collections.abc import Iterator

from bench.child import ChildError
from bench.contenders import ROOT
from bench.output import conclude, open_console, start_results
from bench.processes import list_titles
from bench.product import Product, ProductError, running_product
from bench.publish.doors import Doors, open_doors
from bench.publish.hops import measure_hops
from bench.publish.rates import BATCH, DOORS, IN_FLIGHT, SHARES, measure_latency, measure_rate
from bench.report import Medians, build_rows_table, build_scenes_table, take_median
from bench.rest.instance import SETTINGS

_SETTINGS = SETTINGS | {"BROKER_WS_MESSAGES_PER_S": "0"}
"""One replica; and no limit for a connection that publishes as fast as it can."""
TITLES = {
    "publish": "Durable publish to 20 viewers",
    "latency": "Single events at a share of the largest rate",
    "hops": "What each hop takes at 50 events a second",
}

Found = tuple[str, str, Medians, list[str]]
"""Part, scene, figures, faults."""


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench publish", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one round, about")
    parser.add_argument("--events", type=int, default=200, help="for each way whose hops are measured")
    parser.add_argument("--parts", nargs="+", choices=["rates", "hops"], default=["rates", "hops"])
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs = 1 if arguments.quick else arguments.runs
    seconds, events = (0.5, 50) if arguments.quick else (arguments.seconds, arguments.events)
    console = open_console()
    with console.status("building the clients"):
        names = ["--example", "http_load", "--example", "load"]
        subprocess.run(["cargo", "build", "--release", "--quiet", *names], cwd=ROOT, check=True)
    results = start_results(console, runs)
    gathered: dict[str, dict[str, list[Medians]]] = {}
    faults: list[str] = []
    for turn in range(runs):
        with console.status(f"run {turn + 1} of {runs}") as status:
            try:
                for part, scene, figures, seen in measure_once(seconds, events, arguments.parts):
                    status.update(f"run {turn + 1} of {runs}, after {scene}")
                    gathered.setdefault(part, {}).setdefault(scene, []).append(figures)
                    faults += seen
            except (ChildError, ProductError) as error:
                faults.append(str(error))
    for part, scenes in gathered.items():
        results.scenes[part] = {scene: take_median(figures) for scene, figures in scenes.items()}
        build = build_scenes_table if part == "hops" else build_rows_table
        console.print(build(TITLES[part], results.scenes[part], runs))
    return conclude(results, faults, console)


def measure_once(seconds: float, events: int, parts: list[str]) -> Iterator[Found]:
    """One run.

    Raises:
        ProductError: the product does not start or refuses something.
        ChildError: a client has failed.
    """
    with running_product(_SETTINGS) as product:
        titles = list_titles(product)
        with open_doors(product, titles) as doors:
            if "rates" in parts:
                yield from measure_rates(doors, product, seconds)
            if "hops" in parts:
                scenes, faults = measure_hops(doors, titles, events)
                for scene, figures in scenes.items():
                    yield "hops", scene, figures, faults
                    faults = []


def measure_rates(doors: Doors, product: Product, seconds: float) -> Iterator[Found]:
    """All numbers in flight by each door, then the latencies below the largest rate just found."""
    most: dict[str, float] = {}
    for batch in (1, BATCH):
        for in_flight in IN_FLIGHT[batch]:
            for door in DOORS:
                figures, faults = measure_rate(doors, product, door, batch, in_flight, seconds)
                what = "single" if batch == 1 else f"batches of {batch}"
                yield "publish", f"{door}, {what}, {in_flight} in flight", figures, faults
                if batch == 1:
                    most[door] = max(most.get(door, 0.0), figures["events_per_s"])
    for door in DOORS:
        for share in SHARES:
            figures, faults = measure_latency(doors, door, most[door], share, seconds)
            yield "latency", f"{door}, {share:.0%}", figures, faults
