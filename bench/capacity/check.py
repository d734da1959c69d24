"""The model against runs: those that stand in bench/README.md, and short ones of one gateway and two.

Three nodes of one machine (`tests.cluster.audience`) are among the former. What one machine can show is that
the load of gateways adds up, and that the owner's grows by the same for each.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.capacity.constants import Constants
from bench.capacity.feeding import Load, measure_medians
from bench.capacity.model import US
from bench.crowd import Crowd, list_faults
from bench.measure import MESSAGE_BYTES

TOLERANCE = 0.2
VIEWERS = 4_000
"""Of one gateway."""
BROADCASTS = 20
PAUSE_US = 200_000
EVENTS = 400
FEEDING_RUNS = 3
FOLLOWED = (2, 8, 16)
"""Gateways that follow an owner: the first two give the line on which the third must be."""
RELAYS = 4
"""That feed as many as the third; to the owner they are so many gateways."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the model says, and what a run has shown."""

    what: str
    predicted: float
    measured: float
    unit: str

    @property
    def deviation(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        """Whether it is as near as is promised."""
        return abs(self.deviation) <= TOLERANCE


def compare_recorded(constants: Constants) -> list[Comparison]:
    """Predictions of runs whose figures stand in bench/README.md.

    `sustained`: 19,700 viewers of one gateway, and 39,400 of two. `one-program` and `viewers`: 50,000 and
    100,000 on the same two cores. `disruption`: 10,000 viewers for a minute, 120 messages, 32,291 cuts;
    127,635 were replayed, which come with the reply to `subscribe` and cost no delivery. `audience`: 20
    broadcasts to 20,000 viewers at two of three nodes, and to 30,000 at all three.
    """
    live_per_s = (10_000 * 120 - 127_635) / 60
    cut_us = live_per_s * constants["delivery_cpu_us"] + 32_291 / 60 * constants["join_cpu_us"]
    cut_us += 10_000 * constants["idle_cpu_us"]
    return [
        Comparison(
            "two gateways, from one (sustained)", 2 * 29_983_400 / 60, 59_966_800 / 61, "deliveries/s"
        ),
        Comparison("last of 100,000 viewers, from 50,000", 2 * 287, 600, "ms"),
        Comparison("a broadcast to 100,000, from 50,000", 100_000 * 6.6 * US, 100_000 * 7.2 * US, "CPU s"),
        Comparison("10,000 viewers who are cut all the time", cut_us * US, 0.14, "cores of the gateway"),
        Comparison("20 broadcasts by three nodes, from two (audience)", 1.5 * 3.88, 5.48, "CPU s"),
    ]


def compare_runs(tell: Callable[[str], None]) -> tuple[list[Comparison], list[str]]:
    """Predictions of runs that are made now, and what viewers missed in them. It takes about two minutes.

    Raises:
        ChildError: something does not start, or fails.
    """
    tell(f"one gateway with {VIEWERS:,} viewers, and two")
    (delivered_s, joined_s, faults), two = _measure_gateways(1), _measure_gateways(2)
    tell(f"an owner with {FOLLOWED[0]}, {FOLLOWED[1]} and {FOLLOWED[2]} gateways that follow")
    loads = [*(Load(followers) for followers in FOLLOWED), Load(FOLLOWED[2], RELAYS)]
    measured = measure_medians(loads, EVENTS, FEEDING_RUNS)
    few_us, more_us, most_us, relayed_us = (one.owner_us for one in measured)
    each_us = (more_us - few_us) / (FOLLOWED[1] - FOLLOWED[0])
    predicted_us = few_us + each_us * (FOLLOWED[2] - FOLLOWED[0])
    fed = f"an owner that feeds {FOLLOWED[2]}, from {FOLLOWED[0]} and {FOLLOWED[1]}"
    return [
        Comparison(f"{BROADCASTS} broadcasts by two gateways, from one", 2 * delivered_s, two[0], "CPU s"),
        Comparison("viewers who come to two gateways, from one", 2 * joined_s, two[1], "CPU s"),
        Comparison(fed, predicted_us, most_us, "µs an event"),
        Comparison(
            f"an owner that feeds {FOLLOWED[2]} by {RELAYS} relays",
            few_us + each_us * (RELAYS - FOLLOWED[0]),
            relayed_us,
            "µs an event",
        ),
    ], faults + two[2]


def _measure_gateways(gateways: int) -> tuple[float, float, list[str]]:
    """CPU seconds of all broadcasts, and of all viewers' coming, of so many gateways; and faults."""
    with Crowd(gateways * VIEWERS, gateways=gateways) as crowd:
        report = crowd.run_round(BROADCASTS, MESSAGE_BYTES, PAUSE_US)
        delivered_s = report["cpu_us"] * report["delivered"] * US
        return delivered_s, crowd.connected["cpu_s"], list_faults(f"{gateways} gateways", report)
