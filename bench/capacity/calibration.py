"""The constants of this machine: short runs of parts of the bench, which take about two minutes together.

What short runs cannot give stays as it stands in the bench: memory, which needs many viewers; idle viewers,
who need the time of several pings; TLS, HTTP and durable publishing.
"""

import statistics
from collections.abc import Callable

from bench.capacity.constants import Constants
from bench.capacity.feeding import Load, measure_medians
from bench.machine import describe_machine, raise_open_files
from bench.socket_votes import QUICK, measure
from bench.storms import storm_programs
from bench.viewers import measure_viewers

Values = dict[str, float]

VIEWERS = 10_000
PROGRAMS_PART = 10
VOTERS = 500
FEW, MANY = 1, 16
"""Gateways that follow, of which the difference is what one more costs."""
EVENTS = 400
FEEDING_RUNS = 3
"""A single run was seen to be off by 70 µs an event, as much as three gateways."""


def calibrate(constants: Constants, tell: Callable[[str], None]) -> Constants:
    """Measure what can be, and leave the others.

    Args:
        tell: hears what is measured next.

    Raises:
        ChildError, ProductError: something does not start, or fails.
    """
    machine = describe_machine()
    where = f"{machine['processor']}, {machine['cores']} cores, load {machine['load_before']:.1f} before"
    for command, part in PARTS.items():
        tell(command)
        constants = constants.measured(part(), f"{command}, on {where}")
    return constants


def measure_gateway() -> Values:
    """A broadcast to viewers of one program, and their coming."""
    scenes, _ = measure_viewers(VIEWERS, 10)
    return {
        "delivery_cpu_us": scenes["broadcast"]["gateway_CPU_us_a_delivery"],
        "join_cpu_us": scenes["connect and subscribe"]["gateway_CPU_us_each"],
    }


def measure_small_programs() -> Values:
    """Broadcasts to programs of 100 viewers."""
    figures, _ = storm_programs(PROGRAMS_PART)
    return {"small_delivery_cpu_us": figures["CPU_us_a_delivery"]}


def measure_feed() -> Values:
    """What one more gateway costs an owner, following costs a gateway, and relaying a relay and time."""
    loads = (Load(FEW), Load(MANY), Load(FEW, relays=FEW))
    few, many, relayed = measure_medians(loads, EVENTS, FEEDING_RUNS)
    feed_us = (many.owner_us - few.owner_us) / (MANY - FEW)
    return {
        "feed_cpu_us": feed_us,
        "follow_cpu_us": few.follow_us,
        "relay_cpu_us": max(0.0, relayed.relay_us - FEW * feed_us),
        "relay_hop_ms": max(0.0, relayed.last_ms - few.last_ms),
    }


def measure_votes() -> Values:
    """Votes over WebSocket, through the whole product."""
    raise_open_files(VOTERS + 100)
    figures = measure(1, QUICK, VOTERS)["natively"]
    return {
        f"vote_{part}_cpu_us": statistics.median(one.cpu_us[part] for one in figures)
        for part in ("gateway", "counter", "postgres")
    }


PARTS: dict[str, Callable[[], Values]] = {
    f"python -m bench viewers --count {VIEWERS} --events 10 --runs 1": measure_gateway,
    f"python -m bench storms programs --runs 1 --part {PROGRAMS_PART}": measure_small_programs,
    f"python -m bench capacity --calibrate, {FEW} and {MANY} gateways that follow": measure_feed,
    f"python -m bench socket-votes --quick --connections {VOTERS}": measure_votes,
}
"""The command that does the same → what it gives."""
