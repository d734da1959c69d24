"""Older pushes for a native log, when a viewer needs more than the log holds.

Pushes are fetched a page at a time, from the log's oldest one backwards, so that each page joins what is
there already and memory holds one page, whatever the distance.
"""

import logging

from broker.concurrency.caches import LruCache
from broker.concurrency.single_flight import SingleFlight
from broker.gateway.topics import Logs, native_entry
from broker.owners.feed import Feed
from broker.owners.protocol import EntryKind, HistoryLost

_log = logging.getLogger(__name__)

MAX_FLOORS = 10_000  # topics whose lost past is remembered; one that was forgotten is asked for again
PAGE_ENTRIES = 500  # up to 64 KiB each; one page is one call to the owner


class Backfill:
    """Fills native logs backwards; many who ask for one topic share the calls."""

    def __init__(self, logs: Logs, feed: Feed, history_events: int) -> None:
        self._logs = logs
        self._feed = feed
        self._history_events = history_events
        self._single_flight: SingleFlight[tuple[str, str, int], None] = SingleFlight()
        # topic → (epoch, seq before which everything is lost)
        self._floors: LruCache[str, tuple[str, int]] = LruCache(MAX_FLOORS)

    def forget(self, topic: str) -> None:
        """Drop what is known of a topic that is followed no more."""
        self._floors.pop(topic)

    async def since(self, topic: str, epoch: str, seq: int, *, is_compared: bool = False) -> None:
        """Let the log reach back to after `seq` of `epoch`, as far as the history limit allows.

        With `is_compared` to `seq` itself, so that its message can be compared with the one that a viewer has
        seen. Lost pushes are left out; native code then replies that the position is lost.

        Raises:
            Unavailable: the owner cannot be reached in time.
        """
        head = self._logs.head(topic)
        if (
            head is None
            or head[0] != epoch
            or not head[1] - self._history_events <= seq < head[2] + is_compared
        ):
            return
        await self._reach(topic, epoch, seq - is_compared)

    async def last(self, topic: str, count: int) -> None:
        """Let the log hold the last `count` pushes, or all there are. Raises as `since` does."""
        head = self._logs.head(topic)
        if head is None:
            return
        epoch, newest, before_oldest = head
        seq = max(0, newest - min(count, self._history_events))
        if seq < before_oldest:
            await self._reach(topic, epoch, seq)

    async def close(self) -> None:
        """End all fetching. Idempotent."""
        await self._single_flight.close()

    async def _reach(self, topic: str, epoch: str, seq: int) -> None:
        floor = self._floors.get(topic)
        if floor is not None and floor[0] == epoch:
            head = self._logs.head(topic)
            seq = max(seq, floor[1])
            if head is None or head[2] <= seq:
                return
        # Rounded down, so that viewers who left at different moments ask for the same pages.
        goal = seq - seq % PAGE_ENTRIES
        await self._single_flight.run((topic, epoch, goal), lambda: self._fill(topic, epoch, goal))

    async def _fill(self, topic: str, epoch: str, goal: int) -> None:
        page = PAGE_ENTRIES
        while True:
            head = self._logs.head(topic)
            if head is None or head[0] != epoch or head[2] <= goal:
                return
            before_oldest = head[2]
            if await self._fill_page(topic, epoch, max(goal, before_oldest - page), before_oldest):
                continue
            # The beginning of the page is out of reach: an import, or its age. Find how far one can reach.
            page = min(page, before_oldest - goal) // 2
            if page == 0:
                self._floors.put(topic, (epoch, before_oldest))
                return

    async def _fill_page(self, topic: str, epoch: str, after: int, before_oldest: int) -> bool:
        """Put the pushes from `after`, exclusive, to `before_oldest` in front; false when they cannot be."""
        try:
            entries = await self._feed.history(topic, epoch, after, before_oldest - after)
        except HistoryLost:
            return False
        page = [entry for entry in entries if entry.kind == EntryKind.PUSH and entry.seq <= before_oldest]
        if [entry.seq for entry in page] != list(range(after + 1, before_oldest + 1)):
            _log.warning("history_hole", extra={"topic": topic})
            return False
        self._logs.backfill(topic, epoch, [native_entry(entry) for entry in page])
        head = self._logs.head(topic)
        # A log that is full drops at its old end what was put there: more would be fetched for nothing.
        return head is not None and head[0] == epoch and head[2] < before_oldest
