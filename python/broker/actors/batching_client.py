"""Questions to one slot, many in a call.

Calls are shared: while one is in flight to the slot, what arrives for it waits and goes with the next one.
One call at a time and whole batches also keep the order. A call that brings no reply is made again until
the time of those who wait for it is over; whoever is called must know a repeated one. A question of which
some call brought no reply may have had its effect: when its time is over, that is what its caller is told.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from broker.actors.link import Link, LinkLost
from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.batch_queue import BatchLimits, BatchQueue
from broker.errors import BrokerError, InternalError, OutcomeUnknown, Unavailable
from broker.rpc.calls import CannotTravel

_RETRY = Backoff(0.02, 0.1, jitter=0)  # before a call is made again
_GRACE_S = 1.0  # for the way of a reply that was made just in time

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Asked(Generic[Q, R]):
    """A question on its way.

    Attributes:
        deadline_s: in monotonic seconds.
        is_doubtful: a call with it got lost.
        reply: errors are values.
    """

    question: Q
    deadline_s: float
    is_doubtful: bool = False
    reply: "asyncio.Future[R | BrokerError]" = field(default_factory=asyncio.Future)

    def answer(self, reply: R | BrokerError) -> None:
        """Give the reply; a second one is nothing."""
        if not self.reply.done():
            self.reply.set_result(reply)


Batch = Sequence[Asked[Q, R]]


class Packing(Protocol[Q, R]):
    """How the questions to one slot are put into the argument of its `submit`, and replies read."""

    def pack(self, batch: Batch[Q, R], /) -> Callable[[Batch[Q, R]], object]:
        """Begin a batch; what it returns makes the argument for those of it that still wait, at each try."""

    def settle(self, batch: Batch[Q, R], reply: Any, /) -> Batch[Q, R]:
        """Answer what the reply answers; returns what is to be sent again. The reply is no error."""


def _keep_all(batch: Batch[Q, R]) -> Batch[Q, R]:
    return batch


class BatchingClient(Generic[Q, R]):
    """Asks one slot. Belongs to one event loop; `close` it there."""

    def __init__(
        self,
        name: str,
        link: Link,
        clock: Clock,
        limits: BatchLimits,
        packing: Packing[Q, R],
        late: str,
        hand_on: Callable[[Batch[Q, R]], Batch[Q, R]] = _keep_all,
    ) -> None:
        """Make a client.

        Args:
            name: of the task.
            late: the message of a call that had no reply in time.
            hand_on: called before each try with what it would send, of which nothing is under way then;
                gives to other clients what is theirs, and returns the rest.
        """
        self._hand_on = hand_on
        self._link = link
        self._clock = clock
        self._packing = packing
        self._late = late
        self.queue: BatchQueue[Asked[Q, R]] = BatchQueue(
            name, limits, self._deliver, self._end, lambda asked: not asked.reply.cancelled()
        )

    def ask(self, question: Q, size: int, deadline_s: float) -> "asyncio.Future[R | BrokerError]":
        """Queue a question, which is answered in the end. Whoever cancels the future takes it out again."""
        asked: Asked[Q, R] = Asked(question, deadline_s)
        self.queue.add(asked, size)
        return asked.reply

    def ask_on(self, asked: Asked[Q, R], size: int) -> None:
        """Queue what another client was asked, and hands on."""
        self.queue.add(asked, size)

    async def ask_apart(self, question: Q, argument: object, deadline_s: float) -> R | BrokerError:
        """Ask at once, by a call of its own."""
        asked: Asked[Q, R] = Asked(question, deadline_s)
        await self._insist([asked], lambda _: argument)
        return await asked.reply

    async def close(self) -> None:
        """End the calls; what waits is answered `Unavailable`, what is on its way `OutcomeUnknown`."""
        await self.queue.close()

    async def _deliver(self, batch: Batch[Q, R]) -> None:
        try:
            await self._insist(batch, self._packing.pack(batch))
        except CannotTravel as error:
            # The doors let none through; the one that cannot be sent fails alone.
            if len(batch) > 1:
                for asked in batch:
                    await self._deliver([asked])
            else:
                batch[0].answer(InternalError("the change could not be sent", log_text=str(error)))

    async def _insist(self, batch: Batch[Q, R], argument: Callable[[Batch[Q, R]], object]) -> None:
        """Call the slot until every question is answered or its time is over. Raises CannotTravel."""
        delays = Delays(_RETRY)
        while batch := self._alive(self._hand_on(batch)):
            left_s = max(asked.deadline_s for asked in batch) - self._clock.monotonic_s()
            is_doubtful = False
            reply: Any = None
            try:
                reply = await self._link.call("submit", argument(batch), left_s, timeout_s=left_s + _GRACE_S)
            except LinkLost as lost:
                is_doubtful = lost.was_sent
            if reply is None or isinstance(reply, Unavailable):
                for asked in batch if is_doubtful or isinstance(reply, OutcomeUnknown) else ():
                    asked.is_doubtful = True
            elif isinstance(reply, BrokerError):
                for asked in batch:
                    asked.answer(reply)
                return
            else:
                batch = self._packing.settle(batch, reply)
            if batch := self._hand_on(batch):
                await delays.wait(left_s)

    def _alive(self, batch: Batch[Q, R]) -> Batch[Q, R]:
        now_s = self._clock.monotonic_s()
        for asked in batch:
            if asked.deadline_s <= now_s:
                self._give_up(asked)
        return [asked for asked in batch if not asked.reply.done()]

    def _end(self, asked: Asked[Q, R], is_under_way: bool) -> None:
        asked.is_doubtful |= is_under_way
        self._give_up(asked)

    def _give_up(self, asked: Asked[Q, R]) -> None:
        kind = OutcomeUnknown if asked.is_doubtful else Unavailable
        asked.answer(kind(self._late, retry_after_s=1))
