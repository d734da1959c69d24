"""One counter: the tallies of its shards, and how batches get into the database.

Batches are committed in groups (`broker.storage.group_commit`). A group is applied to the tallies in
memory, and what is new of it is stored with the totals and the senders' numbers in one statement. Only then
are the senders answered.

When a commit fails, memory is ahead of the database or the database ahead of memory; nobody knows which.
The counter then drops the tallies that it touched and all senders, and reads them from the database again
once nothing is in doubt there; a batch that was committed is recognised by its sender and number. The same
happens when the database turns out to have lost commits. A group writes nothing for a tally that it does not
change, such as one that gets only repeated votes. Such a group first checks that the database still has the
tally's newest row: else a vote that a failover has lost would be acknowledged and never counted.

Bounds: those of the group commit, and the time that an unused tally stays in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker._native import Tally
from broker.clock import Clock, SystemClock
from broker.concurrency.batch_queue import BatchLimits
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.errors import BrokerError, Unavailable
from broker.metrics import catalogue
from broker.metrics.counts import LOSSES, VOTES, Sample
from broker.settings import Settings
from broker.storage.answer_log import MERGED_ROWS, AnswerLog, RecordsLost, Sealed, StoredTally
from broker.storage.database import Database
from broker.storage.fence import GenerationLost, Term, connection_name, until_over
from broker.storage.group_commit import GroupCommit, Pending, Refusals
from broker.voting.counting.batches import BatchReply, Outcomes, VoteBatch, unpack_outcomes
from broker.voting.counting.work import LATE, NewestBatch, PollShard, ShardTally, Work

COUNTER_LIMITS = BatchLimits(batch_size=4 << 20, queue_size=64 << 20, queue_items=20_000)
"""Of the queue and of one group, in bytes and batches."""

_REFUSALS = Refusals(closed=LATE, full=LATE, late=LATE, failed="the votes could not be counted")
_IDLE_S = 900.0  # how long a tally stays in memory that nobody counts in
_SENDER_S = 3_600.0  # far longer than any sender tries again
_SWEEP_S = 60.0
_WATCH_S = 4.0  # how soon votes are counted by what was restored
_KEYS_S = 3_600.0  # between deletions of keys, which go through all of them
_THREAD_BYTES = 1 << 20  # records that take longer to load than others should wait

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pending(Pending):
    batch: VoteBatch
    reply: asyncio.Future[BatchReply]


class Counter:
    """One counter. `start` creates it; all methods belong to one event loop."""

    def __init__(
        self, database: Database, slot: str, generation: int, clock: Clock, limits: BatchLimits
    ) -> None:
        self._database = database
        self._slot = slot
        self._stored = AnswerLog(database, slot)
        self._term = Term(self._stored, generation)
        self._clock = clock
        self._commits: GroupCommit[_Pending, BatchReply] = GroupCommit(
            self, self._term, clock, limits, _REFUSALS, name="counting", slot=slot
        )
        self._tallies: dict[PollShard, ShardTally] = {}
        self._senders: dict[str, NewestBatch] = {}
        self._grown: set[PollShard] = set()  # with new rows, which may have become many
        self._keys_seen = True  # of an earlier life, perhaps
        self._tasks: list[asyncio.Task[None]] = []
        self._restores = 0
        self._is_stale = False  # somebody else may have written since the tallies were read

    @classmethod
    async def start(
        cls,
        settings: Settings,
        dsn: str,
        slot: str,
        *,
        term: int | None = None,
        clock: Clock | None = None,
        limits: BatchLimits | None = None,
    ) -> "Counter":
        """Take the slot, in the `term` of a conductor, and begin. Raises Unavailable, as it is taken."""
        database = await Database.open(
            dsn, size=2, timeout_s=settings.database_timeout_s, name=connection_name(slot)
        )
        try:
            log = AnswerLog(database, slot)
            generation = await log.acquire(term)
            restores = (await log.standing()).restores
        except BaseException:
            await database.close()
            raise
        counter = cls(database, slot, generation, clock or SystemClock(), limits or COUNTER_LIMITS)
        counter._restores = restores
        counter._tasks = [
            asyncio.create_task(counter._commits.run(), name="counting"),
            keep_running("sweep", counter._sweep),
            keep_running("watch", counter._watch),
        ]
        _log.info("counter_started", extra={"slot": slot, "generation": generation})
        return counter

    async def submit(self, batch: VoteBatch, wait_s: float) -> BatchReply:
        """Count a batch; what it answers is durable. Errors are values. Cancelling takes nothing back."""
        reply: asyncio.Future[BatchReply] = asyncio.get_running_loop().create_future()
        self._commits.add(_Pending(batch.size_bytes, self._clock.monotonic_s() + wait_s, batch, reply))
        return await reply

    async def ended(self) -> None:
        """Return when the counter can go on no longer: it was shut out, or one of its tasks failed."""
        await until_over(self._tasks, self._slot)

    async def was_moved(self) -> bool:
        """Never: the number of counters does not change."""
        return False

    def figures(self) -> Iterator[Sample]:
        """What the counter has to tell now."""
        yield from self._commits.figures()
        yield Sample(catalogue.TALLIES.name, (), len(self._tallies))
        yield from self._database.figures()

    async def drain(self) -> None:
        """Refuse new batches; return when those that wait are answered."""
        await self._commits.drain()

    async def close(self) -> None:
        """End the tasks and the connections; what waits is answered `Unavailable` or `OutcomeUnknown`."""
        await cancel_and_wait(*self._tasks)  # `ended` has reported those that failed
        await self._database.close()

    # -- what the group commit asks of it; see `GroupWork`

    is_unsettled = False

    def admission(self) -> Callable[[_Pending], bool]:
        """Lets at most one batch of a sender into a group."""
        senders: set[str] = set()

        def admits(pending: _Pending) -> bool:
            sender = pending.batch.sender
            is_new = sender not in senders
            senders.add(sender)
            return is_new

        return admits

    async def settle(self, group: Sequence[_Pending], /) -> None:
        """Read the tallies and senders of a group that are not in memory. Raises Fenced, Unavailable."""
        if self._is_stale:
            self._is_stale = False
            self._tallies.clear()
            self._grown.clear()
        while self._grown:
            await self._merge(self._grown.pop())
        await self._load(group)

    async def commit(
        self, generation: int, group: Sequence[_Pending], earlier: Sequence[Exception]
    ) -> list[BatchReply]:
        """Count a group, and store what it changed. Memory is ahead of the database meanwhile."""
        sealed = frozenset[int]().union(*(error.polls for error in earlier if isinstance(error, Sealed)))
        work = Work(self._tallies, self._senders, sealed)
        replies = [work.count(pending.batch) for pending in group]
        gone = await self._store(group, work, generation)
        for _, outcomes in work.senders.values():  # without batches that were counted before
            _tell(outcomes)
        for pending in group:
            if pending.batch.has_key:  # seldom repeated; then its row is read
                self._senders.pop(pending.batch.sender, None)
                self._keys_seen = True
        self._grown |= work.news.keys()
        return [_without(gone, each.batch, reply) for each, reply in zip(group, replies, strict=True)]

    def forget(self, group: Sequence[_Pending]) -> None:
        """Forget what memory says of everything that a group touches."""
        for pending in group:
            self._senders.pop(pending.batch.sender, None)
            for each in pending.batch.groups:
                self._tallies.pop((each.poll, each.shard), None)

    def answer(self, pending: _Pending, reply: BatchReply) -> None:
        """Give the reply to the sender."""
        if not pending.reply.done():
            pending.reply.set_result(reply)

    # -- how a group is counted

    def _unchanged(self, group: Sequence[_Pending], work: Work) -> list[tuple[int, int, int]]:
        """The newest row of each shard with rows that a group asks for and does not change."""
        keys = {(each.poll, each.shard) for pending in group for each in pending.batch.groups}
        known = ((key, self._tallies.get(key)) for key in keys - work.news.keys())
        return [(*key, counted.newest) for key, counted in known if counted is not None and counted.newest]

    async def _store(self, group: Sequence[_Pending], work: Work, generation: int) -> set[int]:
        """Make durable what a group changed; returns the polls that are gone. Raises Fenced, Unavailable."""
        try:
            return await self._try_store(group, work, generation)
        except Unavailable as error:
            self._is_stale |= isinstance(error, GenerationLost)
            # The database may lack commits of batches that are in no tally any more, once this is read again:
            # such a batch, when its sender repeats it, must not be answered from memory.
            self._senders.clear()
            raise

    async def _try_store(self, group: Sequence[_Pending], work: Work, generation: int) -> set[int]:
        writes = work.writes()
        try:
            if unchanged := self._unchanged(group, work):
                await self._stored.require(generation, unchanged)
            if not writes and not work.has_keys:
                return set()
            existing = await self._stored.commit(generation, writes, work.sender_writes())
        except RecordsLost:
            _log.error("answers_lost", extra={"slot": self._slot, "polls": len(writes) + len(unchanged)})
            LOSSES.add()
            raise Unavailable(LATE, retry_after_s=1, log_text="records_lost") from None
        now_s = self._clock.monotonic_s()
        for sender, (number, outcomes) in work.senders.items():
            self._senders[sender] = NewestBatch(number, outcomes, now_s)
        gone = {write.poll for write in writes} - existing
        for key in [key for key in self._tallies if key[0] in gone] if gone else ():
            del self._tallies[key]
        return gone

    async def _load(self, group: Sequence[_Pending]) -> None:
        """Read the tallies and senders of a group that are not in memory, and mark all of them as used."""
        now_s = self._clock.monotonic_s()
        senders = {pending.batch.sender for pending in group}
        keys = {(each.poll, each.shard) for pending in group for each in pending.batch.groups}
        for used in (
            *(self._senders.get(sender) for sender in senders),
            *(self._tallies.get(key) for key in keys),
        ):
            if used is not None:
                used.used_s = now_s
        strange = senders - self._senders.keys()
        if strange:
            found = await self._stored.find_senders(sorted(strange))
            for sender in strange:
                number, packed = found.get(sender, (0, b""))
                self._senders[sender] = NewestBatch(number, unpack_outcomes(packed), now_s)
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

    async def _watch(self) -> None:
        """Notice restores: a group without new votes writes nothing, and so would not."""
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                restores = (await self._stored.standing()).restores
            except Unavailable:
                continue
            self._is_stale |= restores != self._restores
            self._restores = restores

    async def _sweep(self) -> None:
        """Forget what nobody has used for a while."""
        keys_s = self._clock.monotonic_s() + _KEYS_S
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self._clock.monotonic_s()
            idle = [key for key, each in self._tallies.items() if now_s - each.used_s > _IDLE_S]
            for key in idle:
                del self._tallies[key]
            silent = [sender for sender, each in self._senders.items() if now_s - each.used_s > _IDLE_S]
            for sender in silent:
                del self._senders[sender]
            is_due = self._keys_seen and now_s >= keys_s
            if silent or is_due:
                try:
                    await self._stored.forget_senders(_SENDER_S)
                    if is_due:
                        self._keys_seen, keys_s = False, now_s + _KEYS_S
                except Unavailable as error:
                    _log.info("senders_not_forgotten", extra={"cause": error.log_text})


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
