"""What Centrifugo's authors publish, and what the model says of the same load.

We found no price of theirs, no figure of one channel with millions of subscribers, and nothing of votes,
which Centrifugo does not count. Their machines and networks are others than those of our constants, whose
clients are on the same machine; so a ratio says of which order the difference is, not how large it is.
"""

from dataclasses import dataclass

from bench.capacity.constants import Constants
from bench.capacity.model import US, idle_cpu_us, join_cpu_us
from bench.capacity.scene import Scene

MILLION = "centrifugal.dev/blog/2020/02/10/million-connections-with-centrifugo (10 February 2020)"
IDLE = "centrifugal.dev/blog/2026/08/17/tuning-idle-connections (17 August 2026)"
REDIS = "centrifugal.dev/blog/2026/06/29/scaling-redis-pub-sub (29 June 2026)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published figure beside ours."""

    load: str
    unit: str
    theirs: float
    ours: float
    source: str
    reserve: str


def compare(constants: Constants) -> list[Comparison]:
    """Every published figure that has a counterpart in the model."""
    idle = Scene(1, tls=False, alive=False)
    idle_us, bytes_each = idle_cpu_us(idle, constants), constants["viewer_bytes"]
    # Their clients do not ask where to connect.
    join_us = join_cpu_us(idle, constants) - constants["connect_cpu_us"]
    of_million_us = 466_667 * constants["small_delivery_cpu_us"] + 1_000_000 * idle_us + 3_333 * join_us
    million = "1,000,000 connections, 466,667 deliveries/s of 100 bytes, 3,333 joins/s"
    groups = "theirs: two subscriptions each, groups of 10, Xeon E5-2640 v4; ours: groups of 100"
    few, many = "200,000 idle, as installed", "1,000,000 idle, tuned PRO"
    each, with_kernel = "kB each, with the kernel", bytes_each / 1e3
    handed = "handed to nodes by one core of the centre"
    redis = "Redis Pub/Sub, at most once, 256 bytes; our owner: in order, recoverable, each event alone"
    handed_per_s = 1e6 / constants["feed_cpu_us"]
    return [
        Comparison(million, "cores, but Redis or PostgreSQL", 40, of_million_us * US, MILLION, groups),
        Comparison(million, "GB", 27, 1e6 * bytes_each / 1e9, MILLION, "ours with the kernel's share"),
        Comparison(few, "cores", 0.94, 200_000 * idle_us * US, IDLE, "pings every 25 s"),
        Comparison(few, each, 31, with_kernel, IDLE, "theirs: 27 and 4; ours: both ends"),
        Comparison(many, "cores", 2.33, 1_000_000 * idle_us * US, IDLE, "one node of 16 vCPU"),
        Comparison(many, each, 15.6, with_kernel, IDLE, "theirs: 11.6 and 4"),
        Comparison(handed, "messages/s", 650_000, handed_per_s, REDIS, redis),
    ]
