"""One program owner: the writer, the topics in memory and the gateways that follow, without Ray.

An owner holds one slot of the pool. It takes the slot with a new generation, which excludes every earlier
owner of the slot from the database. When it finds itself excluded, by a write or by its check a few times a
second, it ends: `ended` returns, and its process should exit, so that callers find the successor. Where only
the placement has changed (`was_moved`), the same process may start another owner in its place.

For its life an owner acts on one placement (`broker.storage.placements`). What belongs to another owner by
that it answers with `Moved`, and looks at once whether there is a newer one.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from broker.actors.placement import slot_name
from broker.clock import Clock
from broker.concurrency.batch_queue import BatchLimits
from broker.concurrency.periodic import repeat
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.domain.placement import Placement
from broker.errors import BrokerError, NotFound, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.owners.channels import Channels
from broker.owners.commands import Command, CommandReply
from broker.owners.encoding import push_entry
from broker.owners.housekeeping import Housekeeping
from broker.owners.log import LogLimits
from broker.owners.moved import Moved
from broker.owners.placement import OWNER, owner_of
from broker.owners.protocol import PROGRAMS_CHANNEL, Cursor, Entry, Head, HistoryLost, program_topic
from broker.owners.sessions import POLL_WAIT_S, Follow, GatewaySession, GatewaySessions, PollReply
from broker.owners.tail import TailedChannel
from broker.owners.topics import Hold, ProgramTopic, Topic, Topics
from broker.owners.traced_publishes import TracedCommands
from broker.owners.writer import WRITER_LIMITS, Writer
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock
from broker.storage.fence import Fenced, connection_name, until_over
from broker.storage.history import History
from broker.storage.journal import Journal
from broker.storage.placements import Placements
from broker.storage.polls import Polls
from broker.storage.program_changes import ProgramOutbox
from broker.storage.programs import Programs
from broker.storage.statistics import Statistics
from broker.storage.statistics_recorder import Recorder
from broker.storage.stored_values import StoredValues
from broker.tracing.opening import open_tracer

_log = logging.getLogger(__name__)
LINGER_S = 30.0  # how long a topic stays in memory without followers
_SWEEP_S = 5.0
_WATCH_S = 0.25  # how soon an owner whose slot was taken notices without writing; a row by its key
_IDLE_WATCH_S = 1.0  # the same while nobody follows it
_HELD_S = 6.0  # since it has last seen that it has the slot; a look is late by itself, or fails once

FollowReply = Head | BrokerError


class Owner:
    """One program owner. `start` creates it; all methods belong to one event loop."""

    def __init__(
        self, settings: Settings, database: Database, index: int, standing: tuple[int, int],
        placement: Placement, clock: Clock, log_limits: LogLimits, writer_limits: BatchLimits,
    ) -> None:  # fmt: skip
        generation, restores = standing
        self._settings = settings
        self._database = database
        self._index = index
        self._placement = placement
        self._placements = Placements(database)
        self._asked_astray = asyncio.Event()
        self._clock = clock
        self._slot = slot_name(OWNER, index)
        order = asyncio.Lock()
        self._journal = Journal(database, self._slot)
        self._journal.placement = placement.version
        self._history = History(database)
        self._changes = ProgramOutbox(database, clock)
        self._topics = Topics(self._history, order, clock, log_limits, LINGER_S)
        self._stored_values = StoredValues(database)
        self._channels = Channels(
            self._changes,
            self._stored_values,
            Programs(database, clock),
            Polls(database),
            clock,
            log_limits,
            LINGER_S,
        )
        self._sessions = GatewaySessions(clock)
        ids = IdSource(clock)
        self._recorder = Recorder(Statistics(database), clock, ids) if settings.statistics else None
        self._writer = Writer(
            self._journal,
            generation,
            self._topics,
            order,
            clock,
            ids,
            writer_limits,
            self._recorder,
            self._slot,
        )
        self._housekeeping = Housekeeping(settings, database, clock)
        self._tracer = open_tracer(settings, self._slot, clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._held_s = clock.monotonic_s()  # when it had the slot for certain
        self._restores = restores

    @classmethod
    async def start(
        cls,
        settings: Settings,
        dsn: str,
        index: int,
        *,
        term: int | None = None,
        clock: Clock | None = None,
        log_limits: LogLimits | None = None,
        writer_limits: BatchLimits | None = None,
    ) -> "Owner":
        """Take slot `index`, in the `term` of a conductor, and begin. Raises Unavailable, as it is taken."""
        slot = slot_name(OWNER, index)
        database = await Database.open(
            dsn,
            size=settings.database_pool,
            timeout_s=settings.database_timeout_s,
            name=connection_name(slot),
        )
        try:
            journal = Journal(database, slot)
            generation = await journal.acquire(term)
            # After the generation: a change that this does not see counts it up.
            restores = (await journal.standing()).restores
            placement = (await Placements(database).read()).in_effect(settings.owners)
            database_clock = await DatabaseClock.open(database)
        except BaseException:
            await database.close()
            raise
        owner = cls(
            settings, database, index, (generation, restores), placement, clock or database_clock,
            log_limits or LogLimits(), writer_limits or WRITER_LIMITS,
        )  # fmt: skip
        database.on_loss(owner._doubt)
        database.on_connect(owner._channels.doubt)  # others write their rows; the writer compares by itself
        owner._tasks = [
            asyncio.create_task(owner._writer.run(), name="writer"),
            asyncio.create_task(owner._watch(), name="watch"),
            keep_running("sweep", lambda: repeat("sweep", _SWEEP_S, owner._sweep)),
            keep_running("clock", database_clock.run),
        ]
        if owner._recorder is not None:
            owner._tasks.append(keep_running("statistics", owner._recorder.run))
        if index == 0:
            owner._tasks.append(keep_running("purge", owner._housekeeping.run))
        owner._tasks.append(keep_running("placement", owner._note_placement))
        extra = {"slot": slot, "generation": generation, "placement": placement.version}
        _log.info("owner_started", extra=extra)
        return owner

    async def ended(self) -> None:
        """Return when the owner can go on no longer: it was shut out, or one of its tasks failed."""
        await until_over(self._tasks, self._slot)

    async def was_moved(self) -> bool:
        """Whether it has ended because the placement has changed, so that nobody else has its slot."""
        try:
            return await self._journal.was_moved(self._writer.generation)
        except Unavailable:
            return False

    def figures(self) -> Iterator[Sample]:
        """What the owner has to tell now."""
        yield from self._writer.figures()
        yield from self._database.figures()
        yield Sample(catalogue.TOPICS.name, (), len(self._topics))
        yield Sample(catalogue.FOLLOWERS.name, (), len(self._sessions))

    async def drain(self) -> None:
        """Refuse new commands with `Unavailable`; return when those that wait are answered."""
        await self._writer.drain()

    async def close(self) -> None:
        """End the tasks, the sessions and the connections; what waits is answered `Unavailable`."""
        await cancel_and_wait(*self._tasks)  # `ended` has reported those that failed
        await self._channels.close()
        self._sessions.close_all()
        if self._recorder is not None:
            await self._recorder.close()
        await self._database.close()
        if self._tracer is not None:
            await self._tracer.close()

    # -- publishing

    async def submit(self, commands: Sequence[Command], wait_s: float) -> list[CommandReply]:
        """Take commands in order; returns their answers when all are durable or refused.

        The commands are queued before the first await. Cancelling the call takes nothing back.
        """
        mine = commands
        if self._placement.owners > 1 or self._index:
            mine = [each for each in commands if self._has(program_topic(each.account, each.program_id))]
        traced = None if self._tracer is None else TracedCommands(mine, self._tracer, self._slot)
        call = self._writer.submit(mine if traced is None else traced.commands, wait_s)
        await call.done
        if traced is not None:
            traced.end(call.replies)
        if len(mine) == len(commands):
            return call.replies
        self._asked_astray.set()
        replies = {command.id: reply for command, reply in zip(mine, call.replies, strict=True)}
        moved = Moved.by(self._placement)
        return [replies.get(command.id, moved) for command in commands]

    def nudge(self, account: str, channel: str = PROGRAMS_CHANNEL) -> None:
        """The rows that the channel is told from have news."""
        self._channels.nudge(account, channel)

    # -- following

    async def open(self, name: str, follows: Sequence[Follow]) -> list[FollowReply]:
        """Begin a session again with everything that it follows."""
        session = self._sessions.open(name)
        return await self._follow(session, follows)

    async def follow(self, name: str, follows: Sequence[Follow]) -> list[FollowReply] | None:
        """Follow more topics; each reply is the head after which entries come, or an error.

        Returns:
            None when there is no such session: open it.
        """
        session = self._sessions.find(name)
        return None if session is None else await self._follow(session, follows)

    def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """Follow less; what is unknown is ignored."""
        session = self._sessions.find(name)
        if session is not None:
            for number in numbers:
                session.unfollow(number)

    async def poll(self, name: str, ack: int, wait_s: float = POLL_WAIT_S) -> PollReply | BrokerError | None:
        """Wait for news; see `broker.owners.sessions`. None when there is no such session."""
        session = self._sessions.find(name)
        if session is None:
            return None
        try:
            return await session.poll(ack, wait_s)
        except Unavailable as error:
            return error

    def leave(self, name: str) -> None:
        """End a session."""
        self._sessions.close(name)

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry] | BrokerError:
        """Read older pushes of a topic, from memory or the database. Returns errors as values."""
        try:
            return await self._read_history(topic, epoch, after_seq, limit)
        except BrokerError as error:
            return error

    def heads(self, topics: Sequence[str]) -> list[Head | None] | None:
        """Where programs' topics stand with everything that was acknowledged; None of those not in memory.

        Returns:
            None when that is not certain: another may have taken the slot, or a commit is in doubt.
        """
        if self._clock.monotonic_s() - self._held_s > _HELD_S or not self._writer.is_sure:
            return None
        return [self._topics.find_head(topic) for topic in topics]

    async def _follow(self, session: GatewaySession, follows: Sequence[Follow]) -> list[FollowReply]:
        with Hold() as hold:
            try:
                topics = await self._load([follow.topic for follow in follows], hold)
                await self._examine(follows, topics)
                follows = await self._locate(follows, topics)
            except Unavailable as error:
                return [error] * len(follows)
            if session.is_closed:
                # Meanwhile: it would wait in the topics, and nobody would take it out again.
                return [Unavailable("the session has ended", retry_after_s=1)] * len(follows)
            return [self._follow_topic(session, follow, topics.get(follow.topic)) for follow in follows]

    async def _examine(self, follows: Sequence[Follow], topics: Mapping[str, Topic]) -> None:
        """Look whether the database has what the followers have seen, and see to it where it has not.

        Raises Unavailable.
        """
        cursors = [
            (topic, follow.cursor)
            for follow in follows
            if follow.cursor is not None and isinstance(topic := topics.get(follow.topic), ProgramTopic)
        ]
        disputed = await self._topics.disputed(cursors)
        if disputed:
            await self._writer.examine(disputed)

    async def _locate(self, follows: Sequence[Follow], topics: Mapping[str, Topic]) -> list[Follow]:
        """The same, with the cursors of channels as these count here. Raises Unavailable."""
        located = []
        for follow in follows:
            topic = topics.get(follow.topic)
            if follow.cursor is not None and isinstance(topic, TailedChannel):
                follow = follow._replace(cursor=await topic.locate(follow.cursor))
            located.append(follow)
        return located

    def _follow_topic(self, session: GatewaySession, follow: Follow, topic: Topic | None) -> FollowReply:
        if not self._has(follow.topic):
            self._asked_astray.set()
            return Moved.by(self._placement)
        if topic is None:
            return NotFound("there is no such topic")
        if follow.strict and not self._reaches(topic.head(), follow.cursor):
            return _lost()
        return session.follow(follow, topic)

    def _reaches(self, head: Head, cursor: Cursor | None) -> bool:
        """Whether recovery goes from the cursor to the head."""
        if cursor is None:
            return True
        gap = head.seq - cursor.seq
        return cursor.epoch == head.epoch and 0 <= gap <= self._settings.history_events

    async def _load(self, names: Sequence[str], hold: Hold) -> dict[str, Topic]:
        """The topics of these names that exist, in memory while `hold` lasts."""
        topics: dict[str, Topic] = {}
        keys = []
        for name in filter(self._has, names):
            account, _, rest = name.partition("/")
            kind, _, id_ = rest.partition("/")
            if kind == "program":
                keys.append((account, id_))
            elif kind == "channel":
                channel = await self._channels.load(account, id_, hold)
                if channel is not None:
                    topics[name] = channel
        programs = await self._topics.load(keys, hold)
        topics.update({topic.name: topic for topic in programs.values()})
        return topics

    async def _read_history(self, name: str, epoch: str, after_seq: int, limit: int) -> list[Entry]:
        if not self._has(name):
            self._asked_astray.set()
            raise Moved.by(self._placement)
        with Hold() as hold:
            topic = (await self._load([name], hold)).get(name)
        if not isinstance(topic, ProgramTopic):
            raise NotFound("there is no such topic")
        head = topic.head()
        # One more than recovery tells: the message that the follower has seen last is compared.
        if head.epoch != epoch or head.seq - after_seq > self._settings.history_events + 1:
            raise _lost()
        pushes = await self._history.pushes(topic.uid, epoch, after_seq, head.seq, limit)
        oldest_ms = self._clock.now_ms() - int(self._settings.history_hours * 3_600_000)
        is_whole = len(pushes) == max(0, min(head.seq - after_seq, limit))
        if not is_whole or (pushes and pushes[0].accepted_ms < oldest_ms):
            raise _lost()
        return [push_entry(epoch, topic.key[1], push) for push in pushes]

    def _has(self, topic: str) -> bool:
        """Whether a topic is this owner's."""
        return owner_of(topic, self._placement.owners) == self._index

    # -- keeping house

    def _doubt(self) -> None:
        """The server of the database may be another one than before: it has lost a connection."""
        self._writer.doubt()
        self._channels.doubt()

    async def _watch(self) -> None:
        """Look for restores; raise Fenced when the slot has another owner, or the placement changed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S if self._topics else _IDLE_WATCH_S):
                    await self._asked_astray.wait()
            self._asked_astray.clear()
            began_s = self._clock.monotonic_s()
            try:
                newest, restores, version = await self._journal.standing()
            except Unavailable:
                continue
            if restores != self._restores:
                self._restores = restores
                self._doubt()
            if newest == self._writer.generation:
                self._held_s = began_s
            if newest < self._writer.generation:
                self._writer.doubt(is_forgotten=True)
            # asked after the query: the writer may have renewed meanwhile
            if newest > self._writer.generation and not self._writer.is_renewing:
                raise Fenced(self._slot)
            if version != self._placement.version:
                raise Fenced(self._slot)

    async def _note_placement(self) -> None:
        """Let those who wait for a change of the placement know that it has come here."""
        await self._placements.note(self._slot, self._writer.generation, self._placement.version)
        await asyncio.Event().wait()

    async def _sweep(self) -> None:
        self._topics.sweep()
        self._sessions.sweep()
        await self._channels.sweep()


def _lost() -> HistoryLost:
    return HistoryLost("the history does not reach back that far; read the events instead")
