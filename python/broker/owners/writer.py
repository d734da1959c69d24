"""The one writer of an owner: drains a queue into one transaction after another.

While a group commits, what arrives waits and goes into the next one. Nothing is delayed on purpose: a command
that finds the writer idle is committed alone. Groups are prefixes of the queue, so the order of acceptance is
the order of effect.

A transaction that fails in the middle of things may have been committed. The writer then counts its
generation up (`Journal.renew`), which ends the doubt, brings the topics in memory up to what the database
says, and writes the group again, this time looking first for what is there already.

A server that was promoted or restored may lack what was committed. Under the generation of this writer nobody
else writes its programs, so such a one stands behind what the writer knows: when a group finds a program's
head so, and when the topics in memory are compared with the database (`doubt`, `examine`), the program gets a
new epoch (reason `lost`) before anything else happens to it, and its followers a reset.

Bounds: the queue (commands and bytes; over them `Unavailable` at once), the group, and the time that a
command waits (its caller says how long; then `Unavailable`, or `OutcomeUnknown` while a try of it is in
doubt).
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.caches import LruCache
from broker.domain.history import GroupState, HeadRow, ProgramKey
from broker.errors import InternalError, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import COMMIT_SECONDS, COMMITTED, DOUBTS, LOSSES, Sample
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
from broker.storage.journal import AlreadyWritten, GroupTransaction, Journal
from broker.storage.statistics_recorder import Recorder

_log = logging.getLogger(__name__)
_EVENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RETRY = Backoff(0.05, 1.0, jitter=0)  # while the database is away
_KNOWN_HEADS = 10_000  # about 5 MB
_MAX_REPEATS = 5  # of a group that meets rows of its own again and again; one is usual after a lost reply


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of the queue and of one group."""

    queue_commands: int = 20_000
    queue_bytes: int = 64 << 20
    group_commands: int = 500
    group_bytes: int = 8 << 20


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
class _Pending:
    """A command on its way, with the places in calls where its reply goes.

    `is_doubtful` once a transaction with it may have been committed, for as long as it has no reply.
    """

    command: Command
    size_bytes: int
    deadline_s: float
    places: list[tuple[Submission, int]]
    is_doubtful: bool = False

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
        limits: WriterLimits,
        recorder: Recorder | None = None,
        slot: str = "owner",
    ) -> None:
        """`recorder` is told of every event that is published; metrics name `slot`."""
        self._journal = journal
        self._term = Term(journal, generation)
        self._topics = topics
        self._order = order
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._recorder = recorder
        self._slot = slot
        self._queue: deque[_Pending] = deque()
        self._queued_bytes = 0
        self._pending: dict[str, _Pending] = {}
        self._arrived = asyncio.Event()
        self._heads: dict[ProgramKey, HeadRow] = {}
        # as they were told, before something went wrong
        self._former_heads: LruCache[ProgramKey, HeadRow] = LruCache(_KNOWN_HEADS)
        self._begun: dict[ProgramKey, set[str]] = {}  # epochs that may have been written
        self._disputed: dict[ProgramKey, set[Cursor]] = {}
        self._is_due = False  # to settle what is in doubt, though nothing is queued
        self._unsettled: set[ProgramKey] = set()
        self._writing: Sequence[_Pending] = ()  # the group whose transaction is under way
        self._closed = False

    @property
    def generation(self) -> int:
        """Under which the last transaction was written, or will be repeated."""
        return self._term.generation

    @property
    def is_renewing(self) -> bool:
        """Whether `generation` may be behind the database because of this writer itself."""
        return self._term.is_doubtful

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
            refusal = self._queue_up(_Pending(command, size_bytes(command), deadline_s, [(call, place)]))
            if refusal is not None:
                call.take(place, _unavailable(refusal))
        return call

    def _queue_up(self, pending: _Pending) -> str | None:
        """Queue a command; or why it cannot be."""
        limits = self._limits
        if self._closed:
            return "the program's owner is shutting down"
        is_full = len(self._queue) >= limits.queue_commands
        if is_full or self._queued_bytes + pending.size_bytes > limits.queue_bytes:
            return "the program's owner is overloaded"
        self._pending[pending.command.id] = pending
        self._queue.append(pending)
        self._queued_bytes += pending.size_bytes
        self._arrived.set()
        return None

    def doubt(self, *, is_forgotten: bool = False) -> None:
        """Compare everything in memory with the database: it may be another one than a moment ago.

        `is_forgotten` when it does not know this writer's generation any more.
        """
        self._unsettled |= self._topics.keys()
        if is_forgotten:
            self._term.doubt()
        self._is_due = True
        self._arrived.set()

    async def examine(self, disputed: Mapping[ProgramKey, Collection[Cursor]]) -> None:
        """Begin new epochs for the programs of which the database lacks what these cursors have seen.

        Raises Unavailable; then it is still to be done.
        """
        self._dispute(disputed)
        try:
            async with self._order:
                await self._settle()
        except Fenced:
            self._is_due = True
            self._arrived.set()  # `run` meets it too, and ends
            raise _unavailable("the program's owner is shutting down") from None

    def figures(self) -> Iterator[Sample]:
        """What waits, and under which generation it is written."""
        yield Sample(catalogue.QUEUE.name, ("writer",), len(self._queue))
        yield Sample(catalogue.QUEUE_BYTES.name, ("writer",), self._queued_bytes)
        yield Sample(catalogue.GENERATION.name, (self._slot,), self.generation)

    async def drain(self) -> None:
        """Take no more; return when everything that waits is answered. Safe to cancel."""
        self._closed = True
        waiting = {call.done for pending in self._pending.values() for call, _ in pending.places}
        if waiting:
            await asyncio.wait(waiting)

    async def run(self) -> None:
        """Write until cancelled.

        Raises:
            Fenced: another owner has the slot. Everything that waits is answered `Unavailable`, or
                `OutcomeUnknown`.
        """
        try:
            while True:
                await self._wait()
                if not self._queue:
                    await self._settle_idle()
                    continue
                await self._commit(self._take())
        finally:
            self._closed = True
            for pending in self._writing:
                pending.is_doubtful = True
            for pending in list(self._pending.values()):
                self._give_up(pending, "the program's owner is shutting down")

    async def _wait(self) -> None:
        """Until something is queued; with doubts left, not for long."""
        while not self._queue:
            self._arrived.clear()
            if self._is_due:
                self._is_due = False
                return
            if not (self._term.is_doubtful or self._unsettled or self._disputed):
                await self._arrived.wait()
                continue
            try:
                async with asyncio.timeout(_RETRY.cap_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _take(self) -> list[_Pending]:
        """The next group: a prefix of the queue."""
        group: list[_Pending] = []
        room = self._limits.group_bytes
        touched: set[ProgramKey] = set()
        exclusive: set[ProgramKey] = set()
        while self._queue and len(group) < self._limits.group_commands:
            pending = self._queue[0]
            key, alone = pending.program, isinstance(pending.command, EXCLUSIVE)
            if group and (pending.size_bytes > room or key in exclusive or (alone and key in touched)):
                break
            self._queue.popleft()
            self._queued_bytes -= pending.size_bytes
            room -= pending.size_bytes
            touched.add(key)
            if alone:
                exclusive.add(key)
            group.append(pending)
        return group

    async def _commit(self, group: list[_Pending], *, check: bool = False) -> None:
        """Write a group, however often it takes, and answer it. Raises Fenced."""
        delays, repeats = Delays(_RETRY), 0
        while group := self._alive(group):
            try:
                await self._attempt(group, check=check)
                return
            except Fenced:
                raise
            except AlreadyWritten as error:
                repeats += 1
                if repeats > _MAX_REPEATS:
                    _log.error("group_repeats_without_end", extra={"rows": str(error)})
                    for pending in group:
                        self._give_up(pending, "the change meets others of the same id")
                    return
            except Unavailable as error:
                if isinstance(error, OutcomeUnknown):
                    for pending in group:
                        pending.is_doubtful = True
                _log.warning("commit_in_doubt", extra={"commands": len(group), "cause": error.log_text})
                await delays.wait()
                self._expire_queue()
            except Exception:
                if len(group) > 1:
                    # one of them cannot be written; alone, it fails nobody else
                    for pending in group:
                        await self._commit([pending], check=True)
                    return
                _log.exception("command_failed", extra={"kind": type(group[0].command).__name__})
                self._answer(group[0], InternalError("the change could not be stored"))
                return
            check = True

    async def _attempt(self, group: Sequence[_Pending], *, check: bool) -> None:
        keys = {pending.program for pending in group}
        async with self._order:
            await self._settle()
            self._writing = group
            began_s = self._clock.monotonic_s()
            try:
                done = await self._write(group, check)
            except Unavailable:
                self._unsettled |= keys
                self._term.doubt()
                self._writing = ()
                DOUBTS.add(self._slot)
                raise
            except Exception:
                self._writing = ()
                raise
            COMMIT_SECONDS.observe(self._clock.monotonic_s() - began_s, self._slot)
            COMMITTED.add(self._slot, amount=len(group))
            self._count(done)
            stale = self._topics.append(done.entries)
            if stale:
                self._unsettled |= stale
                self._term.doubt()
        for pending, reply in zip(group, done.replies, strict=True):
            self._answer(pending, reply)
        self._writing = ()

    async def _write(self, group: Sequence[_Pending], check: bool) -> Sequencer:
        """Write a group: in one statement if it only publishes to programs whose heads are known."""
        known, self._heads = self._heads, {}  # after a failure nothing is sure
        heads = None if check else _heads_of(group, known)
        try:
            if heads is not None:
                done = _add_all(self._sequencer(GroupState(heads)), group)
                if await self._journal.append(self.generation, done.writes, heads.values()):
                    known.update(done.heads)
                    self._heads = known
                    return done
                check = True
            done = await self._journal.write(
                self.generation, lambda transaction: self._plan(transaction, group, check, known)
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
                self._go_on(sequencer, key)
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
            if isinstance(command, DeleteEvents | AdoptImport):
                found.counts[head.uid] = await transaction.count_events(head.history)
            if isinstance(command, AdoptImport):
                staged = await transaction.find_staged(command.import_id)
                if staged is not None:
                    found.staged[command.import_id] = staged
        if keys:
            found.keys = await transaction.find_keys(keys)
        if events:
            found.events = await transaction.find_events(events)
        if told:
            for epoch, push in await transaction.find_told(list(told)):
                found.told[push.event_id] = push_json(epoch, told[push.event_id], push)
        return found

    async def _settle(self) -> None:
        """End all doubt about earlier transactions, under the lock. Raises Fenced, Unavailable."""
        await self._term.settle()
        # Taken out first: more may come while this waits for the database.
        unsettled, self._unsettled = self._unsettled, set()
        disputed, self._disputed = self._disputed, {}
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
                self._go_on(sequencer, key)
        self._note_epochs(sequencer, found)
        await transaction.apply(sequencer.writes)

    # -- what the database has lost

    def _is_behind(self, key: ProgramKey, head: HeadRow, known: Mapping[ProgramKey, HeadRow]) -> bool:
        """Whether the database stands before what this writer knows to be committed."""
        told = self._topics.find_cursor(key)
        if told is None:
            before = known.get(key) or self._former_heads.get(key)
            if before is None:
                return False
            told = Cursor(before.epoch, before.seq, before.id, before.uid)
        return not continues(head, told, self._begun.get(key, ()))

    def _go_on(self, sequencer: Sequencer, key: ProgramKey) -> None:
        head = sequencer.heads[key]
        sequencer.go_on_after_a_loss(key)
        LOSSES.add()
        _log.error(
            "history_lost",
            extra={"account": key[0], "program": key[1], "epoch": head.epoch, "goes_on_after": head.seq},
        )

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

    async def _settle_idle(self) -> None:
        try:
            async with self._order:
                await self._settle()
        except Unavailable as error:
            _log.info("still_in_doubt", extra={"cause": error.log_text})

    def _alive(self, group: Sequence[_Pending]) -> list[_Pending]:
        """The group without those whose time is over; they are answered."""
        now_s = self._clock.monotonic_s()
        alive = []
        for pending in group:
            if pending.deadline_s > now_s:
                alive.append(pending)
            else:
                self._give_up(pending, "the change could not be stored in time")
        return alive

    def _expire_queue(self) -> None:
        alive = self._alive(self._queue)
        self._queue = deque(alive)
        self._queued_bytes = sum(pending.size_bytes for pending in alive)

    def _give_up(self, pending: _Pending, text: str) -> None:
        kind = OutcomeUnknown if pending.is_doubtful else Unavailable
        self._answer(pending, kind(text, retry_after_s=1))

    def _answer(self, pending: _Pending, reply: CommandReply) -> None:
        if self._pending.pop(pending.command.id, None) is not None:
            for call, place in pending.places:
                call.take(place, reply)


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


def _unavailable(message: str) -> Unavailable:
    return Unavailable(message, retry_after_s=1)
