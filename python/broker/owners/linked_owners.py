"""`Owners` over links: through it the doors publish.

Each owner has a `BatchingClient`. A call without a reply is repeated with the same commands; the owner
recognises them by their ids and applies them once.

When the placement changes, what waits for an owner that has lost its program is handed on to the new one.
What is under way comes first: until it is answered, new commands queue up behind it at the old owner, and are
handed on together with it, so that the order of one program stays.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from broker.actors.batching_client import Asked, BatchingClient
from broker.actors.link import Link, LinkLost, SlotLinks
from broker.clock import Clock
from broker.concurrency.batch_queue import BatchLimits
from broker.concurrency.tasks import cancel_and_wait, run_once
from broker.domain.idempotency import KeptResult, Repeated
from broker.domain.placement import Placement
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
from broker.owners.known_placement import KnownPlacement
from broker.owners.moved import Moved
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
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        links: Sequence[Link] = (),
        *,
        placement: KnownPlacement | None = None,
    ) -> None:
        """Make a client.

        Args:
            links: the ways to the first owners, one a slot; those to others are Ray's.
            placement: by default that of the settings.
        """
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._links = SlotLinks(OWNER, OWNER_CALLS, links)
        self._clients: dict[int, BatchingClient[Command, CommandReply]] = {}
        self._placement = placement or KnownPlacement(settings.owners)
        self._placement.on_change(self._note_change)
        # By owner: the placements by which something may still be under way to it.
        self._behind: dict[int, list[Placement]] = {}
        self._nudges: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._late: set[tuple[str, str]] = set()  # channels with news since their nudge began

    async def submit(self, command: ProgramCommand[R]) -> R:
        """Send a command with the next call to its owner, and await its reply."""
        client = self._client(self._route(program_topic(command.account, command.program_id)))
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
        for client in self._clients.values():
            await client.close()
        await cancel_and_wait(*self._nudges.values())
        self._links.close()

    def figures(self) -> Iterator[Sample]:
        """What waits for its way to the owners."""
        waiting = sum(len(client.queue) for client in self._clients.values())
        yield Sample(catalogue.QUEUE.name, ("owners",), waiting)

    def _client(self, index: int) -> BatchingClient[Command, CommandReply]:
        client = self._clients.get(index)
        if client is None:
            client = self._clients[index] = BatchingClient(
                "owner client",
                self._links[index],
                self._clock,
                _LIMITS,
                _Commands(self._placement),
                _LATE,
                lambda batch: self._hand_on(index, batch),
            )
        return client

    def _route(self, topic: str) -> int:
        """The owner to which the next command of a program goes."""
        for index, placements in self._behind.items():
            if any(owner_of(topic, before.owners) == index for before in placements):
                return index
        return self._placement.owner_of(topic)

    def _note_change(self, before: Placement) -> None:
        for index, client in self._clients.items():
            if not client.queue.is_idle:
                self._behind.setdefault(index, []).append(before)

    def _hand_on(self, index: int, batch: "_Batch") -> "_Batch":
        """Give the commands of programs that have moved to their owners, with all that waits behind them.

        Nothing is under way to the owner now, so that it does not have to be waited for any more.
        """
        if self._behind.pop(index, None) is None:
            return batch
        staying: list[Asked[Command, CommandReply]] = []
        leaving: list[Asked[Command, CommandReply]] = []
        for asked in batch:
            (staying if self._owner(asked) == index else leaving).append(asked)
        leaving += self._client(index).queue.take_out(lambda asked: self._owner(asked) != index)
        for asked in leaving:
            topic = program_topic(asked.question.account, asked.question.program_id)
            self._client(self._route(topic)).ask_on(asked, size_bytes(asked.question))
        return staying

    def _owner(self, asked: Asked[Command, CommandReply]) -> int:
        return self._placement.owner_of(program_topic(asked.question.account, asked.question.program_id))

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
        link = self._links[self._placement.owner_of(channel_topic(*key))]
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

    def __init__(self, placement: KnownPlacement) -> None:
        self._placement = placement

    def pack(self, _batch: _Batch, /) -> Callable[[_Batch], object]:
        """Each try sends the commands that still wait; the batch as a whole has no number."""
        return lambda batch: [asked.question for asked in batch]

    def settle(self, batch: _Batch, replies: list[CommandReply], /) -> _Batch:
        """Hand out the replies; returns what another owner has, and the end, which this one could not take.

        A command that failed before one that succeeded is not sent again: it would come out of order.
        """
        moved = next((reply for reply in replies if isinstance(reply, Moved)), None)
        if moved is not None:
            self._placement.learn(moved)
        taken = len(batch)
        while taken and isinstance(replies[taken - 1], Unavailable):
            taken -= 1
        again = []
        for number, (asked, reply) in enumerate(zip(batch, replies, strict=True)):
            if number >= taken or isinstance(reply, Moved):  # of a program, all that follows has moved too
                again.append(asked)
            if not isinstance(reply, Unavailable):
                asked.answer(reply)
                continue
            asked.is_doubtful |= isinstance(reply, OutcomeUnknown)
            if number < taken and not isinstance(reply, Moved):
                kind = OutcomeUnknown if asked.is_doubtful else Unavailable
                asked.answer(kind(_LATE, retry_after_s=1))
        return again
