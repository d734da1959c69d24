"""Group commit: what many callers want written for one slot goes into few transactions, one after another.

While a group commits, what arrives waits and goes into the next one. Nothing is delayed on purpose: what
finds nothing under way is committed alone. Groups are prefixes of the queue, so the order of acceptance is
the order of effect.

A commit that fails in the middle of things may have been done. Then the slot's generation is counted up
(`broker.storage.fence`), which ends the doubt, memory is brought up to what the database says, and the
group is written again; whoever plans it knows that it is not the first time, and looks for what is there
already.

Bounds: the queue (items and bytes; over them `Unavailable` at once), the group, and the time that an item
waits (its caller says how long; then `Unavailable`, or `OutcomeUnknown` while a try of it is in doubt).

What is written, and what memory has to do with it, is a `GroupWork`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.batch_queue import Backlog, BatchLimits
from broker.concurrency.tasks import is_set_within
from broker.errors import BrokerError, InternalError, OutcomeUnknown, Unavailable
from broker.metrics import catalogue
from broker.metrics.counts import COMMIT_SECONDS, COMMITTED, DOUBTS, WRITE_SECONDS, Sample
from broker.storage.fence import Fenced, Term

_RETRY = Backoff(0.05, 1.0, jitter=0)  # while the database is unavailable

_log = logging.getLogger(__name__)


class Again(Exception):
    """Nothing was written. The group is retried at once by the caller."""

    most: ClassVar[int | None] = None
    """How often in the life of one group; None where each has to tell something new."""


@dataclass(slots=True, eq=False)
class Pending:
    """What waits to be written, until it is answered.

    Attributes:
        deadline_s: in monotonic seconds.
        arrived_s: when it was queued, in the same.
        is_doubtful: a transaction with it may have been committed.
    """

    size_bytes: int
    deadline_s: float
    arrived_s: float = field(default=0.0, init=False)
    is_doubtful: bool = field(default=False, init=False)


class Refusals(NamedTuple):
    """What those are told whose item was not written: the queue closed or full, the time over, or a fault."""

    closed: str
    full: str
    late: str
    failed: str


P = TypeVar("P", bound=Pending)
PContra = TypeVar("PContra", bound=Pending, contravariant=True)
R = TypeVar("R")


class GroupWork(Protocol[PContra, R]):
    """What a group commit writes. Called by one task, never twice at a time."""

    @property
    def is_unsettled(self) -> bool:
        """Whether `settle` has something to do though nothing waits."""

    def admission(self) -> Callable[[PContra], bool]:
        """Whether an item may join a group; a new function for each group, asked of each of its items."""

    async def settle(self, group: Sequence[PContra], /) -> None:
        """Bring memory up to the database, as far as the group needs it; nothing is in doubt there.

        Raises Fenced, Unavailable.
        """

    async def commit(
        self, generation: int, group: Sequence[PContra], earlier: Sequence[Exception]
    ) -> Sequence[R]:
        """Write a group whole or not at all, and return the reply to each item.

        Args:
            earlier: why earlier tries of it have failed. After one that was in doubt something of the group
                may be there.

        Raises:
            Fenced: another holder has the slot.
            Again: nothing was written.
            Unavailable: it is to be repeated after a while.
            OutcomeUnknown: the same, and it may be done.
        """

    def forget(self, group: Sequence[PContra]) -> None:
        """A try has failed: memory may be before or behind the database in all that the group touches."""

    def answer(self, pending: PContra, reply: R | BrokerError) -> None:
        """Give the reply to whoever waits. May come twice; the second one is nothing."""


class GroupCommit(Generic[P, R]):
    """See the module's docstring. One task runs `run`; all methods belong to its event loop."""

    def __init__(
        self,
        work: GroupWork[P, R],
        term: Term,
        clock: Clock,
        limits: BatchLimits,
        refusals: Refusals,
        *,
        name: str,
        slot: str,
        order: asyncio.Lock | None = None,
    ) -> None:
        """Make one with nothing to write.

        Args:
            limits: in bytes.
            name: of the queue, in the metrics.
            order: held while memory and the database change; whoever else holds it sees them agree.
        """
        self._work = work
        self._term = term
        self._clock = clock
        self._refusals = refusals
        self._name = name
        self._slot = slot
        DOUBTS.add(slot, amount=0)  # so that the first one is an increase
        self._order = order or asyncio.Lock()
        self._backlog: Backlog[P] = Backlog(limits)
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_due = False  # to settle what is in doubt, though nothing is queued
        self._group: Sequence[P] = ()
        self._writing: Sequence[P] = ()  # the group whose transaction is under way
        self._closed = False

    def add(self, pending: P) -> None:
        """Queue an item, which is answered in the end; at once where the queue is full or closed."""
        if self._closed:
            self._give_up(pending, self._refusals.closed)
        elif self._backlog.add(pending, pending.size_bytes):
            pending.arrived_s = self._clock.monotonic_s()
            self._arrived.set()
        else:
            self._give_up(pending, self._refusals.full)

    def wake(self) -> None:
        """Settle soon, though nothing may be queued."""
        self._is_due = True
        self._arrived.set()

    async def settle(self) -> None:
        """End all doubt, and bring memory up to what the database says. Raises Fenced, Unavailable."""
        async with self._order:
            await self._settle(())

    def figures(self) -> Iterator[Sample]:
        """What waits, and under which generation it is written."""
        yield Sample(catalogue.QUEUE.name, (self._name,), len(self._backlog))
        yield Sample(catalogue.QUEUE_BYTES.name, (self._name,), self._backlog.size)
        yield Sample(catalogue.GENERATION.name, (self._slot,), self._term.generation)

    async def drain(self) -> None:
        """Take no more; return when everything that waits is answered. Safe to cancel."""
        self._closed = True
        while self._backlog or self._group:
            self._idle.clear()
            await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled.

        Raises:
            Fenced: another holder has the slot. Everything that waits is answered `Unavailable`, or
                `OutcomeUnknown`.
        """
        try:
            while True:
                await self._wait()
                self._group = self._backlog.take(self._work.admission())
                if self._group:
                    await self._commit(self._group, [])
                    self._group = ()
                else:
                    await self._settle_idle()
        finally:
            self._closed = True
            for pending in self._writing:
                pending.is_doubtful = True
            for pending in (*self._group, *self._backlog.clear()):
                self._give_up(pending, self._refusals.closed)
            self._group = ()
            self._idle.set()

    async def _wait(self) -> None:
        """Until something is queued; with doubts left, not for long."""
        while not self._backlog:
            self._arrived.clear()
            self._idle.set()
            if self._is_due:
                self._is_due = False
                return
            if not (self._term.is_doubtful or self._work.is_unsettled):
                await self._arrived.wait()
                continue
            if not await is_set_within(self._arrived, _RETRY.cap_s):
                return

    async def _commit(self, group: Sequence[P], earlier: Sequence[Exception]) -> None:
        """Write a group, however often it takes, and answer it. Raises Fenced."""
        delays = Delays(_RETRY)
        while group := self._alive(group):
            try:
                await self._attempt(group, earlier)
                return
            except Fenced:
                raise
            except Again as error:
                earlier = [*earlier, error]
                if error.most is not None and sum(type(each) is type(error) for each in earlier) > error.most:
                    _log.error("group_repeats_without_end", extra={"slot": self._slot, "cause": str(error)})
                    for pending in group:
                        self._give_up(pending, self._refusals.late)
                    return
            except Unavailable as error:
                earlier = [*earlier, error]
                extra = {"slot": self._slot, "items": len(group), "cause": error.log_text}
                _log.warning("commit_in_doubt", extra=extra)
                await delays.wait()
                self._expire_queue()
            except Exception as error:
                if len(group) > 1:
                    # one of them cannot be written; alone, it fails nobody else
                    for pending in group:
                        await self._commit([pending], [*earlier, error])
                    return
                _log.exception("write_failed", extra={"slot": self._slot})
                self._work.answer(group[0], InternalError(self._refusals.failed))
                return

    async def _attempt(self, group: Sequence[P], earlier: Sequence[Exception]) -> None:
        async with self._order:
            await self._settle(group)
            self._writing = group
            began_s = self._clock.monotonic_s()
            try:
                replies = await self._work.commit(self._term.generation, group, earlier)
            except Exception as error:
                if isinstance(error, Unavailable):
                    self._term.doubt()
                    DOUBTS.add(self._slot)
                if isinstance(error, OutcomeUnknown):
                    for pending in group:
                        pending.is_doubtful = True
                self._work.forget(group)
                self._writing = ()
                raise
            durable_s = self._clock.monotonic_s()
            COMMIT_SECONDS.observe(durable_s - began_s, self._slot)
            COMMITTED.add(self._slot, amount=len(group))
            for pending in group:
                WRITE_SECONDS.observe(durable_s - pending.arrived_s, self._slot)
        for pending, reply in zip(group, replies, strict=True):
            self._work.answer(pending, reply)
        self._writing = ()

    async def _settle(self, group: Sequence[P]) -> None:
        await self._term.settle()
        await self._work.settle(group)

    async def _settle_idle(self) -> None:
        try:
            await self.settle()
        except Unavailable as error:
            _log.info("still_in_doubt", extra={"slot": self._slot, "cause": error.log_text})

    def _alive(self, group: Sequence[P]) -> list[P]:
        """The group without those whose time is over; they are answered."""
        now_s = self._clock.monotonic_s()
        alive = []
        for pending in group:
            if pending.deadline_s > now_s:
                alive.append(pending)
            else:
                self._give_up(pending, self._refusals.late)
        return alive

    def _expire_queue(self) -> None:
        now_s = self._clock.monotonic_s()
        for pending in self._backlog.take_out(lambda pending: pending.deadline_s <= now_s):
            self._give_up(pending, self._refusals.late)

    def _give_up(self, pending: P, text: str) -> None:
        kind = OutcomeUnknown if pending.is_doubtful else Unavailable
        self._work.answer(pending, kind(text, retry_after_s=1))
