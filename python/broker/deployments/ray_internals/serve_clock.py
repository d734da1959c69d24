"""Gives Ray Serve a clock that nobody sets.

Serve's controller and the managers of its ingress decide by the wall clock when to look at a replica, a
manager and each other again. After the clock was set back they would look only when it has caught up: a
replica that dies meanwhile would be neither replaced nor left out, and requests would wait for it.

Where workers are forked, Serve is changed before (`fork_server`): its modules get the time of day as it was
when the fork server started, and what has passed since by the clock that is never set. All workers have the
same, so that times of one can be compared with those of another.

Names used: `time`, as the modules of `ray.serve` have imported it, and `ray._common.utils`, where Serve has
its timers from.
Probe: each module that is loaded is asked for it; a test says when one that decides by it has it no longer.
Fall-back: Serve goes by the wall clock.
Gain: a replica that dies is noticed at once, and not after as long as the clock was set back; HTTP goes on
while it is set.
"""

import sys
import time
from types import ModuleType

_USERS = ("ray.serve.", "ray._common.utils")


def keep_steady() -> None:
    """Change the modules of Serve that are loaded in this process, for it and those that it forks."""
    steady = make_steady(time)
    for name, module in list(sys.modules.items()):
        if name.startswith(_USERS) and getattr(module, "time", None) is time:
            module.time = steady  # type: ignore[attr-defined]  # each has imported it under this name


def make_steady(source: ModuleType) -> ModuleType:
    """Return a module like `source`, which is `time`, whose time of day goes by its monotonic clock."""
    steady = ModuleType(source.__name__, source.__doc__)
    vars(steady).update(vars(source))
    start_s: float = source.time() - source.monotonic()
    monotonic = source.monotonic

    def passed_s() -> float:
        return start_s + float(monotonic())

    steady.time = passed_s  # type: ignore[attr-defined]
    return steady
