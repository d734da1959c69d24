"""What goes wrong on a big evening, as figures: `python -m bench storms [NAME …] [--runs N] [--quick]`."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench.child import Child
from bench.contenders import ROOT, Contender, build_load, run_python
from bench.crowd import SPARE_FILES, Crowd, Report, list_faults
from bench.machine import raise_open_files
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes

Figures = tuple[Medians, list[str]]

MESSAGE_BYTES = 300
PACED_US = 10_000
"""100 messages a second."""
SLOW_EVERY = 100
"""1 % of the viewers."""
SUSTAINED_US = 100_000
"""Between messages of which each takes a loop longer than that."""
CLIENT_LATE_US = 5_000_000
"""A load client that is so late itself answers no ping in time, whatever the gateway does."""
COMERS = 100
COMERS_EVERY_S = 6.0
"""1,000 a minute."""
LARGE_BYTES = 4000
"""So that those who do not read fall behind by more than the limit (1 MiB) in a few seconds."""
SETTLE_S = 2.0
"""Until those who have connected are idle."""
IDLE_S = 30.0
"""More than the interval of pings, so that each viewer has had one."""
DEFLATED_BYTES = 1000
"""Above the size from which the gateway compresses."""


def storm_handshakes(part: int) -> Figures:
    """Thousands connect and subscribe at once: alone, then while a thousand others watch."""
    comers = 15_000 // part
    with Crowd(1000) as crowd:
        with come(crowd, comers) as alone:
            pass
        calm = crowd.run_round(200 // part, MESSAGE_BYTES, PACED_US)
        before_s = crowd.begin_round(400 // part, MESSAGE_BYTES, PACED_US)
        with come(crowd, comers) as beside:
            stormed = crowd.end_round(before_s)
    figures = {
        **{f"{name}_alone": figure for name, figure in alone.items()},
        **{f"{name}_beside_watchers": figure for name, figure in beside.items()},
        "watchers_p99_before_ms": calm["latency_p99_us"] / 1000,
        "watchers_p99_meanwhile_ms": stormed["latency_p99_us"] / 1000,
    }
    return figures, list_faults("handshakes", calm, stormed)


@contextmanager
def come(crowd: Crowd, comers: int) -> Iterator[Medians]:
    """So many connect and subscribe to a quiet program at once, and are there within the block."""
    quiet = Contender("broker", run_python("native"), subscribe='{"programId":"quiet"}')
    before_s = crowd.cpu_s()
    with Child(build_load(crowd.port, comers, quiet), ROOT) as load:
        seconds = load.receive()["seconds"]
        yield {
            "handshakes_per_s": comers / seconds,
            "gateway_cores": (crowd.cpu_s() - before_s) / seconds,
            "clients_cores": load.cpu_s() / seconds,
        }


def storm_programs(part: int) -> Figures:
    """1,000 programs with 100 viewers each; every one of them publishes."""
    programs = 1000 // part
    with Crowd(programs * 100, programs) as crowd:
        report = crowd.run_round(5, MESSAGE_BYTES, 2_000_000)
        figures = {"programs": float(programs)} | summarise(report)
    return figures, list_faults("programs", report)


def storm_one(part: int) -> Figures:
    """One program with 50,000 viewers."""
    viewers = 50_000 // part
    with Crowd(viewers) as crowd:
        report = crowd.run_round(5, MESSAGE_BYTES, 1_000_000)
        figures = {"viewers": float(viewers), "last_viewer_ms": report["last_viewer_p50_us"] / 1000}
    return figures | summarise(report), list_faults("one program", report)


def storm_sustained(part: int) -> Figures:
    """More than a loop can send to 50,000 viewers, for two minutes, while others come.

    One loop has them all. Where a process may not open so many files it has as many as that allows, and the
    more messages, so that it falls behind as much.
    """
    most = raise_open_files(50_000 + COMERS + SPARE_FILES) - COMERS - SPARE_FILES
    viewers, seconds = min(50_000, most) // part, 120 / part
    interval_us = SUSTAINED_US * viewers * part // 50_000
    messages = int(seconds * 1e6 / interval_us)
    waits_ms = []
    with Crowd(viewers) as crowd:
        before_s = crowd.begin_round(messages, MESSAGE_BYTES, interval_us, most_s=2 * seconds + 60)
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            with come(crowd, COMERS) as came:
                waits_ms.append(1000 * COMERS / came["handshakes_per_s"])
            time.sleep(max(0.0, began_s + COMERS_EVERY_S - time.monotonic()))
        report = crowd.end_round(before_s)
        figures = {
            "viewers": float(viewers),
            "closed": float(report["closed"]),
            "closed_with_4008": float(report["closed_slow"]),
            "gateway_cores": report["cpu_us"] * report["delivered"] / 1e6 / report["seconds"],
            "client_cores": report["cpu_s"] / report["seconds"],
            "client_late_itself_ms": report["own_lag_us"] / 1000,
            "gateway_processes": float(crowd.gateways),
            "came_meanwhile": float(COMERS * len(waits_ms)),
            "until_100_are_in_ms": statistics.median(waits_ms),
            "until_100_are_in_ms_at_worst": max(waits_ms),
        }
    faults = list_faults("sustained", report)
    if faults and report["own_lag_us"] >= CLIENT_LATE_US:
        late_s = report["own_lag_us"] / 1e6
        faults.append(f"sustained: the load client was {late_s:.1f} s late itself; this says nothing of us")
    return figures | summarise(report), faults


def storm_slow(part: int) -> Figures:
    """1 % of the viewers stop reading."""
    viewers, messages = 1000 // part, 500
    with Crowd(viewers) as crowd:
        calm = crowd.run_round(messages, LARGE_BYTES, PACED_US)
        slow = crowd.stall(SLOW_EVERY)
        stormed = crowd.run_round(messages, LARGE_BYTES, PACED_US)
        after = crowd.resume(10)
        figures = {
            "slow_viewers": float(slow),
            "closed_with_4008": float(after["closed_slow"]),
            "others_p99_before_ms": calm["latency_p99_us"] / 1000,
            "others_p99_meanwhile_ms": stormed["latency_p99_us"] / 1000,
        }
    faults = list_faults("slow consumers", calm, stormed | {"closed": 0})
    if after["closed"] + stormed["closed"] != slow:
        faults.append(f"slow consumers: {after['closed']} of {slow} were closed")
    return figures, faults


def storm_deflate(part: int) -> Figures:
    """No viewer, half of them, all ask for compression."""
    figures: Medians = {}
    faults: list[str] = []
    for name, every in (("none", 0), ("half", 2), ("all", 1)):
        with Crowd(1000 // part, options=("--deflate-every", str(every))) as crowd:
            report = crowd.run_round(200, DEFLATED_BYTES, PACED_US)
        figures |= {
            f"{name}_CPU_us_a_delivery": report["cpu_us"],
            f"{name}_p99_ms": report["latency_p99_us"] / 1000,
        }
        faults += list_faults(f"{name} compressed", report)
    return figures, faults


def storm_bursts(part: int) -> Figures:
    """5,000 events at once to 1,000 viewers."""
    with Crowd(1000 // part) as crowd:
        before_bytes = crowd.memory_bytes()
        report = crowd.run_round(5000, MESSAGE_BYTES, 0)
        figures = {
            "until_all_have_all_ms": report["seconds"] * 1000,
            "deliveries_per_s": report["delivered"] / report["seconds"],
            "gateway_MiB_more": (crowd.memory_bytes() - before_bytes) / (1 << 20),
        }
    return figures | summarise(report), list_faults("bursts", report)


def storm_idle(part: int) -> Figures:
    """4,000 viewers and then 8,000 to whom nothing is published, without and with signs of life."""
    figures: Medians = {}
    faults = []
    for viewers in (4_000 // part, 8_000 // part):
        for name, wishes in (("pings", ""), ("alive", "alive=true")):
            with Crowd(viewers, wishes=wishes) as crowd:
                time.sleep(SETTLE_S)
                before_s, began_s = crowd.cpu_s(), time.monotonic()
                time.sleep(IDLE_S / part)
                viewer_s = viewers * (time.monotonic() - began_s)
                figures[f"{viewers}_with_{name}_CPU_us_a_viewer_and_s"] = (
                    (crowd.cpu_s() - before_s) / viewer_s * 1e6
                )
                faults += list_faults(f"{viewers} with {name}", crowd.run_round(1, MESSAGE_BYTES, 0))
    return figures, faults


def summarise(report: Report) -> Medians:
    """What all rounds have."""
    return {
        "CPU_us_a_delivery": report["cpu_us"],
        "p50_ms": report["latency_p50_us"] / 1000,
        "p99_ms": report["latency_p99_us"] / 1000,
    }


STORMS: dict[str, Callable[[int], Figures]] = {
    "handshakes": storm_handshakes,
    "programs": storm_programs,
    "one-program": storm_one,
    "sustained": storm_sustained,
    "slow-consumers": storm_slow,
    "compression": storm_deflate,
    "bursts": storm_bursts,
    "idle": storm_idle,
}


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench storms", description="Storms, as figures.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(STORMS)}; all when none is given"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the size")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="an N-th of the size")
    arguments = parser.parse_args(words)
    unknown = set(arguments.names) - set(STORMS)
    if unknown:
        parser.error(f"no such storm: {', '.join(sorted(unknown))}")
    runs, part = (1, 10) if arguments.quick else (arguments.runs, arguments.part)
    return measure_scenes(
        "storms", runs, {name: partial(run_storm, name, part) for name in arguments.names or STORMS}
    )


def run_storm(name: str, part: int) -> Outcome:
    """One storm, a `part`-th of its size."""
    figures, faults = STORMS[name](part)
    return {name: figures}, faults
