"""The channel `responses:<program>`: pushes changed live results, at most once per second.

Nothing is written for it. A look reads the counts of the program's polls and compares them with what was told
last, so a look that is late or lost costs nothing but time. Who was behind, or comes back after an owner was
exchanged, is sent what the results are now. Following is for those who may read the program.
"""

from collections.abc import Iterable, Sequence

import orjson

from broker.clock import Clock
from broker.domain.programs import Access, Program
from broker.owners.encoding import attributes_entry, gone_entry
from broker.owners.log import LogLimits, Step
from broker.owners.protocol import RESPONSES_CHANNEL, Attributes, Entry, channel_topic
from broker.owners.tail import LOOK_S, Channel
from broker.storage.polls import PollCount, Polls
from broker.storage.programs import Programs
from broker.voting.rules import NOTHING_DECLARED, count_options, live_results, parse_declaration

_TOLD_AT_ONCE = 1_000  # live results, of about 200 bytes; what is more comes a second later

_Poll = tuple[str, str]


class ResponsesChannel(Channel):
    """The topic of one program's live results; its number is a time in milliseconds, and grows by telling."""

    def __init__(
        self,
        account: str,
        program: Program,
        told: dict[_Poll, bytes],
        programs: Programs,
        polls: Polls,
        clock: Clock,
        limits: LogLimits,
    ) -> None:
        self._channel = f"{RESPONSES_CHANNEL}{program.id}"
        # A later owner of the channel begins higher: it cannot have told more than once a millisecond.
        super().__init__(channel_topic(account, self._channel), clock.now_ms(), clock, limits, public=False)
        self._account = account
        self._program_id = program.id
        self._attributes = _attributes(program)
        self._is_there = True
        self._told = told
        self._told_s = clock.monotonic_s() - LOOK_S
        self._programs = programs
        self._polls = polls

    @classmethod
    async def load(
        cls,
        account: str,
        program_id: str,
        programs: Programs,
        polls: Polls,
        clock: Clock,
        limits: LogLimits,
    ) -> "ResponsesChannel | None":
        """The channel as things stand now; None when there is no such program. Raises Unavailable."""
        program = await programs.find(account, program_id)
        if program is None:
            return None
        told = _results(account, await polls.count(account, None, program_id=program_id))
        return cls(account, program, told, programs, polls, clock, limits)

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """The current results, which stand for all pushes that were missed."""
        del epoch, limit
        end, number = self.log.end, self._seq
        if seq == number:
            return [], end
        # A higher one is of an owner before, whose clock was ahead: it stands for what that one has told.
        now = _results(self._account, await self._counts())
        return [
            self._step(number, attributes_entry("", 0, self._attributes)),
            self._results_step(number, list(now.values())[:_TOLD_AT_ONCE]),
        ], end

    async def _look(self) -> float:
        """Tell what has changed, unless that was done less than a second ago."""
        left_s = self._told_s + LOOK_S - self._clock.monotonic_s()
        if left_s > 0:
            return left_s
        program = await self._programs.find(self._account, self._program_id)
        if program is None:
            self._end()
            return LOOK_S
        self._is_there = True
        self._change_attributes(_attributes(program))
        now = _results(self._account, await self._counts())
        for poll in self._told.keys() - now.keys():
            now[poll] = _emptied(self._told[poll])  # the database has lost it, and nobody has voted since
        changed = [poll for poll, result in now.items() if self._told.get(poll) != result][:_TOLD_AT_ONCE]
        if changed:
            self._told_s = self._clock.monotonic_s()
            self._told |= {poll: now[poll] for poll in changed}
            self._tell([self._results_step(self._seq + 1, [now[poll] for poll in changed])])
        return LOOK_S

    async def _counts(self) -> list[PollCount]:
        return await self._polls.count(self._account, None, program_id=self._program_id)

    def _results_step(self, number: int, results: Sequence[bytes]) -> Step:
        fields = {
            "channel": self._channel,
            "programId": self._program_id,
            "results": [orjson.Fragment(result) for result in results],
        }
        return self._notice(number, "results", orjson.dumps(fields))

    def _change_attributes(self, now: Attributes) -> None:
        if now != self._attributes:
            self._attributes = now
            self._tell([self._step(self._seq + 1, attributes_entry("", 0, now))])

    def _end(self) -> None:
        """The program is gone; one of the same id that is made later is told to new followers."""
        if self._is_there:
            self._is_there = False
            self._told = {}
            self._tell([self._step(self._seq + 1, gone_entry(self._program_id, "", 0))])

    def _step(self, number: int, entry: Entry) -> Step:
        return Step(entry, "", number, self._clock.monotonic_s())


def _results(account: str, counts: Iterable[PollCount]) -> dict[_Poll, bytes]:
    """The JSON of each poll's live results."""
    return {(count.measure, count.context): _result(account, count) for count in counts}


def _result(account: str, count: PollCount) -> bytes:
    declared = NOTHING_DECLARED if count.event is None else parse_declaration(orjson.loads(count.event))
    return orjson.dumps(
        live_results(
            account,
            count.measure,
            count_options([count.totals], len(declared.options or ())),
            project_id=count.project_id,
            context_id=count.context,
            is_declared=declared.declares(count.measure),
        )
    )


def _emptied(result: bytes) -> bytes:
    """The JSON of the live results of a poll that is there no more."""
    fields = orjson.loads(result)
    return orjson.dumps(fields | {"results": dict.fromkeys(fields["results"], 0), "total": 0})


def _attributes(program: Program) -> Attributes:
    return Attributes(public=program.access is Access.PUBLIC, project_id=program.project_id)
