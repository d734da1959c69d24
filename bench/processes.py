"""The processes of a running product, by what they do, and what each kind uses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.product import Product
from bench.rest.instance import list_children, process_cpu_s, read_title
from broker.deployments.processes import list_marked

KINDS = (
    ("postgres", "PostgreSQL"),
    ("haproxy", "ingress"),
    ("ray::ServeReplica:", "replica"),
    ("ray::Owner", "owner"),
    ("ray::Counter", "counter"),
    ("ray::Gateway", "gateway"),
    ("ray::ServeController", "Serve controller"),
    ("ray::HAProxyManager", "ingress manager"),
    ("ray::ProxyActor", "ingress manager"),
    ("broker.deployments.conductor", "conductor"),
    ("broker up", "broker up"),
    ("gcs_server", "Ray: GCS"),
    ("raylet/raylet", "Ray: raylet"),
    ("ray::DashboardAgent", "Ray: agents"),
    ("ray::RuntimeEnvAgent", "Ray: agents"),
    ("dashboard/agent.py", "Ray: agents"),
    ("runtime_env/agent", "Ray: agents"),
)
"""What stands in a process' title → its kind; the first that fits."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes.

    Attributes:
        pss_bytes: with what is shared divided among those who share it, so that a process elsewhere that ends
            makes those larger which have the same libraries open.
        unbacked_bytes: the same without the pages of files, so that it changes with this process alone.
    """

    rss_bytes: int
    pss_bytes: int
    unbacked_bytes: int = 0


def kind_of(title: str) -> str:
    """What a process with this command line is."""
    return next((kind for part, kind in KINDS if part in title), OTHER)


def list_titles(product: Product) -> dict[int, str]:
    """Process → its command line, of everything that belongs to the product but its database."""
    mark = (product.directory / "instance").read_text()
    titles = {pid: read_title(pid) for pid in {product.pid, *list_marked(mark)}}
    # A title is empty when the process has ended meanwhile.
    return {pid: title for pid, title in titles.items() if title}


def list_processes(product: Product) -> dict[int, str]:
    """Process → its kind, of everything that belongs to the product."""
    postmaster = int((product.directory / "postgres/data/postmaster.pid").read_text().split("\n")[0])
    kinds = {pid: kind_of(title) for pid, title in list_titles(product).items()}
    return kinds | dict.fromkeys(list_children(postmaster), "PostgreSQL")


def add_up(kinds: dict[int, str], figure: Callable[[int], float]) -> dict[str, float]:
    """Kind → the sum of a figure over its processes."""
    sums: dict[str, float] = {}
    for pid, kind in kinds.items():
        sums[kind] = sums.get(kind, 0.0) + figure(pid)
    return sums


def cpu_s(product: Product) -> dict[str, float]:
    """Kind → CPU seconds, user and system, of its living processes."""
    return add_up(list_processes(product), process_cpu_s)


def turns(product: Product) -> dict[str, float]:
    """Kind → how often a thread of its living processes has got a processor: its wake-ups, where it idles."""
    return add_up(list_processes(product), count_turns)


def count_turns(pid: int) -> int:
    """How often the threads of a process have got a processor; 0 when it is gone."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[2]) for task in tasks)
    except OSError:
        return 0


def read_memory(pid: int) -> Memory:
    """What a process has of the memory; nothing when it is gone."""
    try:
        return parse_memory(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    except OSError:
        return Memory(0, 0)


def parse_memory(lines: Iterable[str]) -> Memory:
    """Read a `smaps_rollup` of proc_pid_smaps(5)."""
    sizes = {words[0]: int(words[1]) * 1024 for words in map(str.split, lines) if words[2:] == ["kB"]}
    unbacked_bytes = sizes.get("Pss_Anon:", 0) + sizes.get("Pss_Shmem:", 0)
    return Memory(sizes.get("Rss:", 0), sizes.get("Pss:", 0), unbacked_bytes)
