"""The port `Counters` over links: how a door's answers reach the counters.

Calls are shared: while one is in flight to a counter, what arrives for it waits and goes with the next, as
one batch. A batch that brings no reply is sent again under its number until the time of those who wait for
it is over; the counter knows it by the number and counts nothing twice. Of a batch that was given up after
some call with it got lost, nobody knows whether it was counted.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from broker.actors.link import Link, LinkLost, SlotLink
from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.batch_queue import BatchLimits, BatchQueue
from broker.errors import BrokerError, NotFound, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import Settings
from broker.voting.counting.batches import SEALED, BatchReply, CountKey, Group, Outcomes, VoteBatch
from broker.voting.counting.calls import COUNTER_CALLS
from broker.voting.counting.client import PackedEntry
from broker.voting.counting.errors import VotingClosed
from broker.voting.counting.placement import COUNTER

_LIMITS = BatchLimits(batch_size=20_000, queue_size=200_000)  # entries
_RETRY = Backoff(0.02, 0.1, jitter=0)  # before a batch is sent again
_GRACE_S = 1.0  # for the way of a reply that was made just in time

_Replied = TypeVar("_Replied")

_RECORD_BYTES = 9  # of the shortest: so many records are in a group at most


class _Call(Protocol):
    """What one caller gives for one counter, counted in one batch."""

    size: int
    """Records, at most."""

    def pack(self, packing: "_Packing") -> None:
        """Put it into the batch."""

    def answer(self, reply: BatchReply) -> None:
        """Tell what the counter has made of the batch."""

    def is_given_up(self) -> bool:
        """Whether nobody waits for it any more."""


class _Packing:
    """A batch in the making."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int, bool]] = []
        self._records: list[list[bytes]] = []
        self._shared: dict[tuple[int, int, bool], int] = {}

    def add(self, entry: PackedEntry) -> tuple[int, int]:
        """Put an entry with others of its kind; returns its group, and its place there."""
        key = entry[:3]  # poll, shard, allow_change
        group = self._shared.get(key)
        if group is None:
            group = self._shared[key] = self._new(key)
        self._records[group].append(entry.record)
        return group, len(self._records[group]) - 1

    def add_group(self, group: Group) -> int:
        """Put a whole group, which stays one; returns which it is."""
        place = self._new((group.poll, group.shard, group.allow_change))
        self._records[place].append(group.records)
        # What comes later is counted later.
        self._shared.pop(self._keys[place], None)
        return place

    def build(self, door: str, number: int) -> VoteBatch:
        """The batch."""
        packed = (b"".join(each) for each in self._records)
        groups = (Group(*key, each) for key, each in zip(self._keys, packed, strict=True))
        return VoteBatch(door, number, tuple(groups))

    def _new(self, key: tuple[int, int, bool]) -> int:
        self._keys.append(key)
        self._records.append([])
        return len(self._keys) - 1


class _Entries:
    """Entries that share groups with those of others."""

    def __init__(self, entries: Sequence[PackedEntry]) -> None:
        self.size = len(entries)
        self.changed: asyncio.Future[list[bool] | BrokerError] = asyncio.Future()
        self._entries = entries
        self._places: list[tuple[int, int]] = []

    def pack(self, packing: _Packing) -> None:
        """Add the votes to the batch."""
        self._places = [packing.add(entry) for entry in self._entries]

    def answer(self, reply: BatchReply) -> None:
        """Complete the call with the outcomes of its votes."""
        if not self.changed.done():
            result = reply if isinstance(reply, BrokerError) else _changed(reply, self._places)
            self.changed.set_result(result)

    def is_given_up(self) -> bool:
        """Whether nobody waits for the outcome any more."""
        return self.changed.cancelled()


class _Groups:
    """Groups that are packed already."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.size = sum(len(group.records) for group in groups) // _RECORD_BYTES
        self.outcomes: asyncio.Future[list[bytes | None] | BrokerError] = asyncio.Future()
        self._groups = groups
        self._places: list[int] = []

    def pack(self, packing: _Packing) -> None:
        """Add the groups to the batch."""
        self._places = [packing.add_group(group) for group in self._groups]

    def answer(self, reply: BatchReply) -> None:
        """Complete the call with the outcomes of its groups."""
        if self.outcomes.done():
            return
        if isinstance(reply, BrokerError):
            self.outcomes.set_result(reply)
        else:
            self.outcomes.set_result([reply[place] for place in self._places])

    def is_given_up(self) -> bool:
        """Never: the voters wait, even if the caller does not."""
        return False


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call in its lane."""

    call: _Call
    deadline_s: float


class LinkedCounters:
    """The `Counters` over links. Belongs to one event loop; `close` it there."""

    def __init__(
        self, settings: Settings, clock: Clock, ids: IdSource, links: Sequence[Link] | None = None
    ) -> None:
        """Make a client; `links` are the ways to the counters, one a slot, by default Ray's."""
        self._wait_s = settings.publish_timeout_s
        self._clock = clock
        self._links = links or [SlotLink(COUNTER, index, COUNTER_CALLS) for index in range(settings.counters)]
        self._lanes = [_Lane(link, clock, ids.uuid7()) for link in self._links]

    async def submit(self, entries: Sequence[PackedEntry], key: CountKey | None = None) -> list[bool]:
        """Count votes with the next call to each counter, and await the outcomes."""
        deadline_s = self._clock.monotonic_s() + self._wait_s
        if len(self._lanes) == 1 and key is None:
            call = _Entries(entries)
            self._lanes[0].add(call, deadline_s)
            return _raise_or_return(await call.changed)
        places: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(entry.shard % len(self._lanes), []).append(place)
        calls = [_Entries([entries[place] for place in mine]) for mine in places.values()]
        if key is None:
            for lane, call in zip(places, calls, strict=True):
                self._lanes[lane].add(call, deadline_s)
        else:
            counting = zip(places, calls, strict=True)
            await asyncio.gather(*(self._count_keyed(lane, call, key, deadline_s) for lane, call in counting))
        changed = [False] * len(entries)
        results = await asyncio.gather(*(call.changed for call in calls))
        if any(isinstance(result, Unavailable) for result in results):
            # Others have counted theirs, unless all are sure that they have not.
            raise _unavailable(is_doubtful=not all(type(result) is Unavailable for result in results))
        for mine, result in zip(places.values(), results, strict=True):
            for place, each in zip(mine, _raise_or_return(result), strict=True):
                changed[place] = each
        return changed

    async def count(self, groups: Sequence[Group]) -> list[bytes | None]:
        """Count whole groups of one counter, and await their outcomes."""
        lanes = {group.shard % len(self._lanes) for group in groups}
        if len(lanes) > 1:
            raise ValueError("groups must be for one counter")
        call = _Groups(groups)
        for lane in lanes:
            self._lanes[lane].add(call, self._clock.monotonic_s() + self._wait_s)
        if not lanes:
            return []
        return _raise_or_return(await call.outcomes)

    async def _count_keyed(self, lane: int, call: "_Entries", key: CountKey, deadline_s: float) -> None:
        """Give a counter its part of a request with a key, as a batch of its own."""
        packing = _Packing()
        call.pack(packing)
        call.answer(await _insist(self._links[lane], self._clock, packing.build(*key), deadline_s))

    async def close(self) -> None:
        """End the lanes; what waits is answered `Unavailable`, what is on its way `OutcomeUnknown`."""
        for lane in self._lanes:
            await lane.queue.close()
        for link in self._links:
            link.close()

    def figures(self) -> Iterator[Sample]:
        """What waits for its way to the counters."""
        yield Sample(catalogue.QUEUE.name, ("counters",), sum(lane.queue.size for lane in self._lanes))


class _Lane:
    """The way to one counter."""

    def __init__(self, link: Link, clock: Clock, door: str) -> None:
        self._link = link
        self._clock = clock
        self._door = door
        self._number = 0
        self.queue: BatchQueue[_Waiting] = BatchQueue(
            "counter lane", _LIMITS, self._deliver, _end, lambda waiting: not waiting.call.is_given_up()
        )

    def add(self, call: _Call, deadline_s: float) -> None:
        """Queue a call, which is answered in the end."""
        self.queue.add(_Waiting(call, deadline_s), call.size)

    async def _deliver(self, taken: Sequence[_Waiting]) -> None:
        """Call the counter until it answers or nobody has time left."""
        packing = _Packing()
        for waiting in taken:
            waiting.call.pack(packing)
        self._number += 1
        batch = packing.build(self._door, self._number)
        deadline_s = max(waiting.deadline_s for waiting in taken)
        reply = await _insist(self._link, self._clock, batch, deadline_s)
        for waiting in taken:
            waiting.call.answer(reply)


def _end(waiting: _Waiting, is_under_way: bool) -> None:
    waiting.call.answer(_unavailable(is_doubtful=is_under_way))


async def _insist(link: Link, clock: Clock, batch: VoteBatch, deadline_s: float) -> BatchReply:
    """Call the counter until it answers or the time is over."""
    delays = Delays(_RETRY)
    reply: BatchReply = _unavailable()
    is_doubtful = False
    while isinstance(reply, Unavailable) and (left_s := deadline_s - clock.monotonic_s()) > 0:
        try:
            reply = await link.call("submit", batch, left_s, timeout_s=left_s + _GRACE_S)
        except LinkLost as lost:
            reply = _unavailable(is_doubtful=lost.was_sent)
        if isinstance(reply, Unavailable):
            is_doubtful |= isinstance(reply, OutcomeUnknown)
            await delays.wait(left_s)
    return _unavailable(is_doubtful=is_doubtful) if isinstance(reply, Unavailable) else reply


def _changed(outcomes: Outcomes, places: Sequence[tuple[int, int]]) -> list[bool] | BrokerError:
    changed: list[bool] = []
    for group, place in places:
        counted = outcomes[group]
        if counted is None:
            return NotFound("the program has been deleted")
        if counted == SEALED:
            return VotingClosed()
        changed.append(bool(counted[place]))
    return changed


def _raise_or_return(result: _Replied | BrokerError) -> _Replied:
    if isinstance(result, BrokerError):
        raise result
    return result


def _unavailable(*, is_doubtful: bool = False) -> Unavailable:
    kind = OutcomeUnknown if is_doubtful else Unavailable
    return kind("the replies could not be counted in time; try again", retry_after_s=1)
