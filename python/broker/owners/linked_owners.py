"""`Owners` over links: through it the doors publish.

Each owner has a `BatchingClient`. A call without a reply is repeated with the same commands; the owner
recognises them by their ids and applies them once.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from broker.actors.batching_client import Asked, BatchingClient
from broker.actors.link import Link, LinkLost, SlotLink
from broker.clock import Clock
from broker.concurrency.batch_queue import BatchLimits
from broker.concurrency.tasks import run_once
from broker.domain.idempotency import KeptResult, Repeated
from broker.errors import BrokerError, OutcomeUnknown, Unavailable
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
from broker.settings import Settings

_LIMITS = BatchLimits(batch_size=4 << 20, queue_size=64 << 20, batch_items=500, queue_items=20_000)  # bytes
_LATE = "the change could not be stored in time; try again"
_NUDGE_S = 1.0
_NUDGE_PAUSE_S = 0.02  # between two of one channel, which looks for its news in the database
_NUDGES = 1_000  # under way at a time; who is not nudged looks by itself within a second


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
        self._clients: list[BatchingClient[Command, CommandReply]] = [
            BatchingClient("owner client", link, clock, _LIMITS, _Commands(), _LATE) for link in self._links
        ]
        self._nudges: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._late: set[tuple[str, str]] = set()  # channels with news since their nudge began

    async def submit(self, command: ProgramCommand[R]) -> R:
        """Send a command with the next call to its owner, and await its reply."""
        topic = program_topic(command.account, command.program_id)
        client = self._clients[owner_of(topic, self._settings.owners)]
        asked = cast("Command", command)
        deadline_s = self._clock.monotonic_s() + self._settings.publish_timeout_s
        reply = await client.ask(asked, size_bytes(asked), deadline_s)
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
        """End the clients; what waits is answered `Unavailable`, what is on its way `OutcomeUnknown`."""
        for client in self._clients:
            await client.close()
        nudges = list(self._nudges.values())
        for nudge in nudges:
            nudge.cancel()
        if nudges:
            await asyncio.wait(nudges)
        for link in self._links:
            link.close()

    def figures(self) -> Iterator[Sample]:
        """What waits for its way to the owners."""
        yield Sample(catalogue.QUEUE.name, ("owners",), sum(len(client.queue) for client in self._clients))

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


_Batch = Sequence[Asked[Command, CommandReply]]


class _Commands:
    """A batch is the commands of it that still wait, in their order."""

    def pack(self, _batch: _Batch, /) -> Callable[[_Batch], object]:
        """Each try sends the commands that still wait; the batch as a whole has no number."""
        return lambda batch: [asked.question for asked in batch]

    def settle(self, batch: _Batch, replies: list[CommandReply], /) -> _Batch:
        """Hand out the replies; returns the end of the batch, which the owner could not take.

        A command that failed before one that succeeded is not sent again: it would come out of order.
        """
        taken = len(batch)
        while taken and isinstance(replies[taken - 1], Unavailable):
            taken -= 1
        for number, (asked, reply) in enumerate(zip(batch, replies, strict=True)):
            if not isinstance(reply, Unavailable):
                asked.answer(reply)
                continue
            asked.is_doubtful |= isinstance(reply, OutcomeUnknown)
            if number < taken:
                kind = OutcomeUnknown if asked.is_doubtful else Unavailable
                asked.answer(kind(_LATE, retry_after_s=1))
        return batch[taken:]
