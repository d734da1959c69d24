"""The only reader of time.

Everything that needs the time takes a `Clock`; tests pass one that they move by hand.
"""

import time
from datetime import UTC, datetime
from typing import Protocol

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the first one


class Clock(Protocol):
    """Tells wall time, for stamps, and monotonic time, for waits. Safe to call from any thread."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z; may step when the system clock is set."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the machine's wall clock."""
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(time.monotonic)  # a request asks ten times
    """Seconds of a clock that nobody sets."""


def boot_s() -> float:
    """Seconds since the machine has booted, suspended or not; the same in all its processes."""
    return time.clock_gettime(_BOOT)


def wall_ns() -> int:
    """Nanoseconds since the epoch by the machine's wall clock, for spans that last microseconds."""
    return time.time_ns()


def to_datetime(ms: int) -> datetime:
    """The UTC datetime of `ms` milliseconds since the epoch."""
    return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)


def to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime, rounded down."""
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1000 + moment.microsecond // 1000
