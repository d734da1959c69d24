"""A cache of programs, contexts and polls, for votes.

A vote that comes while thousands do costs no query: its program and its context are known for a second, which
is how late a change of access, of options or of closing counts, and its poll, which never changes, for long.

Anybody can make polls by naming measures. So that nobody uses up the room of another, the measure that an
event declares can always be answered, and every context takes so many other names. Contexts that are no
events, where a program allows them, share a room of their own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import orjson

from broker.clock import Clock
from broker.concurrency.loading_cache import LoadingCache
from broker.concurrency.single_flight import SingleFlight
from broker.settings import Settings
from broker.storage.polls import PollProgram, PollRow, Polls, Room
from broker.voting.rules import Declaration, parse_declaration

_FRESH_S = 1.0
_POLL_S = 600.0
_PROGRAMS = 10_000  # remembered at a time
_CONTEXTS = 50_000
_POLLS = 100_000
OTHER_NAMES = 20  # of measures of a context, besides the one that it declares

Measure = tuple[str, str]
"""The name of a measure, and its context."""
_Some = tuple[int, frozenset[Measure]]  # measures of a program


class KnownPolls:
    """A cache of polls. Every method raises `Unavailable` if it cannot read what it needs."""

    def __init__(self, polls: Polls, clock: Clock, settings: Settings) -> None:
        self._polls = polls
        self._clock = clock
        self._shards = settings.counters
        self._most_free = settings.program_polls
        self._programs: LoadingCache[tuple[str, str], PollProgram | None] = LoadingCache(
            clock, _FRESH_S, _PROGRAMS
        )
        # A context of no event is remembered as (None,).
        self._contexts: LoadingCache[tuple[int, str], tuple[Declaration | None]] = LoadingCache(
            clock, _FRESH_S, _CONTEXTS
        )
        self._rows: LoadingCache[tuple[int, Measure], PollRow] = LoadingCache(clock, _POLL_S, _POLLS)
        self._readings: SingleFlight[tuple[int, frozenset[str]], Mapping[str, bytes]] = SingleFlight()
        self._findings: SingleFlight[_Some, Mapping[Measure, PollRow]] = SingleFlight()
        self._makings: SingleFlight[_Some, Mapping[Measure, PollRow]] = SingleFlight()

    async def find_program(self, account: str, program_id: str) -> PollProgram | None:
        """The program as of at most a second ago; None when there is none."""
        return await self._programs.load(
            (account, program_id), lambda: self._polls.find_program(account, program_id)
        )

    async def contexts(self, program_uid: int, ids: Iterable[str]) -> dict[str, Declaration]:
        """What the events of these ids declare, as of at most a second ago; ids of no event are left out."""
        known = {id_: self._contexts.get((program_uid, id_)) for id_ in ids}
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
                self._contexts.put((program_uid, id_), (declared,), until_s=until_s)
        return {id_: context[0] for id_, context in known.items() if context and context[0] is not None}

    async def find_rows(self, program_uid: int, wanted: Collection[Measure]) -> dict[Measure, PollRow]:
        """Those polls of these measures that there are."""
        known = {}
        for measure in wanted:
            row = self._rows.get((program_uid, measure))
            if row is not None:
                known[measure] = row
        if len(known) < len(wanted):
            missing = frozenset(wanted).difference(known)
            found = await self._findings.run(
                (program_uid, missing), lambda: self._polls.find(program_uid, sorted(missing))
            )
            known.update(self._remembered(program_uid, found))
        return known

    async def ensure_rows(
        self,
        program_uid: int,
        wanted: Collection[Measure],
        declared: Mapping[str, Declaration],
        admit: Callable[[int], None],
    ) -> dict[Measure, PollRow]:
        """The polls of these measures, made where there are none; what there is no room for is left out.

        Args:
            declared: what the contexts declare; a context that is not there is no event.
            admit: told how many names nobody has declared are to be made; what it raises is raised.
        """
        found = await self.find_rows(program_uid, wanted)
        if len(found) < len(wanted):
            missing = frozenset(wanted).difference(found)
            strange = sum(not _is_declared(measure, declared) for measure in missing)
            if strange:
                admit(strange)
            names = {id_: declared[id_].measure_name for _, id_ in missing if id_ in declared}
            room = Room(names, OTHER_NAMES, self._most_free)
            made = await self._makings.run(
                (program_uid, missing),
                lambda: self._polls.ensure(program_uid, sorted(missing), self._shards, room),
            )
            found |= self._remembered(program_uid, made)
        return found

    def forget(self, account: str, program_id: str, program_uid: int, measures: Iterable[Measure]) -> None:
        """Look again: something of it is gone."""
        self._programs.pop((account, program_id))
        for measure in measures:
            self._rows.pop((program_uid, measure))

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._programs.close()
        await self._readings.close()
        await self._findings.close()
        await self._makings.close()

    def _remembered(self, program_uid: int, rows: Mapping[Measure, PollRow]) -> Mapping[Measure, PollRow]:
        for measure, row in rows.items():
            self._rows.put((program_uid, measure), row)
        return rows


def _is_declared(measure: Measure, declared: Mapping[str, Declaration]) -> bool:
    name, context = measure
    return context in declared and declared[context].declares(name)
