"""The port `Counters` over links: how a door's answers reach the counters.

Calls are shared: while one is in flight to a counter, what arrives for it waits and goes with the next, as
one batch. A batch that brings no answer is sent again under its number until the time of those who wait for
it is over; the counter knows it by the number and counts nothing twice.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.answers.batches import Answer, Batch, Group, Outcomes
from broker.answers.client import Entry
from broker.answers.counter import COUNTER
from broker.clock import Clock
from broker.errors import BrokerError, NotFound, Unavailable
from broker.ids import IdSource
from broker.settings import Settings
from broker.slots.link import Link, LinkLost, SlotLink

_BATCH_ENTRIES = 20_000
_QUEUE_ENTRIES = 200_000
_RETRY_S = (0.02, 0.5)  # first and longest pause before a batch is sent again
_GRACE_S = 1.0  # for the way of an answer that was made just in time


@dataclass(slots=True, eq=False)
class _Waiting:
    """Entries of one caller for one counter, counted in one batch."""

    entries: list[Entry]
    deadline_s: float
    changed: "asyncio.Future[list[bool] | BrokerError]" = field(default_factory=asyncio.Future)


class LinkedCounters:
    """See `Counters`. Belongs to one event loop; `close` it there."""

    def __init__(
        self, settings: Settings, clock: Clock, ids: IdSource, links: Sequence[Link] | None = None
    ) -> None:
        """Make a client; `links` are the ways to the counters, one a slot, by default Ray's."""
        self._wait_s = settings.publish_timeout_s
        self._clock = clock
        self._links = links or [SlotLink(COUNTER, index) for index in range(settings.counters)]
        self._lanes = [_Lane(link, clock, ids.uuid7()) for link in self._links]

    async def submit(self, entries: Sequence[Entry]) -> list[bool]:
        """See `Counters.submit`."""
        deadline_s = self._clock.monotonic_s() + self._wait_s
        if len(self._lanes) == 1:
            return _raise_or_return(await self._lanes[0].add(list(entries), deadline_s))
        places: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(entry.shard % len(self._lanes), []).append(place)
        calls = [
            self._lanes[lane].add([entries[place] for place in mine], deadline_s)
            for lane, mine in places.items()
        ]
        changed = [False] * len(entries)
        for mine, result in zip(places.values(), await asyncio.gather(*calls), strict=True):
            for place, each in zip(mine, _raise_or_return(result), strict=True):
                changed[place] = each
        return changed

    async def close(self) -> None:
        """End the lanes; what waits is answered `Unavailable`."""
        for lane in self._lanes:
            await lane.close()
        for link in self._links:
            link.close()


class _Lane:
    """The queue to one counter and the task that empties it."""

    def __init__(self, link: Link, clock: Clock, door: str) -> None:
        self._link = link
        self._clock = clock
        self._door = door
        self._number = 0
        self._queue: deque[_Waiting] = deque()
        self._queued = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, entries: list[Entry], deadline_s: float) -> "asyncio.Future[list[bool] | BrokerError]":
        """Queue entries; the future tells which changed a count, or holds an error as a value."""
        waiting = _Waiting(entries, deadline_s)
        if self._closed or (self._queue and self._queued + len(entries) > _QUEUE_ENTRIES):
            waiting.changed.set_result(_unavailable())
            return waiting.changed
        self._queue.append(waiting)
        self._queued += len(entries)
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="counter lane")
        return waiting.changed

    async def close(self) -> None:
        """End the task and answer what waits."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        taken: list[_Waiting] = []
        try:
            while True:
                await self._arrived.wait()
                taken = self._take()
                if taken:
                    await self._deliver(taken)
                else:
                    self._arrived.clear()
        finally:
            for waiting in (*taken, *self._queue):
                _settle(waiting, _unavailable())

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        room = _BATCH_ENTRIES
        while self._queue and (not taken or len(self._queue[0].entries) <= room):
            waiting = self._queue.popleft()
            self._queued -= len(waiting.entries)
            room -= len(waiting.entries)
            if not waiting.changed.cancelled():
                taken.append(waiting)
        return taken

    async def _deliver(self, taken: list[_Waiting]) -> None:
        """Call the counter until it answers or nobody has time left."""
        entries = [entry for waiting in taken for entry in waiting.entries]
        self._number += 1
        batch, places = _build(self._door, self._number, entries)
        deadline_s = max(waiting.deadline_s for waiting in taken)
        pause_s = _RETRY_S[0]
        answer: Answer = _unavailable()
        while isinstance(answer, Unavailable) and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            try:
                answer = await self._link.call("submit", batch, left_s, timeout_s=left_s + _GRACE_S)
            except LinkLost:
                answer = _unavailable()
            if isinstance(answer, Unavailable):
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _RETRY_S[1])
        _hand_out(taken, places, answer)


def _build(door: str, number: int, entries: Sequence[Entry]) -> tuple[Batch, list[tuple[int, int]]]:
    """The batch of the entries, and for each its group with its place there."""
    groups: dict[tuple[int, int, bool], int] = {}
    records: list[list[bytes]] = []
    places: list[tuple[int, int]] = []
    for entry in entries:
        key = entry[:3]  # poll, shard, allow_change
        group = groups.setdefault(key, len(groups))
        if group == len(records):
            records.append([])
        places.append((group, len(records[group])))
        records[group].append(entry.record)
    packed = (b"".join(each) for each in records)
    return Batch(
        door, number, tuple(Group(*key, each) for key, each in zip(groups, packed, strict=True))
    ), places


def _hand_out(taken: Sequence[_Waiting], places: Sequence[tuple[int, int]], answer: Answer) -> None:
    if isinstance(answer, BrokerError):
        for waiting in taken:
            _settle(waiting, answer)
        return
    begin = 0
    for waiting in taken:
        end = begin + len(waiting.entries)
        _settle(waiting, _changed(answer, places[begin:end]))
        begin = end


def _changed(outcomes: Outcomes, places: Sequence[tuple[int, int]]) -> list[bool] | BrokerError:
    changed: list[bool] = []
    for group, place in places:
        counted = outcomes[group]
        if counted is None:
            return NotFound("the program has been deleted")
        changed.append(bool(counted[place]))
    return changed


def _raise_or_return(result: list[bool] | BrokerError) -> list[bool]:
    if isinstance(result, BrokerError):
        raise result
    return result


def _settle(waiting: _Waiting, value: list[bool] | BrokerError) -> None:
    if not waiting.changed.done():
        waiting.changed.set_result(value)


def _unavailable() -> Unavailable:
    return Unavailable("the answers could not be counted in time; try again", retry_after_s=1)
