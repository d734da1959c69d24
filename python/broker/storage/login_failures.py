"""Failed log-ins in PostgreSQL, counted in a sliding window over all processes."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from broker.clock import to_datetime, to_ms
from broker.storage.database import Database

# Two numbers make a lock space of its own; the first is ours, the second part of the subject's hash.
_LOCK_CLASS = 0x10610
_LOCK = "SELECT pg_advisory_xact_lock($1, $2)"
# The newest failures of each subject within its window, the limit-th of which decides. Failures from a future
# further off than the window were counted before the clock stepped back; they would refuse until it is there.
_SELECT = """
SELECT subject, time FROM login_failures
WHERE account = $1 AND subject = ANY($2) AND time > $3 AND time < $4 ORDER BY time DESC
"""
_INSERT = """
INSERT INTO login_failures (account, subject, time) SELECT $1, subject, $3 FROM unnest($2::bytea[]) AS subject
"""
_PURGE = "DELETE FROM login_failures WHERE time <= $1"


class LoginFailures:
    """Counts failures by subject, an opaque hash of a user name or an address; limits are the caller's."""

    def __init__(self, database: Database, *, window_s: int) -> None:
        self._database = database
        self._window_ms = window_s * 1000

    async def wait_ms(self, account: str, limits: Mapping[bytes, int], now_ms: int) -> int:
        """Milliseconds until every subject is below its limit; 0 when all are."""
        async with self._database.connection() as connection:
            return await self._wait_ms(connection, account, limits, now_ms)

    async def record(self, account: str, limits: Mapping[bytes, int], now_ms: int) -> int:
        """Count one failure for each subject, unless one of them is at its limit already.

        Two processes that record failures of one subject do it one after the other, so no more than the limit
        are ever counted.

        Returns:
            0 when it was counted, else what `wait_ms` says.
        """
        async with self._database.transaction() as connection:
            for subject in sorted(limits):  # one order for all, or two could wait for each other
                await connection.execute(_LOCK, _LOCK_CLASS, int.from_bytes(subject[:4], "big", signed=True))
            wait_ms = await self._wait_ms(connection, account, limits, now_ms)
            if wait_ms == 0:
                await connection.execute(_INSERT, account, list(limits), to_datetime(now_ms))
        return wait_ms

    async def purge(self, now_ms: int) -> None:
        """Delete what no window reaches any more."""
        await self._database.execute(_PURGE, to_datetime(now_ms - self._window_ms))

    async def _wait_ms(self, connection: Any, account: str, limits: Mapping[bytes, int], now_ms: int) -> int:
        now, window = to_datetime(now_ms), timedelta(milliseconds=self._window_ms)
        rows = await connection.fetch(_SELECT, account, list(limits), now - window, now + window)
        times: dict[bytes, list[int]] = {}
        for row in rows:
            times.setdefault(row["subject"], []).append(to_ms(row["time"]))
        return max(
            (self._wait_of(times.get(subject, ()), limit, now_ms) for subject, limit in limits.items()),
            default=0,
        )

    def _wait_of(self, newest_first: Sequence[int], limit: int, now_ms: int) -> int:
        if len(newest_first) < limit:
            return 0
        return newest_first[limit - 1] + self._window_ms - now_ms
