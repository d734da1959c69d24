"""One counter: what its shards of the polls have counted, and the way of batches into the database.

Batches are committed in groups: while one commit runs, what arrives waits and goes into the next. A group
is applied to the tallies in memory, and what is new of it is stored with the totals and the doors' numbers in
one statement. Only then are the doors answered.

When a commit fails, memory is ahead of the database or the database ahead of memory; nobody knows which. The
tallies and doors that it touched are forgotten, the counter's generation is counted up, which ends the doubt
(`broker.storage.fence`), and they are read again from the database, where a batch that did get through is
found by its door and number. So it is when the database turns out to have lost what it had.

Bounds: the queue (batches and bytes; over them `Unavailable` at once), the group, the time that a batch waits
(its door says how long; then `Unavailable`, or `OutcomeUnknown` while a commit of it is in doubt), and how
long a tally that nobody counts in stays in memory.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker._native import Tally
from broker.clock import Clock, SystemClock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import keep_running
from broker.errors import BrokerError, InternalError, OutcomeUnknown, Unavailable
from broker.metrics import catalogue
from broker.metrics.counts import COMMIT_SECONDS, COMMITTED, DOUBTS, LOSSES, VOTES, Sample
from broker.settings import Settings
from broker.storage.answer_log import MERGED_ROWS, AnswerLog, RecordsLost, Sealed, StoredTally
from broker.storage.database import Database
from broker.storage.fence import Fenced, Term, connection_name
from broker.voting.counting.batches import BatchReply, Outcomes, VoteBatch, unpack_outcomes
from broker.voting.counting.work import NewestBatch, PollShard, ShardTally, Work, too_late

_RETRY = Backoff(0.05, 1.0, jitter=0)  # while the database is away
_IDLE_S = 900.0  # how long a tally stays in memory that nobody counts in
_DOOR_S = 3_600.0  # far longer than any door tries again
_SWEEP_S = 60.0
_KEYS_S = 3_600.0  # between deletions of keys, which go through all of them
_THREAD_BYTES = 1 << 20  # records that take longer to load than others should wait

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CounterLimits:
    """Bounds of the queue and of one group."""

    queue_batches: int = 20_000
    queue_bytes: int = 64 << 20
    group_bytes: int = 4 << 20


@dataclass(slots=True, eq=False)
class _Pending:
    batch: VoteBatch
    deadline_s: float
    reply: asyncio.Future[BatchReply]
    is_doubtful: bool = False  # a commit of it was not answered


class Counter:
    """One counter. `start` creates it; all methods belong to one event loop."""

    def __init__(
        self, database: Database, slot: str, generation: int, clock: Clock, limits: CounterLimits
    ) -> None:
        self._database = database
        self._slot = slot
        self._stored = AnswerLog(database, slot)
        self._term = Term(self._stored, generation)
        self._clock = clock
        self._limits = limits
        self._queue: deque[_Pending] = deque()
        self._queued_bytes = 0
        self._waiting: set[asyncio.Future[BatchReply]] = set()
        self._arrived = asyncio.Event()
        self._tallies: dict[PollShard, ShardTally] = {}
        self._doors: dict[str, NewestBatch] = {}
        self._keys_seen = True  # of an earlier life, perhaps
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        settings: Settings,
        dsn: str,
        slot: str,
        *,
        clock: Clock | None = None,
        limits: CounterLimits | None = None,
    ) -> "Counter":
        """Take the slot and begin. Raises Unavailable when the database cannot be reached."""
        database = await Database.open(
            dsn, size=2, timeout_s=settings.database_timeout_s, name=connection_name(slot)
        )
        try:
            generation = await AnswerLog(database, slot).acquire()
        except BaseException:
            await database.close()
            raise
        counter = cls(database, slot, generation, clock or SystemClock(), limits or CounterLimits())
        counter._tasks = [
            asyncio.create_task(counter._run(), name="counting"),
            keep_running("sweep", counter._sweep),
        ]
        _log.info("counter_started", extra={"slot": slot, "generation": generation})
        return counter

    async def submit(self, batch: VoteBatch, wait_s: float) -> BatchReply:
        """Count a batch; what it answers is durable. Errors are values. Cancelling takes nothing back."""
        is_full = len(self._queue) >= self._limits.queue_batches
        if self._closed or is_full or self._queued_bytes + batch.size_bytes > self._limits.queue_bytes:
            return too_late()
        reply: asyncio.Future[BatchReply] = asyncio.get_running_loop().create_future()
        self._waiting.add(reply)
        reply.add_done_callback(self._waiting.discard)
        self._queue.append(_Pending(batch, self._clock.monotonic_s() + wait_s, reply))
        self._queued_bytes += batch.size_bytes
        self._arrived.set()
        return await reply

    async def ended(self) -> None:
        """Return when the counter can go on no longer: it was shut out, or one of its tasks failed."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Fenced):
                _log.warning("counter_fenced", extra={"slot": self._slot})
            elif error is not None:
                _log.error("counter_failed", extra={"task": task.get_name()}, exc_info=error)

    def figures(self) -> Iterator[Sample]:
        """What the counter has to tell now."""
        yield Sample(catalogue.QUEUE.name, ("counting",), len(self._queue))
        yield Sample(catalogue.QUEUE_BYTES.name, ("counting",), self._queued_bytes)
        yield Sample(catalogue.GENERATION.name, (self._slot,), self._term.generation)
        yield Sample(catalogue.TALLIES.name, (), len(self._tallies))
        yield from self._database.figures()

    async def drain(self) -> None:
        """Refuse new batches; return when those that wait are answered."""
        self._closed = True
        if self._waiting:
            await asyncio.wait(set(self._waiting))

    async def close(self) -> None:
        """End the tasks and the connections; what waits is answered `Unavailable` or `OutcomeUnknown`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # `ended` has told of those that failed
        await self._database.close()

    # -- the writer

    async def _run(self) -> None:
        group: list[_Pending] = []
        try:
            while True:
                await self._arrived.wait()
                group = self._take()
                if group:
                    await self._commit(group)
                else:
                    self._arrived.clear()
        finally:
            self._closed = True
            for pending in group:
                _answer(pending.reply, too_late(is_doubtful=pending.is_doubtful))
            for reply in list(self._waiting):
                _answer(reply, too_late())

    def _take(self) -> list[_Pending]:
        """The next group: a prefix of the queue, with at most one batch of a door."""
        group: list[_Pending] = []
        room = self._limits.group_bytes
        doors: set[str] = set()
        while self._queue:
            pending = self._queue[0]
            size_bytes = pending.batch.size_bytes
            if group and (size_bytes > room or pending.batch.door in doors):
                break
            self._queue.popleft()
            self._queued_bytes -= size_bytes
            room -= size_bytes
            doors.add(pending.batch.door)
            group.append(pending)
        return group

    async def _commit(self, group: list[_Pending]) -> None:
        """Count a group, however often it takes. Raises Fenced."""
        delays = Delays(_RETRY)
        sealed: frozenset[int] = frozenset()
        while group := self._alive(group):
            try:
                await self._attempt(group, sealed)
                return
            except Fenced:
                raise
            except Sealed as found:  # while these votes were on their way
                sealed |= found.polls
                self._forget(group)
            except RecordsLost:
                _log.error("answers_lost", extra={"slot": self._slot, "batches": len(group)})
                LOSSES.add()
                self._doubt(group)
                await delays.wait()
            except Unavailable as error:
                _log.warning("count_in_doubt", extra={"batches": len(group), "cause": error.log_text})
                self._doubt(group)
                if isinstance(error, OutcomeUnknown):
                    _mark_doubtful(group)
                DOUBTS.add(self._slot)
                await delays.wait()
            except Exception:
                self._doubt(group)
                if len(group) > 1:
                    # one of them cannot be counted; alone, it fails nobody else
                    for pending in group:
                        await self._commit([pending])
                    return
                _log.exception("batch_failed")
                _answer(group[0].reply, InternalError("the votes could not be counted"))
                return

    async def _attempt(self, group: Sequence[_Pending], sealed: frozenset[int]) -> None:
        await self._term.settle()
        await self._load(group)
        work = Work(self._tallies, self._doors, sealed)
        replies = [work.count(pending.batch) for pending in group]
        began_s = self._clock.monotonic_s()
        gone = await self._store(work, group)
        COMMIT_SECONDS.observe(self._clock.monotonic_s() - began_s, self._slot)
        COMMITTED.add(self._slot, amount=len(group))
        for pending, reply in zip(group, replies, strict=True):
            _answer(pending.reply, _without(gone, pending.batch, reply))
        for _, outcomes in work.doors.values():  # without batches that were counted before
            _tell(outcomes)
        for pending in group:
            if pending.batch.has_key:  # seldom repeated; then its row is read
                self._doors.pop(pending.batch.door, None)
                self._keys_seen = True
        for key in work.news:
            await self._merge(key)

    async def _store(self, work: Work, group: Sequence[_Pending]) -> set[int]:
        """Make durable what a group changed; returns the polls that are gone. Raises Fenced, Unavailable."""
        writes = work.writes()
        if not writes and not work.has_keys:
            return set()
        try:
            existing = await self._stored.commit(self._term.generation, writes, work.door_writes())
        except asyncio.CancelledError:
            _mark_doubtful(group)
            raise
        now_s = self._clock.monotonic_s()
        for door, (number, outcomes) in work.doors.items():
            self._doors[door] = NewestBatch(number, outcomes, now_s)
        gone = {write.poll for write in writes} - existing
        for key in [key for key in self._tallies if key[0] in gone] if gone else ():
            del self._tallies[key]
        return gone

    def _doubt(self, group: Iterable[_Pending]) -> None:
        """Forget what memory says of a group, and settle what the database says before anything else."""
        self._term.doubt()
        self._forget(group)

    def _forget(self, group: Iterable[_Pending]) -> None:
        """Forget what memory says of everything that a group touches: it is ahead of the database."""
        for pending in group:
            self._doors.pop(pending.batch.door, None)
            for each in pending.batch.groups:
                self._tallies.pop((each.poll, each.shard), None)

    async def _load(self, group: Sequence[_Pending]) -> None:
        """Read the tallies and doors of a group that are not in memory, and mark all of them as used."""
        now_s = self._clock.monotonic_s()
        doors = {pending.batch.door for pending in group}
        keys = {(each.poll, each.shard) for pending in group for each in pending.batch.groups}
        for used in (*(self._doors.get(door) for door in doors), *(self._tallies.get(key) for key in keys)):
            if used is not None:
                used.used_s = now_s
        strange = doors - self._doors.keys()
        if strange:
            found = await self._stored.find_doors(sorted(strange))
            for door in strange:
                number, packed = found.get(door, (0, b""))
                self._doors[door] = NewestBatch(number, unpack_outcomes(packed), now_s)
        missing = keys - self._tallies.keys()
        if missing:
            for key, stored in (await self._stored.load(sorted(missing))).items():
                self._tallies[key] = await self._restore(stored)

    async def _restore(self, stored: StoredTally) -> ShardTally:
        tally = Tally()
        for records in stored.records:
            if len(records) < _THREAD_BYTES:
                tally.load(records)
            else:
                await asyncio.to_thread(tally.load, records)
        tally.impressions = stored.impressions
        return ShardTally(tally, stored.newest, stored.loose, self._clock.monotonic_s())

    async def _merge(self, key: PollShard) -> None:
        """Make many small rows one, so that they stay few to load. Raises Fenced."""
        counted = self._tallies.get(key)
        if counted is None or counted.loose < MERGED_ROWS:
            return
        try:
            await self._stored.merge(self._term.generation, *key)
        except Unavailable as error:
            _log.warning("merge_failed", extra={"poll": key[0], "cause": error.log_text})
            self._tallies.pop(key, None)  # how many rows there are is read again with it
        else:
            counted.loose = 0

    def _alive(self, group: list[_Pending]) -> list[_Pending]:
        now_s = self._clock.monotonic_s()
        for pending in group:
            if pending.deadline_s <= now_s:
                _answer(pending.reply, too_late(is_doubtful=pending.is_doubtful))
        return [pending for pending in group if not pending.reply.done()]

    async def _sweep(self) -> None:
        """Forget what nobody has used for a while."""
        keys_s = self._clock.monotonic_s() + _KEYS_S
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self._clock.monotonic_s()
            idle = [key for key, each in self._tallies.items() if now_s - each.used_s > _IDLE_S]
            for key in idle:
                del self._tallies[key]
            silent = [door for door, each in self._doors.items() if now_s - each.used_s > _IDLE_S]
            for door in silent:
                del self._doors[door]
            is_due = self._keys_seen and now_s >= keys_s
            if silent or is_due:
                try:
                    await self._stored.forget_doors(_DOOR_S)
                    if is_due:
                        self._keys_seen, keys_s = False, now_s + _KEYS_S
                except Unavailable as error:
                    _log.info("doors_not_forgotten", extra={"cause": error.log_text})


def _without(gone: set[int], batch: VoteBatch, reply: BatchReply) -> BatchReply:
    """The reply, with nothing for polls that were deleted meanwhile."""
    if not gone or isinstance(reply, BrokerError):
        return reply
    pairs = zip(batch.groups, reply, strict=True)
    return tuple(None if group.poll in gone else outcomes for group, outcomes in pairs)


def _tell(outcomes: Outcomes) -> None:
    """Count what a batch has changed, for the metrics."""
    records = sum(len(each) for each in outcomes if each is not None)
    changed = sum(each.count(1) for each in outcomes if each is not None)
    VOTES.add("counted", amount=changed)
    VOTES.add("duplicate", amount=records - changed)


def _mark_doubtful(group: Iterable[_Pending]) -> None:
    for pending in group:
        pending.is_doubtful = True


def _answer(reply: asyncio.Future[BatchReply], value: BatchReply) -> None:
    if not reply.done():
        reply.set_result(value)
