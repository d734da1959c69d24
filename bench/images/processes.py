"""What a server's processes use: CPU time of those that have ended too, and memory."""

from collections.abc import Iterable

import psutil

from bench.processes import read_memory


def list_tree(roots: Iterable[int]) -> list[psutil.Process]:
    """Processes and all that they have started; those that are gone are left out."""
    found = []
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def tree_cpu_s(roots: Iterable[int]) -> float:
    """CPU seconds, user and system, of processes, their children, and children that have ended."""
    return sum(_cpu_s(process) for process in list_tree(roots))


def tree_pss_mb(roots: Iterable[int]) -> float:
    """Memory of processes and their children, MB; what is shared counts in parts."""
    return sum(read_memory(process.pid).pss_bytes for process in list_tree(roots)) / 1e6


def tree_unbacked_mb(roots: Iterable[int]) -> float:
    """Memory of processes and their children, MB, without the pages of files."""
    return sum(read_memory(process.pid).unbacked_bytes for process in list_tree(roots)) / 1e6


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
