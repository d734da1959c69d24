"""Which polls native code may count by itself, because the ordinary path has just served a vote.

The conditions of a poll (its program is public, its event has these options and is open) are read once, after
the gateway has begun to follow the program's topic. From then on every change arrives through the topic: the
poll is closed at once, and read and opened again if votes may still be taken. So a change takes effect here
as soon as viewers are notified.

A poll is opened for 1.5 seconds at a time, and reopened twice a second while it is used. Silence of the topic
proves nothing: an owner may hang, a link may be slow, a fence may be lost. So each round asks the owners, and
never the database, where their programs with used polls stand. Polls whose topic is complete here are
extended; the others lapse, and their votes take the ordinary path again, with its errors, as when this
process hangs. During maintenance all are closed, so that votes meet its refusal there.

An owner answers from memory, and only while it has seen its slot in the database in the last seconds. One
that was cut off from its successor and not from here may delay a change of the successor by that long.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from broker.concurrency.caches import LruCache
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.domain.programs import Access, has_free_contexts
from broker.errors import BrokerError
from broker.gateway.topics import Followed, FollowedTopics
from broker.operations.program_access import WITHOUT_PROJECT
from broker.operations.services import Services
from broker.owners.protocol import Attributes, Entry, EntryKind, Head, program_topic
from broker.storage.polls import PollProgram, PollRow
from broker.voting.rules import (
    NOTHING_DECLARED,
    Declaration,
    is_watched,
    lower_uuid,
    parse_declaration,
)

_log = logging.getLogger(__name__)

RENEW_S = 0.5
OPEN_S = 1.5  # three rounds: one may fail
LINGER_S = 10.0  # a program is followed so much longer than a poll of it is used
MAX_OPEN = 500  # polls, and programs that are followed; votes of the others come the ordinary way
_MAX_PLACES = 10_000
_PIN = "polls"
_CHANGES = ("eventUpdated", "eventDeleted")
_REPLACES = (EntryKind.RESET, EntryKind.GONE, EntryKind.ATTRIBUTES)


class PollName(NamedTuple):
    """What a request names a poll by."""

    account: str
    program_id: str
    context_id: str
    measure_name: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a poll belongs."""

    name: PollName
    program_uid: int
    project_id: str | None


class _Facts(NamedTuple):
    """What is known of a poll that may be open."""

    program: PollProgram
    row: PollRow
    context: Declaration


@dataclass(slots=True, eq=False)
class _Program:
    """A program whose topic is followed for its polls.

    Attributes:
        reading: polls that are being read; one that changes meanwhile is taken out.
        known: polls as they are now.
        used: polls to open again once the topic has got to `head`, for `OPEN_S` from `asked_s` on.
        used_s: when a poll of it was used last.
    """

    key: tuple[str, str]
    followed: Followed
    used_s: float
    reading: set[PollName] = field(default_factory=set)
    known: dict[PollName, _Facts] = field(default_factory=dict)
    used: Collection[PollName] = ()
    head: Head | None = None
    asked_s: float = 0.0


class PollTable(Protocol):
    """What this module needs of the native server, which counts the open polls."""

    def open_poll(
        self,
        account: str,
        program_id: str,
        context_id: str,
        measure_name: str,
        *,
        poll: int,
        shards: int,
        key: bytes,
        options: int,
        allow_change: bool,
        projects: list[str],
        open_s: float,
    ) -> None:
        """Let native code take the votes of a poll for a while."""

    def close_poll(self, account: str, program_id: str, context_id: str, measure_name: str) -> None:
        """Leave the votes of a poll to Python again."""


class OpenPolls:
    """Opens polls to native code. `start` and `stop` on one event loop; no fault here fails a vote."""

    def __init__(self, table: PollTable, topics: FollowedTopics, services: Services) -> None:
        self._table = table
        self._topics = topics
        self._polls = services.audience.polls
        self._known = services.audience.known
        self._visitors = services.audience.visitors
        self._maintenance = services.maintenance
        self._clock = services.clock
        self._programs: dict[tuple[str, str], _Program] = {}
        self._wanted: dict[PollName, None] = {}
        self._open: dict[PollName, float] = {}  # until when, on the monotonic clock
        self._used: dict[PollName, None] = {}
        self._places: LruCache[int, Place] = LruCache(_MAX_PLACES)
        self._arrived = asyncio.Event()
        self._followed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open what is wanted, from now on."""
        self._maintenance.on_begin(self._close_all)
        self._task = keep_running("open polls", self._run)

    async def stop(self) -> None:
        """Close every poll, and open nothing more. Idempotent."""
        await cancel_and_wait(self._task)
        self._task = None
        self._wanted.clear()
        self._close_all()

    def answered(self, account: str, params: Mapping[str, Any]) -> None:
        """A vote with these params has been served the ordinary way."""
        context = lower_uuid(params["contextId"])
        name = PollName(account, params["programId"], context, params["measureName"])
        now_s = self._clock.monotonic_s()
        if self._open.get(name, now_s) <= now_s and len(self._open) + len(self._wanted) < MAX_OPEN:
            self._want([name])

    def use(self, poll: int) -> Place | None:
        """Where a poll belongs whose votes have just been taken; None for one that was forgotten."""
        place = self._places.get(poll)
        if place is not None:
            self._used[place.name] = None
        return place

    def gone(self, poll: int) -> None:
        """A counter says that the poll has been deleted."""
        place = self._places.pop(poll)
        if place is not None:
            name = place.name
            program = self._programs.get(name[:2])
            if program is not None:
                program.known.pop(name, None)
            self._close(name)
            measure = (name.measure_name, name.context_id)
            self._known.forget(name.account, name.program_id, place.program_uid, [measure])

    async def open_wanted(self) -> None:
        """Open the polls of the votes that have been served since the last time."""
        wanted, self._wanted = self._wanted, {}
        by_program = _by_program(wanted)
        # All at a time: the owner of one may be away.
        followed = await asyncio.gather(*(self._follow_public(key) for key in by_program))
        for program, names in zip(followed, by_program.values(), strict=True):
            try:
                await self._open_some(program, names)
            except BrokerError as error:
                _log.info("poll_not_opened", extra={"cause": error.log_text or error.message})
            except Exception:
                _log.exception("poll_not_opened")

    async def renew_when_open(self) -> None:
        """Wait until a program is followed, and `renew`: nobody wakes for nothing."""
        await self._followed.wait()
        await self.renew()
        if not self._programs:
            self._followed.clear()

    async def renew(self) -> None:
        """Open what is used again, or not; what is open lapses then."""
        now_s = self._clock.monotonic_s()
        self._open = {name: until_s for name, until_s in self._open.items() if until_s > now_s}
        used, self._used = self._used, {}
        asked = {
            program: names
            for key, names in _by_program(used).items()
            if (program := self._programs.get(key)) is not None and program.known
        }
        for program in list(self._programs.values()):
            rules = self._visitors.remembered(program.key[0]) if program.known else None
            if rules is not None:
                # No topic notifies us of a change of what the account requires.
                self._read_again(
                    program,
                    [n for n, facts in program.known.items() if is_watched(facts.context, rules.required)],
                )
            if program in asked:
                program.used_s = now_s
            elif program.used_s <= now_s - LINGER_S:
                self._drop(program)
            program.known = {
                name: facts for name, facts in program.known.items() if name in self._open or name in used
            }
        if asked:
            of_topic = {program.followed.topic: program for program in asked}

            def compare(topic: str, head: Head) -> None:
                program = of_topic[topic]
                if program.known:
                    self._compare(program, head, asked[program], now_s)

            await self._topics.ask_heads([program.followed for program in asked], compare)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self.open_wanted()

    def _want(self, names: Iterable[PollName]) -> None:
        self._wanted.update(dict.fromkeys(names))
        self._arrived.set()

    async def _open_some(self, program: _Program | None, names: Collection[PollName]) -> None:
        """Open those polls of a program that anybody may answer, and close the others."""
        if program is None:
            for name in names:
                self._close(name)
            return
        program.reading.update(names)
        try:
            facts = await self._read(program.key, names)
            # What has changed meanwhile is wanted again already.
            for name in program.reading.intersection(names):
                if name in facts and self._is_followed(program):
                    program.known[name] = facts[name]
                    self._open_one(name, facts[name], OPEN_S)
                else:
                    program.known.pop(name, None)
                    self._close(name)
        finally:
            program.reading.difference_update(names)

    async def _follow_public(self, key: tuple[str, str]) -> _Program | None:
        """The program, followed from now on; None when it is not public or cannot be followed."""
        try:
            seen = await self._known.find_program(*key)  # as of at most a second ago
            if seen is None or seen.access is not Access.PUBLIC:
                return None
            async with asyncio.timeout(OPEN_S):
                return await self._follow(key)
        except (BrokerError, TimeoutError) as error:
            _log.info("poll_not_opened", extra={"program": key[1], "cause": str(error)})
        except Exception:
            _log.exception("poll_not_opened")
        return None

    async def _follow(self, key: tuple[str, str]) -> _Program | None:
        """Follow a program; None when that are too many. Raises NotFound, Unavailable."""
        program = self._programs.get(key)
        if program is not None and self._is_followed(program):
            return program
        if program is not None:
            self._drop(program)
        if len(self._programs) >= MAX_OPEN:
            return None
        topic = program_topic(*key)
        followed = await self._topics.open(topic, pin=_PIN)
        program = self._programs[key] = _Program(key, followed, self._clock.monotonic_s())
        self._topics.watch(topic, _PIN, lambda entries: self._hear(program, entries))
        self._followed.set()
        return program

    def _is_followed(self, program: _Program) -> bool:
        return self._topics.find(program_topic(*program.key)) is program.followed

    async def _read(self, key: tuple[str, str], names: Collection[PollName]) -> dict[PollName, _Facts]:
        """Those of the polls that may be open. Read now: what others began to read before may be older."""
        program = await self._polls.find_program(*key)
        if program is None or program.access is not Access.PUBLIC:
            return {}
        events = await self._polls.find_contexts(program.uid, sorted({name.context_id for name in names}))
        declared = {id_: parse_declaration(orjson.loads(metadata)) for id_, metadata in events.items()}
        measures = {(name.measure_name, name.context_id): name for name in names}
        # They have just been answered; what is deleted meanwhile may be made again.
        rows = await self._known.ensure_rows(program.uid, measures.keys(), declared, lambda _new: None)
        rules = await self._visitors.rules(key[0])
        other = NOTHING_DECLARED if has_free_contexts(program.metadata) else None
        facts = {}
        for measure, row in rows.items():
            context = declared.get(measure[1], other)
            # Visitors are looked at by the ordinary way only.
            if context is not None and not is_watched(context, rules.required):
                facts[measures[measure]] = _Facts(program, row, context)
        return facts

    def _hear(self, program: _Program, entries: Sequence[Entry]) -> None:
        """Close what these entries of the program's topic change, and open what they let go on."""
        changed: set[str] = set()
        for entry in entries:
            if entry.kind in _REPLACES:
                self._read_again(program, program.reading | program.known.keys())
            elif entry.method in _CHANGES:
                changed.add(orjson.loads(entry.params)["id"])
        if changed:
            polls = program.reading | program.known.keys()
            self._read_again(program, [name for name in polls if name.context_id in changed])
        if entries and entries[-1].kind == EntryKind.GONE:
            self._drop(program)
        else:
            self._go_on(program)

    def _read_again(self, program: _Program, names: Collection[PollName]) -> None:
        for name in names:
            program.known.pop(name, None)
            self._close(name)
        program.reading.difference_update(names)
        self._want(names)

    def _compare(self, program: _Program, head: Head, names: Collection[PollName], asked_s: float) -> None:
        """Go on with what is used of a program that stands at `head`."""
        facts = next(iter(program.known.values())).program
        if head.uid != facts.uid or head.attributes != _attributes(facts):
            self._read_again(program, list(program.known))
            return
        program.head, program.used, program.asked_s = head, names, asked_s
        self._go_on(program)

    def _go_on(self, program: _Program) -> None:
        """Open what is used again if everything of the topic is here that there was when it was asked."""
        head = program.head
        here = self._topics.position(program.followed)
        if head is None or here is None or here[0] != head.epoch or here[1] < head.seq:
            return
        program.head = None
        open_s = program.asked_s + OPEN_S - self._clock.monotonic_s()
        for name in program.used:
            if name in program.known:
                self._open_one(name, program.known[name], open_s)

    def _open_one(self, name: PollName, facts: _Facts, open_s: float) -> None:
        program, row, context = facts
        now_ms = self._clock.now_ms()
        if context.closes_ms is not None:
            open_s = min(open_s, (context.closes_ms - now_ms) / 1_000)
        is_open = context.is_open(now_ms) and context.choices > 0
        if open_s <= 0 or not is_open or self._maintenance.current is not None:
            self._close(name)
            return
        self._open[name] = self._clock.monotonic_s() + open_s
        self._places.put(row.uid, Place(name, program.uid, program.project_id))
        self._table.open_poll(
            *name,
            poll=row.uid,
            shards=row.shards,
            key=program.key,
            options=context.choices,
            allow_change=context.allow_change,
            projects=sorted(WITHOUT_PROJECT) if program.project_id is None else [program.project_id],
            open_s=open_s,
        )

    def _close(self, name: PollName) -> None:
        self._open.pop(name, None)
        self._table.close_poll(*name)

    def _close_all(self) -> None:
        for name in list(self._open):
            self._close(name)

    def _drop(self, program: _Program) -> None:
        """Follow a program no longer, and take no votes for it."""
        for name in program.known:
            self._close(name)
        program.known.clear()
        if self._programs.get(program.key) is program:
            del self._programs[program.key]
            topic = program_topic(*program.key)
            self._topics.unwatch(topic, _PIN)
            if self._is_followed(program):
                self._topics.unpin(topic, _PIN)


def _by_program(names: Iterable[PollName]) -> dict[tuple[str, str], list[PollName]]:
    by_program: dict[tuple[str, str], list[PollName]] = {}
    for name in names:
        by_program.setdefault((name.account, name.program_id), []).append(name)
    return by_program


def _attributes(program: PollProgram) -> Attributes:
    is_public = program.access is Access.PUBLIC
    return Attributes(is_public, program.project_id, has_free_contexts(program.metadata))
