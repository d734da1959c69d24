"""A relay: feeds other gateways in place of the owners, from what it follows itself.

It follows by a feed of its own, and always owners, so there is one tier and no cycle, whatever gateways
think of each other. Who follows it has sessions as at an owner (`broker.owners.sessions`): the same calls,
numbers, replies and acknowledgements, and entries in the owner's order.

A relay knows what it has in memory, and no more. It goes on from a cursor only where its log has the
message that the cursor names, under the same epoch and `seq`, or where it stands there itself. So nobody
gets from a relay what a former owner has told after what the next one tells: who has heard the next one is
ahead of the relay, or names another message. A cursor that the relay does not know is for the owner, and so
is a follower that falls behind its log: it answers `Unavailable`, or ends the session, and the follower
goes on at the owner. Histories, commands and votes never come here.

While an owner is exchanged, the sessions here stay: the relay goes on at the next owner from its own
cursor, and its followers get one stream. Where an owner cannot be reached for longer, perhaps only from
here, the sessions with its topics end.
"""

import asyncio
from collections.abc import Sequence

from broker.actors.link import Link
from broker.clock import Clock
from broker.concurrency.periodic import Periodic
from broker.concurrency.single_flight import SingleFlight
from broker.errors import BrokerError, Unavailable
from broker.ids import IdSource
from broker.owners.encoding import parse_attributes, told_id
from broker.owners.known_placement import KnownPlacement
from broker.owners.linked_feed import LinkedFeed
from broker.owners.log import Log, LogLimits, Step
from broker.owners.protocol import Cursor, Entry, EntryKind, Head, HistoryLost, is_channel
from broker.owners.sessions import POLL_WAIT_S, Follow, GatewaySession, GatewaySessions, PollReply
from broker.owners.topics import Hold, Waiter
from broker.settings import Settings

LINGER_S = 30.0  # how long a topic is followed without followers
_MOST_SESSIONS = 1_000  # at 27 µs each an event is 27 ms late for the last one; the owner does it as well
_FOLLOW_S = 3.0  # for an owner that is being exchanged; the follower asks it itself then
_LOOK_S = 1.0
_SWEEP_S = 5.0
_LOST_S = 5.0  # without an answer of an owner; one that is exchanged is there again sooner


class RelayTopic:
    """A topic as its followers get it from here, after the cursor at which the relay began with it."""

    def __init__(self, name: str, head: Head, clock: Clock, limits: LogLimits) -> None:
        self.name = name
        self.log = Log(limits)
        self.waiters: set[Waiter] = set()
        self.idle_since_s = clock.monotonic_s()
        self._clock = clock
        self._cursor = Cursor(head.epoch, head.seq, head.id, head.uid)
        self._attributes = head.attributes

    def head(self) -> Head:
        """Where it stands here."""
        cursor = self._cursor
        return Head(cursor.epoch, cursor.seq, self._attributes, cursor.id, cursor.uid)

    def append(self, entries: Sequence[Entry], cursor: Cursor | None) -> None:
        """Add what has come from the owner.

        Args:
            cursor: of who has taken it; None where nothing comes after it. A channel's entries have no
                numbers, so all of them get the last one's: who breaks off between them names a message that
                is not there under that number, and is told `resumed` by the owner.
        """
        cursor = cursor or self._cursor
        for entry in entries:
            if entry.kind == EntryKind.ATTRIBUTES:
                self._attributes = parse_attributes(entry.params)
            epoch, seq = (cursor.epoch, cursor.seq) if is_channel(self.name) else (entry.epoch, entry.seq)
            self.log.append(Step(entry, epoch, seq, self._clock.monotonic_s()))
        self._cursor = cursor
        for waiter in self.waiters:
            waiter.wake()

    def find(self, cursor: Cursor) -> int | None:
        """The offset in the log of what comes after a follower's cursor; None where that is not known."""
        here, steps = self._cursor, self.log.kept()
        if not _may_be_same(cursor.uid, here.uid):
            return None
        if (cursor.epoch, cursor.seq) == (here.epoch, here.seq):
            return self.log.end if _may_be_same(cursor.id, here.id) else None
        for index in reversed(range(len(steps))):
            if (steps[index].epoch, steps[index].seq) == (cursor.epoch, cursor.seq):
                is_told = _may_be_same(cursor.id, self._id_at(index))
                return self.log.first + index + 1 if is_told else None
        return None

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """Raises Unavailable: the follower is behind the log, and there is nothing else to read."""
        del epoch, seq, limit
        raise Unavailable("the relay does not reach back that far", retry_after_s=1)

    def _id_at(self, index: int) -> str:
        """The id in the cursor of who has taken the log up to here; empty when that was dropped."""
        for step in reversed(self.log.kept()[: index + 1]):
            id_ = told_id(step.entry)
            if id_ is not None:
                return id_
        return ""


class Relay:
    """Whom other gateways may follow; `close` it on the loop on which it was made."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        links: Sequence[Link] = (),
        *,
        placement: KnownPlacement | None = None,
        limits: LogLimits | None = None,
    ) -> None:
        """Follow nothing yet. `links` and `placement` are as of a `LinkedFeed`."""
        self._clock = clock
        self._limits = limits or LogLimits()
        self._feed = LinkedFeed(settings, clock, ids, self._take, links, placement=placement, gives_all=True)
        self._topics: dict[str, RelayTopic] = {}
        self._opening: SingleFlight[str, RelayTopic] = SingleFlight()
        self._sessions = GatewaySessions(clock)
        self._rounds = [
            Periodic("relay", _LOOK_S, self.look),
            Periodic("relay sweep", _SWEEP_S, self.sweep),
        ]
        for each in self._rounds:
            each.start()

    @property
    def sessions(self) -> int:
        """How many there are; a gateway has one for each owner whose topics it follows."""
        return len(self._sessions)

    async def close(self) -> None:
        """End all sessions, and follow nothing more."""
        for each in self._rounds:
            await each.stop()
        self._sessions.close_all()
        await self._opening.close()
        await self._feed.close()

    # -- what followers ask; see `broker.owners.calls.SessionCalls`

    async def open(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | BrokerError:
        """Begin a session again with everything that it follows."""
        if len(self._sessions) >= _MOST_SESSIONS and self._sessions.find(name) is None:
            return Unavailable("too many follow this relay", retry_after_s=1)
        return await self._follow(self._sessions.open(name), follows)

    async def follow(self, name: str, follows: Sequence[Follow]) -> list[Head | BrokerError] | None:
        """Follow more topics; each reply is the head after which entries come, or an error.

        Returns:
            None when there is no such session: open it.
        """
        session = self._sessions.find(name)
        return None if session is None else await self._follow(session, follows)

    async def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """Follow less; what is unknown is ignored."""
        session = self._sessions.find(name)
        if session is not None:
            for number in numbers:
                session.unfollow(number)

    async def poll(self, name: str, ack: int) -> PollReply | BrokerError | None:
        """Wait for news; None when there is no such session, or the follower has fallen too far behind."""
        session = self._sessions.find(name)
        if session is None:
            return None
        try:
            return await session.poll(ack, POLL_WAIT_S)
        except Unavailable:
            self._sessions.close(name)
            return None

    async def leave(self, name: str) -> None:
        """End a session."""
        self._sessions.close(name)

    # -- keeping house

    async def look(self) -> None:
        """End the sessions with topics whose owner has not answered for long."""
        await self._feed.touch()
        if any(self._is_lost(name) for name in self._topics):
            for session in self._sessions.all():
                if any(self._is_lost(position.topic.name) for position in session.positions.values()):
                    self._sessions.close(session.name)

    async def sweep(self) -> None:
        """Forget old entries, sessions that are gone, and topics that nobody has followed for a while."""
        self._sessions.sweep()
        now_s = self._clock.monotonic_s()
        for name, topic in list(self._topics.items()):
            topic.log.trim(now_s)
            if topic.waiters:
                topic.idle_since_s = now_s
            elif now_s - topic.idle_since_s >= LINGER_S:
                del self._topics[name]
                await self._feed.unfollow(name)

    # -- the inside

    async def _follow(self, session: GatewaySession, follows: Sequence[Follow]) -> list[Head | BrokerError]:
        with Hold() as hold:
            topics = await asyncio.gather(*(self._load(follow, hold) for follow in follows))
            if session.is_closed:  # meanwhile: nobody would take it out of the topics again
                return [Unavailable("the session has ended", retry_after_s=1)] * len(follows)
            return [
                topic if isinstance(topic, BrokerError) else self._follow_topic(session, follow, topic)
                for follow, topic in zip(follows, topics, strict=True)
            ]

    def _follow_topic(self, session: GatewaySession, follow: Follow, topic: RelayTopic) -> Head | BrokerError:
        if self._topics.get(topic.name) is not topic:
            return Unavailable("the topic has ended meanwhile", retry_after_s=1)
        if self._is_lost(topic.name):
            return Unavailable("the relay does not reach the owner", retry_after_s=1)
        offset = topic.log.end if follow.cursor is None else topic.find(follow.cursor)
        if offset is None:
            return Unavailable("the relay does not know this cursor", retry_after_s=1)
        return session.follow(follow, topic, offset)

    async def _load(self, follow: Follow, hold: Hold) -> RelayTopic | BrokerError:
        """The topic, followed at its owner if need be."""
        topic = self._topics.get(follow.topic)
        try:
            if topic is None:
                async with asyncio.timeout(_FOLLOW_S):
                    topic = await self._opening.run(
                        follow.topic, lambda: self._open(follow.topic, follow.cursor)
                    )
        except TimeoutError:
            return Unavailable("the relay does not reach the owner", retry_after_s=1)
        except BrokerError as error:
            return error
        hold.keep(topic)
        return topic

    async def _open(self, name: str, cursor: Cursor | None) -> RelayTopic:
        """Follow a topic from the first follower's cursor on, or where that is too old, from its head."""
        try:
            head = await self._feed.follow(name, cursor)
        except HistoryLost:
            head = await self._feed.follow(name)
        topic = self._topics[name] = RelayTopic(name, head, self._clock, self._limits)
        return topic

    def _take(self, name: str, entries: Sequence[Entry]) -> None:
        """The sink of the feed."""
        topic = self._topics.get(name)
        if topic is None:
            return
        if entries[-1].kind == EntryKind.GONE:
            del self._topics[name]  # one that is made later under its name is another
        topic.append(entries, self._feed.position(name))

    def _is_lost(self, name: str) -> bool:
        return self._feed.silent_s(name) >= _LOST_S


def _may_be_same(one: object, other: object) -> bool:
    """Whether two names may be of the same, as far as they are known: 0 and empty are not."""
    return one == other or not one or not other
