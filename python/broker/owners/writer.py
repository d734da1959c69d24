"""The one writer of an owner: what `broker.storage.group_commit` writes for programs.

A group that only publishes to programs whose heads are known is written in one statement; any other group is
planned in a transaction that locks its programs. After an attempt that may have been committed, the topics in
memory are updated from the database, and the plan first looks for rows that are already there.

A server that was promoted or restored may lack committed changes. While this writer holds its generation,
nobody else writes its programs, so a database that is behind the writer has lost changes. The writer notices
when a group reads the head of a program, and when the topics in memory are compared with the database
(`doubt`, `examine`). The program then gets a new epoch (reason `lost`) before anything else happens to it,
and its followers get a reset.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.clock import Clock
from broker.concurrency.batch_queue import BatchLimits
from broker.concurrency.caches import LruCache
from broker.domain.history import GroupState, HeadRow, ProgramKey
from broker.errors import BrokerError, Unavailable
from broker.ids import IdSource
from broker.metrics.counts import LOSSES, Sample
from broker.owners.commands import (
    EXCLUSIVE,
    AdoptImport,
    Command,
    CommandReply,
    DeleteEvent,
    DeleteEvents,
    Publish,
    UpdateEvent,
    UpdateProgram,
    size_bytes,
)
from broker.owners.encoding import push_json
from broker.owners.protocol import Cursor
from broker.owners.sequencer import INTERNAL_CALLER, Sequencer
from broker.owners.topics import Topics, continues
from broker.storage.fence import Fenced, Term
from broker.storage.group_commit import GroupCommit, Pending, Refusals
from broker.storage.journal import GroupTransaction, Journal
from broker.storage.statistics_recorder import Recorder

_log = logging.getLogger(__name__)
_EVENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KNOWN_HEADS = 10_000  # about 5 MB
_REFUSALS = Refusals(
    closed="the program's owner is shutting down",
    full="the program's owner is overloaded",
    late="the change could not be stored in time",
    failed="the change could not be stored",
)


WRITER_LIMITS = BatchLimits(batch_size=8 << 20, queue_size=64 << 20, batch_items=500, queue_items=20_000)
"""Of the queue and of one group, in bytes and commands."""


class Submission:
    """The commands of one `submit`: `replies` are all there, errors as values, once `done` is."""

    __slots__ = ("_left", "done", "replies")

    def __init__(self, commands: int) -> None:
        self.replies: list[CommandReply] = [None] * commands
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = commands
        if not commands:
            self.done.set_result(None)

    def take(self, place: int, reply: CommandReply) -> None:
        """Note the reply of one command; each is answered once."""
        self.replies[place] = reply
        self._left -= 1
        if not self._left and not self.done.done():  # done when nobody waits any more
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class _Pending(Pending):
    """A command on its way, with the places in calls where its reply goes."""

    command: Command
    places: list[tuple[Submission, int]]

    @property
    def program(self) -> ProgramKey:
        return self.command.account, self.command.program_id


class Writer:
    """Commits the changes of an owner in groups. A task runs `run`; call `submit` on the same event loop."""

    def __init__(
        self,
        journal: Journal,
        generation: int,
        topics: Topics,
        order: asyncio.Lock,
        clock: Clock,
        ids: IdSource,
        limits: BatchLimits,
        recorder: Recorder | None = None,
        slot: str = "owner",
    ) -> None:
        """`recorder` counts every published event; metrics carry the label `slot`."""
        self._journal = journal
        self._term = Term(journal, generation)
        self._topics = topics
        self._clock = clock
        self._ids = ids
        self._recorder = recorder
        self._commits: GroupCommit[_Pending, CommandReply] = GroupCommit(
            self, self._term, clock, limits, _REFUSALS, name="writer", slot=slot, order=order
        )
        self._pending: dict[str, _Pending] = {}
        self._heads: dict[ProgramKey, HeadRow] = {}
        # as they were told, before something went wrong
        self._former_heads: LruCache[ProgramKey, HeadRow] = LruCache(_KNOWN_HEADS)
        self._begun: dict[ProgramKey, set[str]] = {}  # epochs that may have been written
        self._disputed: dict[ProgramKey, set[Cursor]] = {}
        self._unsettled: set[ProgramKey] = set()
        self._is_settling = False

    @property
    def generation(self) -> int:
        """Under which the last transaction was written, or will be repeated."""
        return self._term.generation

    @property
    def is_renewing(self) -> bool:
        """Whether `generation` may be behind the database because of this writer itself."""
        return self._term.is_doubtful

    @property
    def is_sure(self) -> bool:
        """Whether the topics in memory are known to have what the database has."""
        return not (self._term.is_doubtful or self._is_settling or self.is_unsettled)

    def submit(self, commands: Sequence[Command], wait_s: float) -> Submission:
        """Queue commands in order.

        A command that is still waiting from an earlier call is not queued again: its reply is shared.
        """
        call = Submission(len(commands))
        deadline_s = self._clock.monotonic_s() + wait_s
        for place, command in enumerate(commands):
            known = self._pending.get(command.id)
            if known is not None:
                known.deadline_s = max(known.deadline_s, deadline_s)
                known.places.append((call, place))
                continue
            pending = _Pending(size_bytes(command), deadline_s, command, [(call, place)])
            self._pending[command.id] = pending
            self._commits.add(pending)
        return call

    def doubt(self, *, is_forgotten: bool = False) -> None:
        """Compare everything in memory with the database: it may be another one than a moment ago.

        `is_forgotten` when it does not know this writer's generation any more.
        """
        self._unsettled |= self._topics.keys()
        if is_forgotten:
            self._term.doubt()
        self._commits.wake()

    async def examine(self, disputed: Mapping[ProgramKey, Collection[Cursor]]) -> None:
        """Begin new epochs for the programs of which the database lacks what these cursors have seen.

        Raises Unavailable; then it is still to be done.
        """
        self._dispute(disputed)
        try:
            await self._commits.settle()
        except Fenced:
            self._commits.wake()  # `run` meets it too, and ends
            raise Unavailable(_REFUSALS.closed, retry_after_s=1) from None

    def figures(self) -> Iterator[Sample]:
        """What waits, and under which generation it is written."""
        return self._commits.figures()

    async def drain(self) -> None:
        """Take no more; return when everything that waits is answered. Safe to cancel."""
        await self._commits.drain()

    async def run(self) -> None:
        """Write until cancelled. Raises as `GroupCommit.run` does."""
        await self._commits.run()

    # -- what the group commit asks of it; see `GroupWork`

    @property
    def is_unsettled(self) -> bool:
        """Whether programs are to be compared with the database."""
        return bool(self._unsettled or self._disputed)

    def admission(self) -> Callable[[_Pending], bool]:
        """Keeps a command that changes a program as a whole the only one of that program in its group."""
        touched: set[ProgramKey] = set()
        exclusive: set[ProgramKey] = set()

        def admits(pending: _Pending) -> bool:
            key, alone = pending.program, isinstance(pending.command, EXCLUSIVE)
            if key in exclusive or (alone and key in touched):
                return False
            touched.add(key)
            if alone:
                exclusive.add(key)
            return True

        return admits

    async def settle(self, _group: Sequence[_Pending], /) -> None:
        """Compare what is in doubt with the database. Raises Fenced, Unavailable."""
        # Taken out first: more may come while this waits for the database.
        unsettled, self._unsettled = self._unsettled, set()
        disputed, self._disputed = self._disputed, {}
        self._is_settling = True
        try:
            if unsettled:
                for key, cursor in (await self._topics.resync(unsettled, self._begun)).items():
                    disputed.setdefault(key, set()).add(cursor)
            if disputed:
                await self._settle_disputed(disputed)
        except BaseException:
            self._unsettled |= unsettled
            self._dispute(disputed)
            raise
        finally:
            self._is_settling = False

    async def commit(
        self, generation: int, group: Sequence[_Pending], earlier: Sequence[Exception]
    ) -> list[CommandReply]:
        """Write a group, and append what it publishes to the topics in memory."""
        done = await self._write(generation, group, bool(earlier))
        self._count(done)
        stale = self._topics.append(done.entries)
        if stale:
            self._unsettled |= stale
            self._term.doubt()
        return done.replies

    def forget(self, group: Sequence[_Pending]) -> None:
        """Compare the programs of a group with the database before anything else is written."""
        self._unsettled |= {pending.program for pending in group}

    def answer(self, pending: _Pending, reply: CommandReply | BrokerError) -> None:
        """Give the reply to all calls that have the command."""
        if self._pending.get(pending.command.id) is pending:
            del self._pending[pending.command.id]
            for call, place in pending.places:
                call.take(place, reply)

    # -- how a group is written

    async def _write(self, generation: int, group: Sequence[_Pending], check: bool) -> Sequencer:
        """Write a group: in one statement if it only publishes to programs whose heads are known."""
        known, self._heads = self._heads, {}  # after a failure nothing is sure
        heads = None if check else _heads_of(group, known)
        try:
            if heads is not None:
                done = _add_all(self._sequencer(GroupState(heads)), group)
                if await self._journal.append(generation, done.writes, heads.values()):
                    known.update(done.heads)
                    self._heads = known
                    return done
                check = True
            done = await self._journal.write(
                generation, lambda transaction: self._plan(transaction, group, check, known)
            )
        except BaseException:
            self._remember(known)
            raise
        touched = {pending.program for pending in group if isinstance(pending.command, EXCLUSIVE)}
        if heads is None and len(known) < _KNOWN_HEADS:
            self._heads = known
        else:
            self._remember(known)
        for pending in group:
            self._forget(pending.program)
        self._heads |= done.heads
        for key in touched:
            self._heads.pop(key, None)
        return done

    def _sequencer(self, found: GroupState) -> Sequencer:
        return Sequencer(found, self._clock.now_ms(), self._ids.epoch)

    def _count(self, done: Sequencer) -> None:
        """Count what is known to be committed; not a commit that was in doubt and turned out done."""
        if self._recorder is not None:
            for (account, program_id, project_id), events in done.published.items():
                self._recorder.count_events(account, program_id, project_id, events)

    async def _plan(
        self,
        transaction: GroupTransaction,
        group: Sequence[_Pending],
        check: bool,
        known: Mapping[ProgramKey, HeadRow],
    ) -> Sequencer:
        found = await self._find(transaction, [pending.command for pending in group], check)
        sequencer = self._sequencer(found)
        for key, head in found.heads.items():
            if self._is_behind(key, head, known):
                self._go_on(sequencer, key, known)
        _add_all(sequencer, group)
        self._note_epochs(sequencer, found)
        await transaction.apply(sequencer.writes)
        return sequencer

    async def _find(
        self, transaction: GroupTransaction, commands: Sequence[Command], check: bool
    ) -> GroupState:
        """Lock the programs, and read what the commands name and what earlier tries of them left behind.

        For publishes, the bulk, the latter is read only with `check`: without it, an event that is there
        already stops the transaction.
        """
        found = GroupState(heads=await transaction.lock({(c.account, c.program_id) for c in commands}))
        # What each command needs is collected …
        events: list[tuple[int, str]] = []
        told: dict[str, str] = {}
        keys: list[tuple[str, str, str]] = []
        for command in commands:
            head = found.heads.get((command.account, command.program_id))
            if command.key is not None:
                keys.append((command.account, command.key.caller, command.key.key))
            if isinstance(command, Publish):
                if check:
                    told |= dict.fromkeys((event.id for event in command.events), command.program_id)
                continue
            if command.key is None:
                keys.append((command.account, INTERNAL_CALLER, command.id))
            if head is None:
                continue
            if isinstance(command, UpdateEvent | DeleteEvent) and _EVENT_ID.fullmatch(command.event_id):
                events.append((head.history, command.event_id))
            if isinstance(command, UpdateProgram):
                found.programs[head.uid] = await transaction.get_program(head.uid)
                to = command.changes.get("project_id")
                if (
                    to is not None
                    and to != head.project_id
                    and not await transaction.hold_project(
                        command.account, to, was_there=command.project_was_there
                    )
                ):
                    found.going.add((command.account, to))
            if isinstance(command, DeleteEvents | AdoptImport):
                found.counts[head.uid] = await transaction.count_events(head.history)
            if isinstance(command, AdoptImport):
                staged = await transaction.find_staged(command.import_id)
                if staged is not None:
                    found.staged[command.import_id] = staged
        # … and read for all of them at once.
        if keys:
            found.keys = await transaction.find_keys(keys)
        if events:
            found.events = await transaction.find_events(events)
        if told:
            for epoch, push in await transaction.find_told(list(told)):
                found.told[push.event_id] = push_json(epoch, told[push.event_id], push)
        return found

    async def _settle_disputed(self, disputed: dict[ProgramKey, set[Cursor]]) -> None:
        """Begin new epochs where the database has lost what was told. Raises Fenced, Unavailable."""
        try:
            await self._journal.write(
                self.generation, lambda transaction: self._plan_epochs(transaction, disputed)
            )
        except Unavailable:
            self._term.doubt()
            raise
        await self._topics.resync(disputed, self._begun)
        for key in disputed:
            self._forget(key)
            self._heads.pop(key, None)

    def _dispute(self, disputed: Mapping[ProgramKey, Collection[Cursor]]) -> None:
        for key, cursors in disputed.items():
            self._disputed.setdefault(key, set()).update(cursors)

    async def _plan_epochs(
        self, transaction: GroupTransaction, disputed: Mapping[ProgramKey, Collection[Cursor]]
    ) -> None:
        """Look again under the locks: what was read before may have come from a server that is behind."""
        found = GroupState(heads=await transaction.lock(disputed))
        sequencer = self._sequencer(found)
        for key, head in found.heads.items():
            if self._is_behind(key, head, self._heads) or await _is_lost(transaction, head, disputed[key]):
                self._go_on(sequencer, key, self._heads)
        self._note_epochs(sequencer, found)
        await transaction.apply(sequencer.writes)

    # -- what the database has lost

    def _is_behind(self, key: ProgramKey, head: HeadRow, known: Mapping[ProgramKey, HeadRow]) -> bool:
        """Whether the database stands before what this writer knows to be committed."""
        told = self._told(key, known)
        return told is not None and not continues(head, told, self._begun.get(key, ()))

    def _told(self, key: ProgramKey, known: Mapping[ProgramKey, HeadRow]) -> Cursor | None:
        """Where the program stood when this writer last knew."""
        told = self._topics.find_cursor(key)
        if told is None:
            before = known.get(key) or self._former_heads.get(key)
            if before is not None:
                told = Cursor(before.epoch, before.seq, before.id, before.uid)
        return told

    def _go_on(self, sequencer: Sequencer, key: ProgramKey, known: Mapping[ProgramKey, HeadRow]) -> None:
        head, told = sequencer.heads[key], self._told(key, known)
        sequencer.go_on_after_a_loss(key)
        names = {"account": key[0], "program": key[1], "epoch": head.epoch, "goes_on_after": head.seq}
        if head.reason == "restored" and told is not None and told.epoch != head.epoch:
            _log.info("history_restored", extra=names)
            return
        LOSSES.add()
        _log.error("history_lost", extra=names)

    def _note_epochs(self, sequencer: Sequencer, found: GroupState) -> None:
        for key, head in sequencer.heads.items():
            if head.epoch != found.heads[key].epoch:
                self._begun.setdefault(key, set()).add(head.epoch)

    def _remember(self, known: dict[ProgramKey, HeadRow]) -> None:
        """Keep heads that are not sure any more, to compare with them what is found next."""
        for key, head in known.items():
            self._former_heads.put(key, head)

    def _forget(self, key: ProgramKey) -> None:
        """What was known of a program has been compared with the database."""
        self._former_heads.pop(key)
        self._begun.pop(key, None)


def _add_all(sequencer: Sequencer, group: Sequence[_Pending]) -> Sequencer:
    for pending in group:
        sequencer.add(pending.command)
    return sequencer


async def _is_lost(transaction: GroupTransaction, head: HeadRow, cursors: Collection[Cursor]) -> bool:
    """Whether the database lacks what one of these cursors has seen; it may have a newer epoch."""
    for cursor in cursors:
        if cursor.uid not in (0, head.uid):
            continue  # of a program of this id that is gone
        if cursor.epoch != head.epoch:
            if cursor.uid and head.reason == "created":
                return True
        elif cursor.seq > head.seq:
            return True
        elif cursor.id:
            id_ = await transaction.find_message_id(head.history, cursor.seq)
            if id_ and id_ != cursor.id:
                return True
    return False


def _heads_of(
    group: Sequence[_Pending], known: dict[ProgramKey, HeadRow]
) -> dict[ProgramKey, HeadRow] | None:
    """The heads of the programs; None if one is not known, or something but events is to be written."""
    heads: dict[ProgramKey, HeadRow] = {}
    for pending in group:
        head = known.get(pending.program)
        if head is None or not isinstance(pending.command, Publish) or not pending.command.events:
            return None
        heads[pending.program] = head
    return heads
