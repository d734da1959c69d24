"""Gateways' long polls: who follows which topics, and up to which position.

A gateway has one *session* at an owner. It opens the session with all topics that it follows, each under a
number of its choice, and then polls. A poll waits until there is something to send and returns batches of
many topics. Each reply has a number, which the next poll acknowledges. If a reply is lost, the gateway asks
for it again and gets exactly the same one. Positions move when a reply is created.

An owner that was restarted, or that has dropped the session, does not know it: the poll returns None, and the
gateway opens a new session with its current cursors. An owner keeps nothing for gateways that are gone.

A number identifies one subscription to a topic, not the topic. If a gateway follows a topic again, it uses a
new number, so that entries that are still in flight under the old one can be recognised and dropped.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from broker.clock import Clock
from broker.errors import Unavailable
from broker.metrics.counts import HAND_OVER_SECONDS
from broker.owners.log import ENTRY_OVERHEAD_BYTES, Step
from broker.owners.protocol import Cursor, Entry, EntryKind, Head
from broker.owners.topics import Topic

POLL_WAIT_S = 20.0
"""How long a poll waits for news; the gateway's own patience must be longer."""
MAX_REPLY_ENTRIES = 10_000
MAX_REPLY_BYTES = 4 << 20
SESSION_LIFETIME_S = 60.0
"""How long a session lives without a poll."""


class Follow(NamedTuple):
    """One topic to follow, after `cursor`, or from its head on without one.

    `strict` refuses a cursor of another epoch, or behind the limits of recovery, with `HistoryLost`; without
    it the owner tells as much as it can, a reset at least.
    """

    number: int
    topic: str
    cursor: Cursor | None
    strict: bool = False


class EntryBatch(NamedTuple):
    """Entries of one following, and the cursor of who has taken them."""

    number: int
    epoch: str
    seq: int
    entries: list[Entry]


class PollReply(NamedTuple):
    """The reply of a poll; `number` is what the next poll acknowledges."""

    number: int
    batches: list[EntryBatch]


class Following:
    """One following: everything before `offset` of the topic's log has been told; None reads the database."""

    __slots__ = ("epoch", "number", "offset", "seq", "session", "topic")

    def __init__(self, session: "GatewaySession", follow: Follow, topic: Topic, offset: int | None) -> None:
        self.session = session
        self.number = follow.number
        self.topic = topic
        head = topic.head()
        cursor = follow.cursor or Cursor(head.epoch, head.seq)
        self.epoch, self.seq = cursor.epoch, cursor.seq
        if offset is None and (cursor.epoch, cursor.seq) == (head.epoch, head.seq):
            offset = topic.log.end
        self.offset = offset

    def wake(self) -> None:
        """Tell the session that there is something to read."""
        self.session.dirty[self.number] = self
        self.session.wake()


class GatewaySession:
    """One gateway at one owner."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.positions: dict[int, Following] = {}
        self.dirty: dict[int, Following] = {}
        self.news = asyncio.Event()
        self.used_s = clock.monotonic_s()
        self.is_closed = False
        self._clock = clock
        self._reply = PollReply(0, [])
        self._news_s = 0.0  # since when there is something to read
        self._reply_s = 0.0  # since when there was, of what the reply tells; 0 once that is acknowledged
        self._polling: asyncio.Task[PollReply] | None = None

    def wake(self) -> None:
        """There is something to read."""
        if not self.news.is_set():
            self._news_s = self._clock.monotonic_s()
            self.news.set()

    def follow(self, follow: Follow, topic: Topic, offset: int | None = None) -> Head:
        """Begin or begin again; returns the head after which entries will come.

        Args:
            offset: in the topic's log of what comes after the cursor, where that is known.
        """
        self.unfollow(follow.number)
        position = Following(self, follow, topic, offset)
        self.positions[follow.number] = position
        topic.waiters.add(position)
        if position.offset != topic.log.end:
            position.wake()
        head = topic.head()
        if follow.cursor is None:
            return head
        cursor = follow.cursor
        return Head(cursor.epoch, cursor.seq, head.attributes, cursor.id, head.uid)

    def unfollow(self, number: int) -> None:
        """Stop; unknown numbers are ignored."""
        position = self.positions.pop(number, None)
        self.dirty.pop(number, None)
        if position is not None:
            position.topic.waiters.discard(position)

    def close(self) -> None:
        """Leave all topics, for good, and end the poll."""
        self.is_closed = True
        for number in list(self.positions):
            self.unfollow(number)
        if self._polling is not None:
            self._polling.cancel()

    async def poll(self, ack: int, wait_s: float) -> PollReply:
        """Wait for news and answer them. A second poll ends the first: its caller has given it up.

        Raises:
            Unavailable: what has to be read back cannot be read now; poll again.
        """
        while self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        if ack < self._reply.number:
            return self._reply
        if self._reply_s:
            HAND_OVER_SECONDS.observe(self._clock.monotonic_s() - self._reply_s)
            self._reply_s = 0.0
        self._reply = PollReply(ack, [])
        polling = self._polling = asyncio.ensure_future(self._next(ack, wait_s))
        polling.add_done_callback(self._ended)
        try:
            return await polling
        except asyncio.CancelledError:
            if polling.cancelled() and not _is_cancelled_itself():
                return PollReply(ack, [])  # superseded, or the session was closed
            raise

    def _ended(self, polling: asyncio.Task[PollReply]) -> None:
        self.used_s = self._clock.monotonic_s()
        if self._polling is polling:
            self._polling = None

    async def _next(self, ack: int, wait_s: float) -> PollReply:
        end_s = self._clock.monotonic_s() + wait_s
        while True:
            self.used_s = self._clock.monotonic_s()
            self.news.clear()
            news_s = self._news_s
            batches = await self._collect()
            if batches:
                self._reply_s = news_s
                self._reply = PollReply(ack + 1, batches)
                return self._reply
            left_s = end_s - self._clock.monotonic_s()
            if left_s <= 0:
                return PollReply(ack, [])
            try:
                async with asyncio.timeout(left_s):
                    await self.news.wait()
            except TimeoutError:
                return PollReply(ack, [])

    async def _collect(self) -> list[EntryBatch]:
        """Read what can be told now.

        Positions move only at the end, so it may be cancelled while it reads.
        """
        read: list[tuple[Following, Sequence[Step], int | None]] = []
        room, room_bytes = MAX_REPLY_ENTRIES, MAX_REPLY_BYTES
        for position in list(self.dirty.values()):
            if room <= 0 or room_bytes <= 0:
                self.wake()
                break
            try:
                steps, offset = await self._read(position, room)
            except Unavailable:
                if not read:
                    raise
                break
            steps, offset = _cut(steps, offset, position, room_bytes)
            room -= len(steps)
            room_bytes -= sum(len(step.entry.params) + ENTRY_OVERHEAD_BYTES for step in steps)
            read.append((position, steps, offset))
        return [batch for batch in map(self._advance, read) if batch is not None]

    async def _read(self, position: Following, limit: int) -> tuple[Sequence[Step], int | None]:
        log = position.topic.log
        if position.offset is None or position.offset < log.first:
            return await position.topic.read_behind(position.epoch, position.seq, limit)
        steps = log.since(position.offset, limit)
        return steps, position.offset + len(steps)

    def _advance(self, read: tuple[Following, Sequence[Step], int | None]) -> EntryBatch | None:
        position, steps, offset = read
        if self.positions.get(position.number) is not position:
            return None  # left while we read
        position.offset = offset
        if steps:
            position.epoch, position.seq = steps[-1].epoch, steps[-1].seq
        if offset is not None and offset == position.topic.log.end:
            self.dirty.pop(position.number, None)
        else:
            # more to come: to the end of the line, so that no topic starves another
            self.dirty.pop(position.number, None)
            position.wake()
        if any(step.entry.kind == EntryKind.GONE for step in steps):
            self.unfollow(position.number)
        if not steps:
            return None
        return EntryBatch(position.number, position.epoch, position.seq, [step.entry for step in steps])


def _cut(
    steps: Sequence[Step], offset: int | None, position: Following, room_bytes: int
) -> tuple[Sequence[Step], int | None]:
    """At least one step, and no more than the room allows, with the offset that goes with them."""
    for index, step in enumerate(steps):
        room_bytes -= len(step.entry.params) + ENTRY_OVERHEAD_BYTES
        if room_bytes < 0 and index > 0:
            from_log = position.offset is not None and position.offset >= position.topic.log.first
            return steps[
                :index
            ], position.offset + index if from_log and position.offset is not None else None
    return steps, offset


def _is_cancelled_itself() -> bool:
    """Whether the running task was asked to end, not only the one that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class GatewaySessions:
    """All sessions of one owner."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, GatewaySession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, name: str) -> GatewaySession:
        """A new session; one of the same name ends."""
        self.close(name)
        session = self._sessions[name] = GatewaySession(name, self._clock)
        return session

    def find(self, name: str) -> GatewaySession | None:
        """The session, or None when it was never opened here or has ended."""
        return self._sessions.get(name)

    def all(self) -> list[GatewaySession]:
        """The sessions as they are now."""
        return list(self._sessions.values())

    def close(self, name: str) -> None:
        """End a session; an unknown one is ignored."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()

    def close_all(self) -> None:
        """End all sessions."""
        for name in list(self._sessions):
            self.close(name)

    def sweep(self) -> None:
        """End sessions that have not polled for long."""
        limit_s = self._clock.monotonic_s() - SESSION_LIFETIME_S
        for session in self.all():
            if session.used_s < limit_s:
                self.close(session.name)
