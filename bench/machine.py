"""What the figures were measured on."""

import os
import platform
import resource
import time
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


def read_busy_s() -> float:
    """CPU seconds that all processes of the machine have taken, the kernel's work for them included."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _, _, interrupts, soft = map(int, words[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def measure_wake_us(wakes: int = 300, every_s: float = 0.01) -> float:
    """CPU time of a thread that a timer wakes to do nothing, a wake-up: what the machine takes for it."""
    before_s = _thread_cpu_s()
    for _ in range(wakes):
        time.sleep(every_s)
    return (_thread_cpu_s() - before_s) / wakes * 1e6


def _thread_cpu_s() -> float:
    # As other processes are measured, with what the kernel does to switch; `time.thread_time` is alike.
    return int(Path("/proc/thread-self/schedstat").read_text().split()[0]) / 1e9
