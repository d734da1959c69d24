"""The database's time, derived in each process without a query.

Processes decide together by time: whether a poll has closed, a token has ended, a program is live. Their
machines' clocks may be wrong, or be set; so all of them take the database's. Each measures once in a while
how far it is from its own clock that nobody sets, and tells time by that: a wall clock that is wrong by a day
or steps changes nothing. What it tells is late or early by half the time of the query at most, and by what
the machine's oscillator drifts between two of them, a few milliseconds.

Without the database the last measurement holds. A database whose own clock is set, or another one after
a failover, is followed within `EVERY_S`.
"""

import time

from broker.clock import SystemClock
from broker.concurrency.periodic import repeat
from broker.storage.database import Database

EVERY_S = 30.0

# Linux tells boot time in the same unit, and it goes on while a machine is suspended.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SLOW_S = 0.5  # a measurement that took longer says less than the one before
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


class DatabaseClock:
    """A `Clock` that follows the database's. `open` creates it; `run` keeps it right."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ahead_s = time.time() - time.clock_gettime(_STEADY)

    @classmethod
    async def open(cls, database: Database) -> "DatabaseClock":
        """The clock, set. Raises Unavailable."""
        clock = cls(database)
        await clock.measure()
        return clock

    def now_ms(self) -> int:
        """Milliseconds since the epoch by the database's clock; it steps only when a measurement says so."""
        return int((time.clock_gettime(_STEADY) + self._ahead_s) * 1_000)

    monotonic_s = SystemClock.monotonic_s
    """Seconds of a clock that nobody sets."""

    async def run(self) -> None:
        """Measure again and again, until cancelled."""
        await repeat("clock", EVERY_S, lambda: self.measure(at_most_s=_SLOW_S))

    async def measure(self, at_most_s: float | None = None) -> None:
        """Ask the database for its time; an answer that took longer than `at_most_s` is not used.

        Raises Unavailable.
        """
        async with self._database.connection() as connection:
            began_s = time.clock_gettime(_STEADY)
            database_s = float(await connection.fetchval(_NOW))
            ended_s = time.clock_gettime(_STEADY)
        if at_most_s is None or ended_s - began_s <= at_most_s:
            self._ahead_s = database_s - (began_s + ended_s) / 2
