"""The initialisation of each Ray worker; Ray finds it by its name in the environment."""

import threading
from importlib import import_module
from pathlib import Path

from broker import timers

PREPARE = "broker.deployments.worker_setup.prepare"
"""The name of what workers of a cluster that was joined call."""

_REST_S = 5.0  # in which Ray gives a worker the actor for which it has started it, on a busy machine too
_IDLE = b"ray::IDLE"  # what Ray calls a worker that waits
_NEEDED = (
    "broker.owners.actor",
    "broker.owners.calls",
    "broker.owners.owner",
    "broker.rpc.listener",
    "broker.voting.counting.actor",
    "broker.voting.counting.calls",
    "broker.voting.counting.counter",
)

LATE_S = 1.0
"""How late timers may be in a worker that asks for nothing else: Ray Serve's, which look around at rest."""


def relax() -> None:
    """Let this worker's event loop, and what it starts, be late.

    It wakes a hundred times a second to see whether a signal came. One that comes wakes it anyway.
    """
    timers.allow_late(LATE_S)


def prepare() -> None:
    """Begin to import what the actor of a slot needs, if this worker waits for an actor.

    One that is started in the place of another then starts without the second of a core that imports take.
    """
    threading.Thread(target=_import_while_idle, name="prepare", daemon=True).start()


def _import_while_idle() -> None:
    threading.Event().wait(_REST_S)
    if Path("/proc/self/cmdline").read_bytes().startswith(_IDLE):
        for name in _NEEDED:
            import_module(name)
