"""Votes that native code has taken, on their way to the counters and back; nothing is done for a single one.

Each counter has a lane. While a batch is away to the counter, what comes gathers natively and goes as the
next one; so the worse the storm, the larger the batches.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from broker.answers.batches import Group
from broker.errors import BrokerError, InternalError, NotFound
from broker.gateway.open_polls import OpenPolls, Place
from broker.gateway.rendering import error_json
from broker.operations.services import Services

_log = logging.getLogger(__name__)


class BallotBox(Protocol):
    """The part of the native server that votes are taken from; see `broker._native.Server`."""

    def take_ballots(self, lane: int) -> list[tuple[int, int, bool, bool, bytes]]:
        """Groups of records, none while those taken before are not settled."""

    def settle_ballots(self, lane: int, fates: list[tuple[bool, bytes]]) -> None:
        """Answer the voters of the groups taken."""


class _Taken(NamedTuple):
    """One group of votes, and where its poll belongs; None when that is not known any more."""

    group: Group
    is_answers: bool
    place: Place | None


class BallotPumps:
    """The pumps of all lanes. `start` and `stop` on one event loop; what waits at `stop` is not answered."""

    def __init__(self, box: BallotBox, polls: OpenPolls, services: Services) -> None:
        self._box = box
        self._polls = polls
        self._audience = services.audience
        self._recorder = services.recorder
        self._arrived = [asyncio.Event() for _ in range(services.settings.counters)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to pump."""
        self._tasks = [
            asyncio.create_task(self._run(lane), name=f"ballots {lane}") for lane in range(len(self._arrived))
        ]

    async def stop(self) -> None:
        """End the pumps; what they have sent is counted all the same. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def arrived(self, lane: int) -> None:
        """There is something in a lane."""
        self._arrived[lane].set()

    async def _run(self, lane: int) -> None:
        while True:
            await self._arrived[lane].wait()
            taken = [
                _Taken(Group(poll, shard, change, records), is_answers, self._polls.use(poll))
                for poll, shard, change, is_answers, records in self._box.take_ballots(lane)
            ]
            if not taken:
                self._arrived[lane].clear()
                continue
            outcomes = await self._count([each.group for each in taken])
            self._settle(lane, taken, outcomes)
            await self._tell(zip(taken, outcomes, strict=True))

    async def _count(self, groups: Sequence[Group]) -> Sequence[bytes | BrokerError | None]:
        """What has become of each group."""
        try:
            return await self._audience.counters.count(groups)
        except BrokerError as error:
            _log.warning("ballots_not_counted", extra={"groups": len(groups), "cause": error.log_text})
            return [error] * len(groups)
        except Exception:
            _log.exception("ballots_not_counted")
            return [_internal()] * len(groups)

    def _settle(
        self, lane: int, taken: Sequence[_Taken], outcomes: Sequence[bytes | BrokerError | None]
    ) -> None:
        fates = [_fate(each, outcome) for each, outcome in zip(taken, outcomes, strict=True)]
        try:
            self._box.settle_ballots(lane, fates)
        except ValueError:
            # A counter has not answered what it was asked; without an end no other batch would go.
            _log.exception("ballots_not_settled")
            self._box.settle_ballots(lane, [(False, error_json(_internal()))] * len(taken))

    async def _tell(self, counted: Iterable[tuple[_Taken, bytes | BrokerError | None]]) -> None:
        """Tell the statistics and the channel what has changed counts, and forget what is gone."""
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


def _fate(taken: _Taken, outcome: bytes | BrokerError | None) -> tuple[bool, bytes]:
    if isinstance(outcome, bytes):
        return True, outcome
    if outcome is None:
        program = f" {taken.place.name.program_id}" if taken.place is not None else ""
        outcome = NotFound(f"there is no program{program}")
    return False, error_json(outcome)


def _internal() -> InternalError:
    return InternalError("the answers could not be counted")
