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


def raise_open_files(wanted: int = 0) -> int:
    """Raise the limit of open files, for us and our children, to the hard one or, where we may, to `wanted`.

    Only a process with CAP_SYS_RESOURCE may raise the hard limit, and not beyond `fs.nr_open`. Returns the
    limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    try:
        higher = max(hard, min(wanted, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (higher, higher))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return higher


def read_available_bytes() -> int:
    """Memory that can be had without swapping, the kernel's reclaimable part included."""
    value = find_field(Path("/proc/meminfo"), "MemAvailable")
    assert value, "Linux has said so since 3.14"
    return int(value.split()[0]) * 1024
