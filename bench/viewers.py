"""A whole country watches: `python -m bench viewers [--count N] [--events N] [--runs N] [--quick]`.

All connect and subscribe, get a broadcast, are cut off at once, and come back for the events they missed.
"""

import argparse
import time

from bench.crowd import Crowd, list_faults
from bench.machine import read_available_bytes
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes

COUNT = 100_000
QUICK_COUNT = 2000
MESSAGE_BYTES = 300
BROADCASTS = 5
PAUSE_US = 2_000_000
"""Between broadcasts: longer than one may take."""
VIEWER_BYTES = 40_000
"""What a viewer may cost the machine at most, both ends of its connection and recovery included; asked for
before the start, so that nobody else's memory is taken."""


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench viewers", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--events", type=int, default=100, help="events to recover")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=f"one run with {QUICK_COUNT:,} viewers")
    arguments = parser.parse_args(words)
    runs, count = (1, QUICK_COUNT) if arguments.quick else (arguments.runs, arguments.count)
    needed, available = count * VIEWER_BYTES, read_available_bytes()
    if needed > available:
        print(f"{count:,} viewers need {needed >> 20:,} MiB of free memory; {available >> 20:,} are there")
        return 1
    act = {f"{count:,} viewers": lambda: measure_viewers(count, arguments.events)}
    return measure_scenes("viewers", runs, act)


def measure_viewers(count: int, events: int) -> Outcome:
    """One run: scene → figures, and faults."""
    free_bytes = read_available_bytes()
    with Crowd(count) as crowd:
        time.sleep(1)
        taken_bytes = free_bytes - read_available_bytes()
        connected = crowd.connected
        broadcast = crowd.run_round(BROADCASTS, MESSAGE_BYTES, PAUSE_US)
        crowd.cut()
        crowd.publish_unseen(events, MESSAGE_BYTES)
        recovered = crowd.reconnect(events)
        # One more for all shows that each goes on live behind what it has recovered.
        after = crowd.run_round(1, MESSAGE_BYTES, 0)
        scenes: dict[str, Medians] = {
            "connect and subscribe": {
                "all_are_there_ms": connected["seconds"] * 1000,
                "viewers_per_s": count / connected["seconds"],
                "gateway_CPU_us_each": connected["cpu_s"] / count * 1e6,
                "gateway_bytes_each": connected["bytes"] / count,
                "machine_bytes_each_(both_ends)": taken_bytes / count,
                "gateway_processes": float(crowd.gateways),
            },
            "broadcast": {
                "last_viewer_ms": broadcast["last_viewer_p50_us"] / 1000,
                "viewer_p50_ms": broadcast["latency_p50_us"] / 1000,
                "gateway_CPU_us_a_delivery": broadcast["cpu_us"],
            },
            f"cut all, recover {events} events each": {
                "all_are_back_ms": recovered["seconds"] * 1000,
                "viewers_per_s": count / recovered["seconds"],
                "gateway_CPU_us_a_viewer": recovered["gateway_cpu_s"] / count * 1e6,
                "events_recovered": float(recovered["delivered"]),
                "events_lost_or_doubled": float(recovered["lost"] + recovered["doubled"]),
                "gateway_bytes_each_after": crowd.memory_bytes() / count,
            },
        }
    faults = [*list_faults("broadcast", broadcast), *list_faults("recovery", recovered)]
    return scenes, faults + list_faults("after recovery", after)
