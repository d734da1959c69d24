"""The initialisation of each Ray worker; Ray finds it by its name in the environment."""

from broker import timers

LATE_S = 1.0
"""How late timers may be in a worker that asks for nothing else: Ray Serve's, which look around at rest."""


def relax() -> None:
    """Let this worker's event loop, and what it starts, be late.

    It wakes a hundred times a second to see whether a signal came. One that comes wakes it anyway.
    """
    timers.allow_late(LATE_S)
