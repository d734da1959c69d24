"""This checkout beside another one that is built: `python -m bench against DIRECTORY [http] [idle] …`.

Both products run at the same time, so that what else the machine does costs both alike. `http` lets them
answer bursts of the same requests in turns, in pairs whose order changes. `idle` leaves both alone.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from rich.console import Console

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT
from bench.processes import add_up, cpu_s, list_processes, read_memory
from bench.product import Product, log_in, running_product
from bench.rest.cases import prepare
from bench.rest.instance import SETTINGS, Instance

CASES = (
    "GET program",
    "GET stored value",
    "POST stored value",
    "GET live revision",
    "durable publish",
    "answer and impression",
    "100 answers",
)
"""Those of `python -m bench http` that older checkouts have, too."""
CONNECTIONS = 64
SETTLE_S = 15.0
"""From `ready` until a product is idle."""
_PAUSE_S = 0.1
"""Between two bursts: what the one before left behind is done."""
SIDES = ("ours", "theirs")


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench against", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="the other checkout, built")
    parser.add_argument("parts", nargs="*", metavar="http, idle", help="what to measure; both if neither")
    parser.add_argument("--runs", type=int, default=12, help="pairs of bursts of each case")
    parser.add_argument("--seconds", type=float, default=0.7, help="of a burst")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds for which both are left alone")
    parser.add_argument("--cases", nargs="+", default=CASES, help="of `python -m bench http`")
    arguments = parser.parse_args(words)
    roots = (ROOT, arguments.directory.resolve())
    console = Console(width=120)
    for part in arguments.parts or ("idle", "http"):
        if part == "idle":
            measure_idle(roots, arguments.idle, console)
        else:
            measure_http(roots, arguments.runs, arguments.seconds, arguments.cases, console)
    return 0


def measure_idle(roots: Sequence[Path], idle_s: float, console: Console) -> None:
    """Print the CPU time and the memory of each kind of process, ours and theirs."""
    with ExitStack() as stack:
        products = [stack.enter_context(running_product(root=root)) for root in roots]
        time.sleep(SETTLE_S)
        before, began_s = [cpu_s(product) for product in products], time.monotonic()
        time.sleep(idle_s)
        after, took_s = [cpu_s(product) for product in products], time.monotonic() - began_s
        memories = [read_pss_mb(product) for product in products]
    busy = [
        {kind: (late.get(kind, 0.0) - early.get(kind, 0.0)) / took_s * 100 for kind in late}
        for early, late in zip(before, after, strict=True)
    ]
    console.print(f"idle for {took_s:.0f} s, {SIDES[0]} ({SIDES[1]}): % of a core, MB of PSS")
    for kind in sorted({*busy[0], *busy[1]}, key=lambda kind: -busy[0].get(kind, 0.0)):
        shares, sizes = ([side.get(kind, 0.0) for side in sides] for sides in (busy, memories))
        console.print(
            f"{kind:18} {shares[0]:6.2f} ({shares[1]:.2f}) {sizes[0]:8.1f} ({sizes[1]:.1f})", highlight=False
        )
    shares, sizes = ([sum(side.values()) for side in sides] for sides in (busy, memories))
    console.print(f"{'all':18} {shares[0]:6.2f} ({shares[1]:.2f}) {sizes[0]:8.1f} ({sizes[1]:.1f})")


def read_pss_mb(product: Product) -> dict[str, float]:
    """Kind of process → its proportional share of memory."""
    return add_up(list_processes(product), lambda pid: read_memory(pid).pss_bytes / 1e6)


def measure_http(
    roots: Sequence[Path], runs: int, seconds: float, names: Sequence[str], console: Console
) -> None:
    """Print our CPU time and rate by theirs, of each case.

    Raises:
        ProductError: a product does not start, or refuses to make what is asked for.
        ChildError: the client has failed.
    """
    subprocess.run(["cargo", "build", "--release", "--quiet", "--example", "http_load"], cwd=ROOT, check=True)
    with ExitStack() as stack:
        sides = [stack.enter_context(_opened(root, names)) for root in roots]
        console.print(
            f"{runs} pairs of {seconds} s; CPU of all processes: median of ours by theirs (quartiles)"
        )
        for name in names:
            for side in sides:
                side.burst(name, seconds)
            pairs = []
            for turn in range(runs):
                order = (0, 1) if turn % 2 == 0 else (1, 0)
                told = {number: sides[number].burst(name, seconds) for number in order}
                pairs.append((told[0], told[1]))
            _print(console, name, pairs)


class _Side:
    """One product, and a client of it; `files` are the requests of each case by its name."""

    def __init__(self, instance: Instance, load: Child, files: dict[str, Path]) -> None:
        self._instance = instance
        self._load = load
        self.files = files

    def burst(self, name: str, seconds: float) -> dict[str, float]:
        """Microseconds of CPU of one request by part, and how many were answered in a second."""
        time.sleep(_PAUSE_S)
        before = self._instance.cpu_s()
        self._load.send(f"run {self.files[name]} {CONNECTIONS} {seconds}")
        report = self._load.receive()
        after = self._instance.cpu_s()
        assert not report["failures"], report["first_failure"]
        replies = report["replies"]
        figures = {part: (after[part] - before[part]) / replies * 1e6 for part in after}
        return figures | {"per_s": replies / report["microseconds"] * 1e6}


@contextmanager
def _opened(root: Path, names: Sequence[str]) -> Iterator[_Side]:
    with running_product(SETTINGS, root) as product, tempfile.TemporaryDirectory() as directory:
        with httpx.Client(base_url=product.base_url, timeout=30) as client:
            client.headers["Authorization"] = f"Bearer {log_in(client, product.password)}"
            cases = prepare(client, names)
        files = {}
        for number, case in enumerate(cases):
            files[case.name] = Path(directory) / f"{number}.json"
            files[case.name].write_text(json.dumps(case.requests))
        mark = (product.directory / "instance").read_text()
        postmaster = int((product.directory / "postgres/data/postmaster.pid").read_text().split("\n")[0])
        with Child([EXAMPLES / "http_load", f"127.0.0.1:{product.http_port}"], ROOT) as load:
            yield _Side(Instance(product, mark, postmaster), load, files)


Pair = tuple[dict[str, float], dict[str, float]]


def _print(console: Console, name: str, pairs: Sequence[Pair]) -> None:
    parts = [part for part in pairs[0][0] if part not in ("per_s", "bare")]
    ratios = [
        sum(ours[part] for part in parts) / sum(theirs[part] for part in parts) for ours, theirs in pairs
    ]
    low, middle, high = statistics.quantiles(ratios, n=4)
    rate = statistics.median(ours["per_s"] / theirs["per_s"] for ours, theirs in pairs)
    told = ", ".join(
        f"{part} {ours:.1f} ({theirs:.1f})"
        for part in parts
        if (ours := statistics.median(pair[0][part] for pair in pairs)) >= 0.5
        and (theirs := statistics.median(pair[1][part] for pair in pairs)) is not None
    )
    console.print(
        f"{name:22} {middle:.2f} ({low:.2f}, {high:.2f}); rate {rate:.2f}; µs: {told}", highlight=False
    )
