"""What the figures were measured on."""

import os
import platform
import resource
from pathlib import Path


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory (bytes), kernel, and the load average of the minute before."""
    return {
        "processor": find_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def find_field(path: Path, name: str) -> str | None:
    """The value of the first `name: value` line of a file of /proc."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, for us and our children; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
