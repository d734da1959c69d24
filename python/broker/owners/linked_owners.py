"""The port `Owners` over links: what the doors publish with.

Calls are shared: while one is in flight to an owner, what arrives for it waits and goes with the next one.
One call at a time and whole batches also keep the order. A call that brings no reply is made again with the
same commands until their time is over; the owner knows them by their ids and does nothing twice. A command of
which some call brought no reply may have been done: when its time is over, that is what its caller is told.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from broker.actors.link import Link, LinkLost, SlotLink
from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.batch_queue import BatchLimits, BatchQueue
from broker.concurrency.tasks import run_once
from broker.domain.idempotency import KeptResult, Repeated
from broker.errors import BrokerError, InternalError, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.owners.calls import OWNER_CALLS
from broker.owners.commands import (
    Command,
    CommandReply,
    DeleteProgram,
    Kept,
    ProgramCommand,
    UpdateProgram,
    size_bytes,
)
from broker.owners.placement import OWNER, owner_of
from broker.owners.protocol import (
    PROGRAMS_CHANNEL,
    RESPONSES_CHANNEL,
    STORAGE_CHANNEL,
    channel_topic,
    program_topic,
)
from broker.rpc.calls import CannotTravel
from broker.settings import Settings

_LIMITS = BatchLimits(batch_size=4 << 20, queue_size=64 << 20, batch_items=500, queue_items=20_000)  # bytes
_RETRY = Backoff(0.02, 0.1, jitter=0)  # before a call is made again
_GRACE_S = 1.0  # for the way of a reply that was made just in time
_NUDGE_S = 1.0
_NUDGE_PAUSE_S = 0.02  # between two of one channel, which looks for its news in the database
_NUDGES = 1_000  # under way at a time; who is not nudged looks by itself within a second


@dataclass(slots=True, eq=False)
class _Waiting:
    command: Command
    deadline_s: float
    is_doubtful: bool = False  # a call with it got lost
    reply: asyncio.Future[CommandReply] = field(default_factory=asyncio.Future)


R = TypeVar("R")


class LinkedOwners:
    """The `Owners` over links. Belongs to one event loop; `close` it there."""

    def __init__(
        self, settings: Settings, clock: Clock, ids: IdSource, links: Sequence[Link] | None = None
    ) -> None:
        """Make a client; `links` are the ways to the owners, one a slot, by default Ray's."""
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._links = links or [SlotLink(OWNER, index, OWNER_CALLS) for index in range(settings.owners)]
        self._lanes = [_Lane(link, clock) for link in self._links]
        self._nudges: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._late: set[tuple[str, str]] = set()  # channels with news since their nudge began

    async def submit(self, command: ProgramCommand[R]) -> R:
        """Send a command with the next call to its owner, and await its reply."""
        topic = program_topic(command.account, command.program_id)
        lane = self._lanes[owner_of(topic, self._settings.owners)]
        wait_s = self._settings.publish_timeout_s
        reply = await lane.add(cast("Command", command), self._clock.monotonic_s() + wait_s)
        if isinstance(reply, BrokerError):
            raise reply
        if isinstance(reply, Kept):
            raise Repeated(KeptResult(reply.status, reply.body))
        if isinstance(command, UpdateProgram | DeleteProgram):
            await self.programs_changed(command.account)
        return cast("R", reply)

    async def programs_changed(self, account: str) -> None:
        """Have the owner of the channel `programs` look for changes. Does not wait."""
        self._begin_nudge(account, PROGRAMS_CHANNEL)

    async def value_stored(self, account: str, project_id: str) -> None:
        """Have the owner of the project's storage channel look for new values. Does not wait."""
        self._begin_nudge(account, f"{STORAGE_CHANNEL}{project_id}")

    async def votes_counted(self, account: str, program_id: str) -> None:
        """Have the owner of the program's results channel look for new results. Does not wait."""
        self._begin_nudge(account, f"{RESPONSES_CHANNEL}{program_id}")

    async def close(self) -> None:
        """End the lanes; what waits is answered `Unavailable`, what is on its way `OutcomeUnknown`."""
        for lane in self._lanes:
            await lane.queue.close()
        nudges = list(self._nudges.values())
        for nudge in nudges:
            nudge.cancel()
        if nudges:
            await asyncio.wait(nudges)
        for link in self._links:
            link.close()

    def figures(self) -> Iterator[Sample]:
        """What waits for its way to the owners."""
        yield Sample(catalogue.QUEUE.name, ("owners",), sum(len(lane.queue) for lane in self._lanes))

    def _begin_nudge(self, account: str, channel: str) -> None:
        """Nudge a channel's owner; one nudge of a channel is under way at a time, and so many in all."""
        key = (account, channel)
        if key in self._nudges:
            self._late.add(key)
        elif len(self._nudges) < _NUDGES:
            task = run_once("nudge", self._nudge(key))
            self._nudges[key] = task
            task.add_done_callback(lambda _: self._nudges.pop(key, None))

    async def _nudge(self, key: tuple[str, str]) -> None:
        """Nudge, and go on for as long as there was more news meanwhile; the last news is not left out."""
        link = self._links[owner_of(channel_topic(*key), self._settings.owners)]
        self._late.add(key)
        while key in self._late:
            self._late.remove(key)
            try:
                await link.call("nudge", *key, timeout_s=_NUDGE_S)
            except LinkLost:
                self._late.discard(key)
                return  # the owner looks by itself every second
            await asyncio.sleep(_NUDGE_PAUSE_S)


class _Lane:
    """The way to one owner."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self.queue: BatchQueue[_Waiting] = BatchQueue(
            "owner lane", _LIMITS, self._deliver, _end, lambda waiting: not waiting.reply.cancelled()
        )

    def add(self, command: Command, deadline_s: float) -> asyncio.Future[CommandReply]:
        """Queue a command; the future holds its reply, an error as a value."""
        waiting = _Waiting(command, deadline_s)
        self.queue.add(waiting, size_bytes(command))
        return waiting.reply

    async def _deliver(self, batch: Sequence[_Waiting]) -> None:
        """Call the owner until every command of the batch is answered or its time is over."""
        delays = Delays(_RETRY)
        while batch := self._alive(batch):
            left_s = max(waiting.deadline_s for waiting in batch) - self._clock.monotonic_s()
            commands = [waiting.command for waiting in batch]
            try:
                replies = await self._link.call("submit", commands, left_s, timeout_s=left_s + _GRACE_S)
            except LinkLost as lost:
                replies = None
                for waiting in batch if lost.was_sent else ():
                    waiting.is_doubtful = True
            except CannotTravel as error:
                await self._deliver_apart(batch, error)
                return
            batch = _settle(batch, replies)
            if batch:
                await delays.wait()

    async def _deliver_apart(self, batch: Sequence[_Waiting], error: CannotTravel) -> None:
        """Find the command that cannot be sent, so that it fails alone. The doors let none through."""
        if len(batch) > 1:
            for waiting in batch:
                await self._deliver([waiting])
            return
        _answer(batch[0], InternalError("the change could not be sent", log_text=str(error)))

    def _alive(self, batch: Sequence[_Waiting]) -> list[_Waiting]:
        now_s = self._clock.monotonic_s()
        for waiting in batch:
            if waiting.deadline_s <= now_s:
                _give_up(waiting)
        return [waiting for waiting in batch if not waiting.reply.done()]


def _settle(
    batch: Sequence[_Waiting], replies: list[CommandReply] | BrokerError | None
) -> Sequence[_Waiting]:
    """Hand out the replies; returns the commands to send again.

    That is the end of the batch that the owner could not take. A command that failed before one that
    succeeded is not sent again: it would come out of order.
    """
    if not isinstance(replies, list):
        return batch
    taken = len(batch)
    while taken and isinstance(replies[taken - 1], Unavailable):
        taken -= 1
    for number, (waiting, reply) in enumerate(zip(batch, replies, strict=True)):
        if not isinstance(reply, Unavailable):
            _answer(waiting, reply)
            continue
        waiting.is_doubtful |= isinstance(reply, OutcomeUnknown)
        if number < taken:
            _give_up(waiting)
    return batch[taken:]


def _answer(waiting: _Waiting, reply: CommandReply) -> None:
    if not waiting.reply.done():
        waiting.reply.set_result(reply)


def _end(waiting: _Waiting, is_under_way: bool) -> None:
    waiting.is_doubtful |= is_under_way
    _give_up(waiting)


def _give_up(waiting: _Waiting) -> None:
    kind = OutcomeUnknown if waiting.is_doubtful else Unavailable
    _answer(waiting, kind("the change could not be stored in time; try again", retry_after_s=1))
