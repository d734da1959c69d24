"""The port to the counters in one process: native tallies, stored as counters store them."""

import asyncio
from collections.abc import Sequence

from broker._native import Tally
from broker.answers.client import Entry
from broker.errors import NotFound
from broker.storage.answer_log import AnswerLog, PollWrite
from broker.storage.database import Database


class DirectCounters:
    """See `broker.answers.client.Counters`."""

    def __init__(self, database: Database) -> None:
        self._log = AnswerLog(database, "counter-0")
        self._generation = 0
        self._tallies: dict[tuple[int, int], tuple[Tally, int]] = {}
        self._turn = asyncio.Lock()

    async def submit(self, entries: Sequence[Entry]) -> list[bool]:
        async with self._turn:
            self._generation = self._generation or await self._log.acquire()
            news: dict[tuple[int, int], bytes] = {}
            outcomes = []
            for entry in entries:
                key = (entry.poll, entry.shard)
                tally, number = self._tallies.setdefault(key, (Tally(), 0))
                outcome, new = tally.apply(entry.record, allow_change=entry.allow_change)
                outcomes.append(outcome == b"\1")
                news[key] = news.get(key, b"") + new
            writes = []
            for key, records in news.items():
                tally, number = self._tallies[key]
                self._tallies[key] = (tally, number + 1)
                writes.append(
                    PollWrite(
                        *key,
                        number + 1,
                        records,
                        tally.totals(),
                        tally.impressions,
                        tally.visitors,
                        tally.sessions,
                    )
                )
            stored = await self._log.commit(self._generation, writes, [])
            if len(stored) < len({entry.poll for entry in entries}):
                raise NotFound("a poll is gone")
            return outcomes
