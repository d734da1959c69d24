"""Faults of an instance: which process is meant, how it is hit, and when the product is whole again."""

import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil

from tests.deployments.instance import Instance

TITLES = {
    "owner": "ray::OwnerActor",
    "gateway": "ray::GatewayActor",
    "API replica": "ray::ServeReplica",
    "Serve controller": "ray::ServeController",
    "ingress": "haproxy -db",
    "ingress manager": "ray::HAProxyManager",
    "PostgreSQL backend": "postgres: broker",
    "PostgreSQL": "postgres -D",
    "Ray with everything on it": "broker.deployments.conductor",
}
"""What can be killed, and what its processes have in their command lines."""

COUNTER = "ray::CounterActor"
"""What counters have in their command lines; events do not pass them."""

RAY_TITLES = {"GCS": "gcs/gcs_server", "raylet": "raylet/raylet"}
"""Ray's own processes, which the same is done to one by one."""

CUT = "connections cut"
STALL = "connections stalled for 3 s"
KINDS = (*TITLES, CUT, STALL)

ONE_OF = ("owner", "PostgreSQL backend")
"""Kinds of which one process is hit, not all."""


def find(instance: Instance, title: str) -> list[psutil.Process]:
    """The instance's processes with `title` in their command lines.

    Not only descendants: workers whose fork server was renewed have none of its ancestors.
    """
    children = psutil.Process(instance.process.pid).children(recursive=True)
    found = []
    for pid in sorted({*instance.processes(), *(child.pid for child in children)}):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found


def kill(instance: Instance, title: str) -> int:
    """`kill -9` of the instance's processes with `title` in their command lines; returns how many."""
    return hit(find(instance, title), signal.SIGKILL)


def hit(processes: Sequence[psutil.Process], number: signal.Signals) -> int:
    """Send a signal to processes; returns how many there were."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL ends its processes when one of them has died
            process.send_signal(number)
    return len(processes)


def choose_victims(instance: Instance, kind: str, chance: random.Random) -> list[psutil.Process]:
    """The processes that die when `kind` of `TITLES` is to die; none when it is not there at the moment."""
    found = find(instance, TITLES[kind])
    return [chance.choice(found)] if found and kind in ONE_OF else found


def draw_pair(chance: random.Random) -> tuple[str, str]:
    """Two kinds to be hit at once; two of one kind where it has several processes."""
    pair = chance.choice(KINDS), chance.choice(KINDS)
    return pair if pair[0] != pair[1] or pair[0] in ONE_OF else draw_pair(chance)


def draw_plan(chance: random.Random) -> Iterator[tuple[str, ...]]:
    """Faults without end: in each round every kind once and as many pairs, in random order."""
    while True:
        plan = [(kind,) for kind in KINDS] + [draw_pair(chance) for _ in KINDS]
        chance.shuffle(plan)
        yield from plan
