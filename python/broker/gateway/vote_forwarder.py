"""Carries votes that native code has taken to the counters, and their outcomes back, a batch at a time.

Each counter has one batch in flight. Votes that arrive meanwhile gather in native code until
the next batch is made, and wait in no other queue; so batches grow with the load, and nothing runs in
Python for a single vote. Every batch that is taken is settled, whatever happens to it: native code hands
out no other one before.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from broker._native import Server
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.errors import BrokerError, InternalError, NotFound, OutcomeUnknown, Unavailable
from broker.gateway.open_polls import OpenPolls, Place
from broker.gateway.rendering import error_json
from broker.operations.services import Services
from broker.voting.counting.batches import SEALED, Group
from broker.voting.counting.errors import VotingClosed

_log = logging.getLogger(__name__)

_STOP_S = 1.0  # for the votes that are under way at a stop; a commit takes milliseconds


class _Taken(NamedTuple):
    """One group of votes, and the program of its poll; None when the gateway no longer knows it."""

    group: Group
    is_answers: bool
    place: Place | None


class _Progress:
    """How far the batches of one counter are.

    Attributes:
        arrived: there may be something to take.
        settled: how many batches have been settled since the start.
        has_settled: set, and replaced, with each.
    """

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.settled = 0
        self.has_settled = asyncio.Event()


class VoteForwarder:
    """Forwards votes to all counters. `start` and `stop` run on one event loop."""

    def __init__(self, queue: Server, polls: OpenPolls, services: Services) -> None:
        self._queue = queue
        self._polls = polls
        self._audience = services.audience
        self._recorder = services.recorder
        self._progress = [_Progress() for _ in range(services.settings.counters)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to forward."""
        self._tasks = [
            keep_running("votes", partial(self._run, number)) for number in range(len(self._progress))
        ]

    async def stop(self) -> None:
        """Answer the votes that have arrived, then end. No poll may be open any more. Idempotent.

        Votes that are sent but not counted within a second are answered 503 `outcome_unknown`; votes that
        are not sent, 503 `unavailable`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S if self._tasks else 0):
                await self.all_before()
        await cancel_and_wait(*self._tasks)
        stopping = Unavailable("this gateway is shutting down", retry_after_s=1)
        for number in range(len(self._progress) if self._tasks else 0):
            while groups := self._queue.take_votes(number):
                self._settle(number, [(False, error_json(stopping))] * len(groups))
        self._tasks = []

    def arrived(self, counter: int) -> None:
        """Votes wait for a counter that had none."""
        self._progress[counter].arrived.set()

    async def all_before(self) -> None:
        """Return when all votes that native code has taken so far are settled."""
        until = [
            progress.settled + self._queue.unsettled_votes(counter)
            for counter, progress in enumerate(self._progress)
        ]
        for progress, settled in zip(self._progress, until, strict=True):
            while progress.settled < settled:
                await progress.has_settled.wait()

    async def _run(self, counter: int) -> None:
        while True:
            await self._progress[counter].arrived.wait()
            if not await self._deliver(counter):
                self._progress[counter].arrived.clear()

    async def _deliver(self, counter: int) -> bool:
        """Have what is there counted, and settle it; False when there was nothing."""
        taken: list[_Taken] = []
        if not self._queue.unsettled_votes(counter) and not self._take(counter, taken):
            return False  # and native code says when there is something again
        outcomes: Sequence[bytes | BrokerError | None] = ()
        replies: list[tuple[bool, bytes]] | None = None
        try:
            outcomes = await self._count(counter, taken)
            replies = [_reply(each, outcome) for each, outcome in zip(taken, outcomes, strict=True)]
        except asyncio.CancelledError:
            ended = OutcomeUnknown("this gateway is shutting down", retry_after_s=1)
            replies = [(False, error_json(ended))] * len(taken)
            raise
        finally:
            if taken:
                self._settle(counter, replies or [(False, error_json(_internal()))] * len(taken))
        await self._tell(zip(taken, outcomes, strict=True))
        return True

    def _take(self, counter: int, taken: list[_Taken]) -> list[Group]:
        """Take what native code has."""
        taken += [
            _Taken(Group(poll, shard, change, records), is_answers, self._polls.use(poll))
            for poll, shard, change, is_answers, records in self._queue.take_votes(counter)
        ]
        return [each.group for each in taken]

    async def _count(self, counter: int, taken: list[_Taken]) -> Sequence[bytes | BrokerError | None]:
        """The outcome of each group of `taken`, which is filled as late as possible if it is empty."""
        take = partial(self._take, counter, taken) if not taken else lambda: [each.group for each in taken]
        try:
            return await self._audience.counters.count(counter, take)
        except BrokerError as error:
            if not taken:
                self._take(counter, taken)  # refused before a batch was made of them
            _log.warning("votes_not_counted", extra={"groups": len(taken), "cause": error.log_text})
            return [error] * len(taken)

    def _settle(self, number: int, replies: list[tuple[bool, bytes]]) -> None:
        try:
            self._queue.settle_votes(number, replies)
        except ValueError:
            # The counter sent outcomes that do not fit. Until the batch is settled, nothing more goes there.
            _log.exception("votes_not_settled")
            self._queue.settle_votes(number, [(False, error_json(_internal()))] * len(replies))
        progress = self._progress[number]
        progress.settled += 1
        progress.has_settled.set()
        progress.has_settled = asyncio.Event()

    async def _tell(self, counted: Iterable[tuple[_Taken, bytes | BrokerError | None]]) -> None:
        """Report changed counts to statistics and the channel, and forget polls of deleted programs."""
        for (group, is_answers, place), outcome in counted:
            if outcome is None:
                self._polls.gone(group.poll)
            elif isinstance(outcome, bytes) and place is not None and (changes := outcome.count(1)):
                name = place.name
                if self._recorder is not None:
                    self._recorder.count_responses(
                        name.account,
                        name.program_id,
                        place.project_id,
                        responses=changes if is_answers else 0,
                        impressions=0 if is_answers else changes,
                    )
                await self._audience.news.tell(name.account, name.program_id)


def _reply(taken: _Taken, outcome: bytes | BrokerError | None) -> tuple[bool, bytes]:
    if outcome == SEALED:
        outcome = VotingClosed()
    if isinstance(outcome, bytes):
        return True, outcome
    if outcome is None:
        program = f" {taken.place.name.program_id}" if taken.place is not None else ""
        outcome = NotFound(f"there is no program{program}")
    return False, error_json(outcome)


def _internal() -> InternalError:
    return InternalError("the votes could not be counted")
