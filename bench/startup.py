"""What an idle product takes: `python -m bench startup [--runs N] [--idle S] [--quick]`.

Each run starts `broker up` on an empty data directory, waits for its `ready`, lets it rest, weighs its
processes, watches their CPU time, and ends it with SIGTERM until its last process is gone.
"""

import argparse
import time

from bench.machine import measure_wake_us
from bench.processes import add_up, cpu_s, list_processes, read_memory, turns
from bench.product import running_product
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes
from broker.deployments.processes import list_marked

SETTLE_S = 10.0
"""From `ready` until it is idle: the first looks, timers and caches have been."""
QUICK_S = 5.0
GONE_S = 30.0
TARGETS = {"ready_s": 25.0, "all_PSS_MB": 1_500.0, "all_CPU_percent": 3.0}
"""What must not be passed, of the medians."""


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench startup", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds for which its CPU is watched")
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how much")
    arguments = parser.parse_args(words)
    runs, idle_s = (1, QUICK_S) if arguments.quick else (arguments.runs, arguments.idle)
    targets = {} if arguments.quick else {"whole": TARGETS}
    return measure_scenes("startup", runs, {"broker up": lambda: measure_startup(idle_s)}, targets)


def measure_startup(idle_s: float) -> Outcome:
    """One run: kind of process → figures, and faults.

    Raises:
        ProductError: it does not start.
    """
    began_s = time.monotonic()
    with running_product() as product:
        ready_s = time.monotonic() - began_s
        time.sleep(SETTLE_S)
        mark = (product.directory / "instance").read_text()
        kinds = list_processes(product)
        memories = {pid: read_memory(pid) for pid in kinds}
        rss = add_up(kinds, lambda pid: memories[pid].rss_bytes / 1e6)
        pss = add_up(kinds, lambda pid: memories[pid].pss_bytes / 1e6)
        counts = add_up(kinds, lambda _: 1)
        before, turns_before, watched_s = cpu_s(product), turns(product), time.monotonic()
        time.sleep(idle_s)
        after, turns_after, watched_s = cpu_s(product), turns(product), time.monotonic() - watched_s
        wake_us = measure_wake_us()
        told_s = time.monotonic()
    left = wait_until_gone(mark, told_s + GONE_S)
    gone_s = time.monotonic() - told_s
    busy = {kind: (after.get(kind, 0.0) - before.get(kind, 0.0)) / watched_s * 100 for kind in kinds.values()}
    wakes = {kind: (turns_after.get(kind, 0) - turns_before.get(kind, 0)) / watched_s for kind in busy}
    whole: Medians = {
        "ready_s": ready_s,
        "gone_s": gone_s,
        "processes": sum(counts.values()),
        "all_RSS_MB": sum(rss.values()),
        "all_PSS_MB": sum(pss.values()),
        "all_CPU_percent": sum(busy.values()),
        "all_wakes_s": sum(wakes.values()),
        "bare_wake_us": wake_us,
        "bare_wakes_CPU_percent": sum(wakes.values()) * wake_us / 1e4,
    }
    scenes = {"whole": whole}
    for kind in sorted(busy, key=lambda kind: -busy[kind]):
        scenes[kind] = {
            "processes": counts[kind],
            "RSS_MB": rss[kind],
            "PSS_MB": pss[kind],
            "CPU_percent": busy[kind],
            "wakes_s": wakes[kind],
        }
    return scenes, [f"{left} processes are left after {GONE_S:.0f} s"] if left else []


def wait_until_gone(mark: str, deadline_s: float) -> int:
    """Wait for the last process of an instance; returns how many are left."""
    while (left := len(list_marked(mark))) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left
