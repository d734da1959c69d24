"""Writes the counts of a process to the database.

It adds up in memory (`Tally`) and writes every few seconds: one statement, a row for each program that had
something, added to the rows of the minute. What is counted is written exactly once: a batch whose outcome is
unknown is written again under its number, and counts once. Lost is

* what a process that dies had not written, `FLUSH_S` seconds at most; one that ends orderly writes the rest;
* events of a commit whose answer the database lost, when it turns out that they were stored;
* what could not be written for `HELD_MS`, when the database is unavailable for that long.
"""

import logging
from contextlib import suppress

from broker.clock import Clock
from broker.concurrency.periodic import repeat
from broker.domain.statistics import MINUTE_MS, Amount, ImagesUsed, Subject, Tally
from broker.errors import BrokerError
from broker.ids import IdSource
from broker.storage.statistics import Statistics

FLUSH_S = 5.0
HELD_MS = 10 * MINUTE_MS

_log = logging.getLogger(__name__)


class Recorder:
    """One process's tally and its way into the database. One `flush` at a time."""

    def __init__(self, statistics: Statistics, clock: Clock, ids: IdSource) -> None:
        self.tally = Tally()
        self._statistics = statistics
        self._clock = clock
        self._writer = ids.uuid7()
        self._batch = 0
        self._unwritten: list[Amount] = []

    def count_events(self, account: str, program_id: str, project_id: str | None, events: int) -> None:
        """Count events that were published to a program, for it and for its account."""
        now_ms = self._clock.now_ms()
        self.tally.count(now_ms, Subject(account, program_id, project_id or ""), events=events)
        self.tally.count(now_ms, Subject(account), events=events)

    def count_responses(
        self, account: str, program_id: str, project_id: str | None, *, responses: int, impressions: int
    ) -> None:
        """Count answers and impressions that a program accepted, for it and for its account."""
        now_ms = self._clock.now_ms()
        for subject in (Subject(account, program_id, project_id or ""), Subject(account)):
            self.tally.count(now_ms, subject, responses=responses, impressions=impressions)

    def count_images(self, account: str, used: ImagesUsed) -> None:
        """Count what became of an account's images."""
        self.tally.count_images(self._clock.now_ms(), account, used)

    async def run(self) -> None:
        """Write every `FLUSH_S` seconds, until cancelled."""
        await repeat("statistics", FLUSH_S, self.flush)

    async def flush(self) -> None:
        """Write what was added up since the last time.

        Raises:
            Unavailable: the database is unavailable; the next call goes on with the same.
        """
        now_ms = self._clock.now_ms()
        if not self._unwritten:
            self._unwritten = self.tally.take(now_ms)
            self._batch += 1
        self._unwritten = [each for each in self._unwritten if each.minute_ms > now_ms - HELD_MS]
        if self._unwritten:
            await self._statistics.add(self._writer, self._batch, self._unwritten)
            self._unwritten = []

    async def close(self) -> None:
        """Write the rest, or give it up when the database is unavailable."""
        with suppress(BrokerError):
            if self._unwritten:
                await self.flush()
            await self.flush()
            return
        _log.warning("statistics_lost", extra={"amounts": len(self._unwritten)})
