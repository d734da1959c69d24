"""Detects when the wall clock is set back.

Ray Serve's controller and the managers of its ingress time their looks at replicas and at each other by the
wall clock. After a step back they would look again only when the clock has caught up: a replica that dies
meanwhile would be neither replaced nor left out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.clock import Clock

_LOOK_S = 1.0
_STEP_S = 10.0  # less delays their looks by no more than what a request waits anyway

_log = logging.getLogger(__name__)


async def watch_clock(clock: Clock, set_back: Callable[[], Awaitable[None]]) -> None:
    """Call `set_back` after each step back of ten seconds or more, until cancelled."""
    before_s = _ahead_s(clock)
    while True:
        await asyncio.sleep(_LOOK_S)
        now_s = _ahead_s(clock)
        if before_s - now_s >= _STEP_S:
            _log.warning("clock_set_back", extra={"by_s": round(before_s - now_s)})
            await set_back()
        before_s = now_s


def _ahead_s(clock: Clock) -> float:
    """How far the wall clock is ahead of the one that nobody sets; only its changes mean something."""
    return clock.now_ms() / 1000 - clock.monotonic_s()
