"""`broker up` with the bare deployment beside the API, and the CPU time of its processes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import ROOT
from bench.product import Product, ProductError, running_product
from broker.deployments.processes import list_marked

DEPLOY_S = 120.0
SETTINGS = {
    "BROKER_API_REPLICAS_MIN": "1",
    "BROKER_API_REPLICAS_MAX": "1",
    "BROKER_RESPONSES_RATE_PER_ADDRESS": "0",
}
"""One replica on each side: a second one would share the same cores and say nothing more."""

PARTS = {
    "replica": "ray::ServeReplica:broker:",
    "bare": "ray::ServeReplica:bare:",
    "ingress": "haproxy",
    "owner": "ray::Owner",
    "counter": "ray::Counter",
    "gateway": "ray::Gateway",
}
"""Part → what the titles of its processes have in them."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A running product with the bare deployment."""

    product: Product
    mark: str
    postmaster: int

    def cpu_s(self) -> dict[str, float]:
        """Part → CPU seconds, user and system, of the living threads of its processes."""
        titles = {pid: read_title(pid) for pid in list_marked(self.mark)}
        parts = {part: select(titles, name) for part, name in PARTS.items()}
        parts["postgres"] = list_children(self.postmaster)
        return {part: sum(map(process_cpu_s, pids)) for part, pids in parts.items()}


@contextmanager
def running_instance() -> Iterator[Instance]:
    """Start it all; yields when both answer.

    Raises:
        ProductError: it does not start.
    """
    with running_product(SETTINGS) as product:
        mark = (product.directory / "instance").read_text()
        postmaster = int((product.directory / "postgres/data/postmaster.pid").read_text().split("\n")[0])
        deploy_bare({pid: read_title(pid) for pid in list_marked(mark)})
        yield Instance(product, mark, postmaster)


def deploy_bare(titles: dict[int, str]) -> None:
    """Run `bench.rest.bare` as the conductor would."""
    done = subprocess.run(
        join_command(titles, "bench.rest.bare"),
        cwd=ROOT,
        env=read_environment(titles),
        capture_output=True,
        text=True,
        timeout=DEPLOY_S,
        check=False,
    )
    if done.returncode:
        raise ProductError(f"the bare deployment does not start: {done.stderr[-1000:]}")


def join_command(titles: dict[int, str], module: str) -> list[str]:
    """How to run a module that joins the instance's Ray, in its conductor's environment."""
    # What stands in for Ray's helpers has the raylet's command behind its own.
    (raylet,) = (pid for pid in select(titles, "/raylet ") if titles[pid].split()[0].endswith("/raylet"))
    return [sys.executable, "-m", module, str(raylet)]


def read_environment(titles: dict[int, str]) -> dict[str, str]:
    """The environment of the instance's conductor."""
    (conductor,) = select(titles, "broker.deployments.conductor")
    pairs = Path(f"/proc/{conductor}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def select(titles: dict[int, str], part: str) -> list[int]:
    """The processes that have `part` in their title."""
    return [pid for pid, title in titles.items() if part in title]


def read_title(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def list_children(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process; 0 when it is gone."""
    try:
        return (
            sum(
                int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{pid}/task").iterdir()
            )
            / 1e9
        )
    except OSError:
        return 0.0
