"""`Counters` over links: how the votes of a sender reach the counters.

Entries go by a `BatchingClient` a counter, as one numbered batch a call. A batch that brings no reply is sent
again under its number; the counter knows it by that and counts nothing twice.

Votes that native code has packed wait where it keeps them, and in no queue of ours: a batch takes them when
it is made. They are counted after the entries of the batch, since those were given before; while more
entries wait than go into one batch, none are taken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from broker.actors.batching_client import Asked, BatchingClient
from broker.actors.link import Link, SlotLink
from broker.clock import Clock
from broker.concurrency.batch_queue import BatchLimits
from broker.errors import BrokerError, NotFound, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import VOTE_SECONDS, Sample
from broker.settings import Settings
from broker.voting.counting.batches import SEALED, CountKey, Group, Outcomes, VoteBatch
from broker.voting.counting.calls import COUNTER_CALLS
from broker.voting.counting.client import PackedEntry
from broker.voting.counting.errors import VotingClosed
from broker.voting.counting.placement import COUNTER
from broker.voting.counting.work import LATE

_LIMITS = BatchLimits(batch_size=20_000, queue_size=200_000)  # entries

_Replied = TypeVar("_Replied")


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

    def build(self, sender: str, number: int) -> VoteBatch:
        """The batch."""
        packed = (b"".join(each) for each in self._records)
        groups = (Group(*key, each) for key, each in zip(self._keys, packed, strict=True))
        return VoteBatch(sender, number, tuple(groups))

    def _new(self, key: tuple[int, int, bool]) -> int:
        self._keys.append(key)
        self._records.append([])
        return len(self._keys) - 1


class _Question(Protocol):
    """What one caller gives for one counter, counted in one batch."""

    def pack(self, packing: _Packing) -> None:
        """Put it into the batch."""

    def read(self, outcomes: Outcomes) -> object:
        """Its reply in that of the batch."""


class _Entries:
    """Entries that share groups with those of others."""

    def __init__(self, entries: Sequence[PackedEntry]) -> None:
        self.size = len(entries)
        self._entries = entries
        self._places: list[tuple[int, int]] = []

    def pack(self, packing: _Packing) -> None:
        """Put them into the batch."""
        self._places = [packing.add(entry) for entry in self._entries]

    def read(self, outcomes: Outcomes) -> list[bool] | BrokerError:
        """Whether each entry has changed a count."""
        changed: list[bool] = []
        for group, place in self._places:
            counted = outcomes[group]
            if counted is None:
                return NotFound("the program has been deleted")
            if counted == SEALED:
                return VotingClosed()
            changed.append(bool(counted[place]))
        return changed


class _Groups:
    """Groups that are packed already, and are taken when the batch is made."""

    def __init__(self, take: Callable[[], Sequence[Group]]) -> None:
        self._take = take
        self._places: list[int] = []

    def pack(self, packing: _Packing) -> None:
        """Take them, and put them into the batch behind everything."""
        self._places = [packing.add_group(group) for group in self._take()]

    def read(self, outcomes: Outcomes) -> list[bytes | None]:
        """The outcomes of the groups."""
        return [outcomes[place] for place in self._places]


# The kind of a question says which: `list[bool]` for entries, `list[bytes | None]` for groups.
_Reply = Any
_Batch = Sequence[Asked[_Question, _Reply]]


class _Numbered:
    """One numbered batch after the other from one sender to one counter."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._number = 0
        self.has_more: Callable[[], bool] = lambda: False

    def pack(self, batch: _Batch, /) -> Callable[[_Batch], object]:
        """Number the batch. Each try sends all of it, since the number stands for that."""
        packing = _Packing()
        for asked in batch:
            if isinstance(asked.question, _Entries):
                asked.question.pack(packing)
        for asked in batch:
            if isinstance(asked.question, _Groups) and not self.has_more():
                asked.question.pack(packing)
        self._number += 1
        packed = packing.build(self._sender, self._number)
        return lambda _: packed

    def settle(self, batch: _Batch, outcomes: Outcomes, /) -> _Batch:
        """Hand out the outcomes; nothing is left to send again."""
        for asked in batch:
            asked.answer(asked.question.read(outcomes))
        return ()


class LinkedCounters:
    """The `Counters` over links. Belongs to one event loop; `close` it there."""

    def __init__(
        self, settings: Settings, clock: Clock, ids: IdSource, links: Sequence[Link] | None = None
    ) -> None:
        """Make a client; `links` are the ways to the counters, one a slot, by default Ray's."""
        self._wait_s = settings.publish_timeout_s
        self._clock = clock
        self._links = links or [SlotLink(COUNTER, index, COUNTER_CALLS) for index in range(settings.counters)]
        self._clients = [_open(link, clock, ids.uuid7()) for link in self._links]

    async def submit(self, entries: Sequence[PackedEntry], key: CountKey | None = None) -> list[bool]:
        """Count votes with the next call to each counter, and await the outcomes."""
        began_s = self._clock.monotonic_s()
        changed = await self._submit(entries, key, began_s + self._wait_s)
        VOTE_SECONDS.observe(self._clock.monotonic_s() - began_s)
        return changed

    async def _submit(
        self, entries: Sequence[PackedEntry], key: CountKey | None, deadline_s: float
    ) -> list[bool]:
        if len(self._clients) == 1 and key is None:
            return _raise_or_return(await self._ask(0, _Entries(entries), None, deadline_s))
        places: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(entry.shard % len(self._clients), []).append(place)
        asking = [
            self._ask(counter, _Entries([entries[place] for place in mine]), key, deadline_s)
            for counter, mine in places.items()
        ]
        results = await asyncio.gather(*asking)
        if any(isinstance(result, Unavailable) for result in results):
            # Others have counted theirs, unless all are sure that they have not.
            are_sure = all(type(result) is Unavailable for result in results)
            raise (Unavailable if are_sure else OutcomeUnknown)(LATE, retry_after_s=1)
        changed = [False] * len(entries)
        for mine, result in zip(places.values(), results, strict=True):
            for place, each in zip(mine, _raise_or_return(result), strict=True):
                changed[place] = each
        return changed

    async def count(self, counter: int, take: Callable[[], Sequence[Group]]) -> list[bytes | None]:
        """Count the groups with the next batch, and await their outcomes."""
        began_s = self._clock.monotonic_s()
        reply = await self._clients[counter].ask(_Groups(take), 0, began_s + self._wait_s)
        outcomes: list[bytes | None] = _raise_or_return(reply)
        VOTE_SECONDS.observe(self._clock.monotonic_s() - began_s)
        return outcomes

    def _ask(
        self, counter: int, entries: _Entries, key: CountKey | None, deadline_s: float
    ) -> Awaitable[list[bool] | BrokerError]:
        """Ask a counter for its part of a request; with a key, by a batch of its own."""
        client = self._clients[counter]
        if key is None:
            return client.ask(entries, entries.size, deadline_s)
        packing = _Packing()
        entries.pack(packing)
        return client.ask_apart(entries, packing.build(*key), deadline_s)

    async def close(self) -> None:
        """End the clients; what waits is answered `Unavailable`, what is on its way `OutcomeUnknown`."""
        for client in self._clients:
            await client.close()
        for link in self._links:
            link.close()

    def figures(self) -> Iterator[Sample]:
        """What waits for its way to the counters."""
        yield Sample(catalogue.QUEUE.name, ("counters",), sum(client.queue.size for client in self._clients))


def _open(link: Link, clock: Clock, sender: str) -> BatchingClient[_Question, _Reply]:
    packing = _Numbered(sender)
    client = BatchingClient("counter client", link, clock, _LIMITS, packing, LATE)
    packing.has_more = lambda: len(client.queue) > 0
    return client


def _raise_or_return(result: _Replied | BrokerError) -> _Replied:
    if isinstance(result, BrokerError):
        raise result
    return result
