"""Programs, contexts and polls as answers need them, remembered in the process.

A vote that comes while thousands do costs no query: its program and its context are known for a second, which
is how late a change of access, of options or of closing counts, and its poll, which never changes, for long.

Anybody can make polls by naming measures. So that nobody uses up those that producers ask for, a tenth of a
program's polls is kept for the measures that its events declare.
"""

from collections.abc import Collection, Iterable, Mapping

import orjson

from broker.auth.single_flight import SingleFlight
from broker.clock import Clock
from broker.domain.answers import Declaration, parse_declaration
from broker.operations.recent import Recent
from broker.settings import Settings
from broker.storage.polls import PollProgram, PollRow, Polls

_FRESH_S = 1.0
_POLL_S = 600.0
_PROGRAMS = 10_000  # remembered at a time
_CONTEXTS = 50_000
_POLLS = 100_000
_KEPT = 10  # one of so many polls is for declared measures only

Measure = tuple[str, str]
"""The name of a measure, and its context."""


class KnownPolls:
    """See the module's docstring. Every method raises `Unavailable` while what it needs cannot be read."""

    def __init__(self, polls: Polls, clock: Clock, settings: Settings) -> None:
        self._polls = polls
        self._clock = clock
        self._shards = settings.counters
        self._most = settings.program_polls
        self._programs: Recent[tuple[str, str], PollProgram | None] = Recent(clock, _FRESH_S, _PROGRAMS)
        # A context of no event is remembered as (None,).
        self._contexts: Recent[tuple[int, str], tuple[Declaration | None]] = Recent(
            clock, _FRESH_S, _CONTEXTS
        )
        self._rows: Recent[tuple[int, Measure], PollRow] = Recent(clock, _POLL_S, _POLLS)
        self._readings: SingleFlight[tuple[int, frozenset[str]], Mapping[str, bytes]] = SingleFlight()
        self._makings: SingleFlight[tuple[int, frozenset[Measure], int], Mapping[Measure, PollRow]] = (
            SingleFlight()
        )

    async def program(self, account: str, program_id: str) -> PollProgram | None:
        """The program as of at most a second ago; None when there is none."""
        return await self._programs.get(
            (account, program_id), lambda: self._polls.find_program(account, program_id)
        )

    async def contexts(self, program_uid: int, ids: Iterable[str]) -> dict[str, Declaration]:
        """What the events of these ids declare, as of at most a second ago; ids of no event are left out."""
        known = {id_: self._contexts.peek((program_uid, id_)) for id_ in ids}
        missing = frozenset(id_ for id_, context in known.items() if context is None)
        if missing:
            until_s = self._clock.monotonic_s() + _FRESH_S
            events = await self._readings.run(
                (program_uid, missing), lambda: self._polls.find_contexts(program_uid, sorted(missing))
            )
            for id_ in missing:
                metadata = events.get(id_)
                declared = None if metadata is None else parse_declaration(orjson.loads(metadata))
                known[id_] = (declared,)
                self._contexts.put((program_uid, id_), (declared,), until_s)
        return {id_: context[0] for id_, context in known.items() if context and context[0] is not None}

    async def rows(
        self, program_uid: int, wanted: Collection[Measure], declared: Mapping[str, Declaration]
    ) -> dict[Measure, PollRow]:
        """The polls of these measures, made where there are none; what the program may not have is left out.

        Args:
            declared: what the contexts declare; a measure that its context names is a declared one.
        """
        known = {measure: self._rows.peek((program_uid, measure)) for measure in wanted}
        missing = {measure for measure, row in known.items() if row is None}
        named = frozenset(measure for measure in missing if _is_declared(measure, declared))
        for some, most in (
            (named, self._most),
            (frozenset(missing) - named, self._most - self._most // _KEPT),
        ):
            if some:
                known.update(await self._make(program_uid, some, most))
        return {measure: row for measure, row in known.items() if row is not None}

    def forget(self, account: str, program_id: str, program_uid: int, measures: Iterable[Measure]) -> None:
        """Look again: something of it is gone."""
        self._programs.forget((account, program_id))
        for measure in measures:
            self._rows.forget((program_uid, measure))

    async def look_again(
        self, account: str, program_id: str, ids: Collection[str]
    ) -> tuple[PollProgram | None, dict[str, Declaration]]:
        """What `program` and `contexts` answer, read now, however fresh it is."""
        self._programs.forget((account, program_id))
        program = await self.program(account, program_id)
        if program is None:
            return None, {}
        for id_ in ids:
            self._contexts.forget((program.uid, id_))
        return program, await self.contexts(program.uid, ids)

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._programs.close()
        await self._readings.close()
        await self._makings.close()

    async def _make(self, program_uid: int, some: frozenset[Measure], most: int) -> Mapping[Measure, PollRow]:
        made = await self._makings.run(
            (program_uid, some, most),
            lambda: self._polls.ensure(program_uid, sorted(some), self._shards, most),
        )
        for measure, row in made.items():
            self._rows.put((program_uid, measure), row)
        return made


def _is_declared(measure: Measure, declared: Mapping[str, Declaration]) -> bool:
    name, context = measure
    return context in declared and declared[context].measure_name == name
