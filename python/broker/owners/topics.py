"""Topics in memory: the source of pushes for followers.

A topic is in memory while it has followers, and for some time after. It holds the head of the topic, as in
the database, and a `Log` of recent entries. The writer holds the lock `order` during each commit and the
following append; topics are loaded under the same lock. So whenever the lock is free, memory agrees with the
database.

A database that was restored, or a standby that was promoted too early, may be behind memory or differ from
it. No number may be used twice, so the writer then begins a new epoch (`ProgramTopic.resync`,
`broker.owners.writer`), and followers receive `historyReplaced` with its reset. A gateway may know more than
an owner that was started since: `disputed` finds those of its cursors that do not continue in the database.

A follower whose position is before the first entry of the log is served from the database by `read_behind`,
up to the head at the time of the read, and from there on from the log.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self

from broker.clock import Clock
from broker.domain.history import HeadRow, ProgramKey, PushRow
from broker.owners.encoding import (
    attributes_entry,
    attributes_of,
    gone_entry,
    message_id,
    parse_attributes,
    push_entry,
    reset_entry,
)
from broker.owners.log import Log, LogLimits, Step
from broker.owners.protocol import Cursor, Entry, EntryKind, Head, program_topic
from broker.storage.history import History

_RESYNC_PAGE = 10_000  # pushes a query

Begun = Mapping[ProgramKey, Collection[str]]
"""The epochs that a program may have turned to since it was last looked at: the writer of it has tried to."""


class Waiter(Protocol):
    """A subscriber of a topic."""

    def wake(self) -> None:
        """Hear that there is something to read."""


class Hold:
    """Keeps topics in memory between their loading and their following, whatever is awaited meanwhile.

    To a topic it is one more follower, which no sweep overlooks.
    """

    def __init__(self) -> None:
        self._held: list[Topic] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for topic in self._held:
            topic.waiters.discard(self)

    def keep(self, topic: "Topic") -> None:
        """Keep a topic until the block ends."""
        topic.waiters.add(self)
        self._held.append(topic)

    def wake(self) -> None:
        """Do nothing: this waiter reads no pushes."""


class Topic(Protocol):
    """What sessions need of a topic."""

    name: str
    log: Log
    waiters: set[Waiter]
    idle_since_s: float

    def head(self) -> Head:
        """Where the topic stands."""

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """About `limit` steps after a cursor, and the offset from which the log goes on after them.

        The offset is None while there is more to read, or when nothing can be read until the log moves.
        """


class ProgramTopic:
    """The topic of one program."""

    def __init__(
        self, key: ProgramKey, head: HeadRow, history: History, order: asyncio.Lock, clock: Clock,
        limits: LogLimits,
    ) -> None:  # fmt: skip
        self.name = program_topic(*key)
        self.key = key
        self.log = Log(limits)
        self.waiters: set[Waiter] = set()
        self.idle_since_s = clock.monotonic_s()
        self.uid = head.uid
        self.epoch, self.seq, self.base = head.epoch, head.seq, head.base
        self.attributes = attributes_of(head)
        self.reset = self._reset_of(head)
        self.gone: Entry | None = None
        self._loaded_id = head.id
        self._newest: Entry | None = None  # push that was appended to the epoch
        self._history = history
        self._order = order
        self._clock = clock

    @property
    def id(self) -> str:
        """The id of the message at `seq`, empty where it is not known."""
        return self._loaded_id if self._newest is None else message_id(self._newest.params)

    def head(self) -> Head:
        """Epoch, `seq` and id of the latest push."""
        return Head(self.epoch, self.seq, self.attributes, self.id, self.uid)

    def cursor(self) -> Cursor:
        """The cursor of who has everything."""
        return Cursor(self.epoch, self.seq, self.id, self.uid)

    def agrees(self, cursor: Cursor) -> bool | None:
        """Whether a follower's cursor leads to here; None when the id that it names is in the database only.

        One of another epoch does, as far as can be said, unless this program has not had another one.
        """
        if cursor.epoch != self.epoch:
            return self.gone is not None or cursor.uid != self.uid or self.reset is not None
        if cursor.seq >= self.seq or not cursor.id:
            return cursor.seq < self.seq or (cursor.seq == self.seq and _are_same(cursor.id, self.id))
        push = self.log.find_push(cursor.epoch, cursor.seq)
        return None if push is None else message_id(push.params) == cursor.id

    def append(self, entries: Sequence[Entry]) -> bool:
        """Add what was committed; entries that are here already are left out.

        Returns:
            False when something is missing before them: `Topics.resync` must read it.
        """
        for entry in entries:
            if entry.kind == EntryKind.PUSH:
                if entry.epoch != self.epoch or entry.seq > self.seq + 1:
                    return False
                if entry.seq <= self.seq:
                    continue
                self.seq, self._newest = entry.seq, entry
            elif entry.kind == EntryKind.RESET:
                if entry.epoch == self.epoch and entry.seq <= self.seq:
                    continue
                self.epoch, self.seq, self.base, self.reset = entry.epoch, entry.seq, entry.seq, entry
                self._loaded_id, self._newest = "", None
            elif entry.kind == EntryKind.ATTRIBUTES:
                self.attributes = parse_attributes(entry.params)
            elif entry.kind == EntryKind.GONE:
                self.gone = entry
            self.log.append(self._step(entry))
        for waiter in self.waiters:
            waiter.wake()
        return True

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """Pushes after `seq`, from the database. Raises Unavailable."""
        read = await self._try_behind(epoch, seq, limit)
        if read is not None:
            return read
        # The database has moved to an epoch that is not in memory yet; under the lock both agree.
        async with self._order:
            read = await self._try_behind(epoch, seq, limit)
            if read is not None:
                return read
            # Recovery no longer reaches back that far: only the events themselves tell it all.
            entry = reset_entry(self.key[1], self.epoch, "imported", self.seq, 0)
            return [self._step(entry)], self.log.end

    async def _try_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None] | None:
        """As `read_behind`; None when pushes are missing in the database."""
        end, head = self.log.end, self.head()
        if self.gone is not None:
            return [self._step(self.gone)], end
        steps = []
        if epoch != head.epoch:
            if self.reset is None:
                # made again under the same id: for who followed the former program it has ended
                gone = gone_entry(self.key[1], epoch, seq)
                return [self._step(gone)], end
            steps.append(self._step(self.reset))
            seq = self.base
        pushes = await self._read(head.epoch, seq, head.seq, limit)
        if not _is_contiguous(pushes, seq, head.seq, limit):
            return None
        steps += [self._step(push_entry(head.epoch, self.key[1], push)) for push in pushes]
        if pushes and pushes[-1].seq < head.seq:
            return steps, None
        steps.append(self._step(attributes_entry(head.epoch, head.seq, head.attributes)))
        return steps, end

    async def _read(self, epoch: str, after_seq: int, upto_seq: int, limit: int) -> list[PushRow]:
        if after_seq >= upto_seq:
            return []
        return await self._history.pushes(self.uid, epoch, after_seq, upto_seq, limit)

    async def resync(self, head: HeadRow | None, begun: Collection[str] = ()) -> bool:
        """Append what the database has and memory has not. Only under the lock. Raises Unavailable.

        Returns:
            False when the database lacks what memory has told; then nothing was done.
        """
        program_id = self.key[1]
        if head is None or head.uid != self.uid:
            self.append([gone_entry(program_id, self.epoch, self.seq)])
            return True
        if not continues(head, self.cursor(), begun) or not await self._is_told(head):
            return False
        if head.epoch != self.epoch:
            reset = self._reset_of(head)
            assert reset is not None  # an epoch that a writer began has its reset
            self.append([reset])
        while self.seq < head.seq:
            pushes = await self._read(head.epoch, self.seq, head.seq, _RESYNC_PAGE)
            if not self.append([push_entry(head.epoch, program_id, push) for push in pushes]) or not pushes:
                # They are gone from the database: the topic goes on after them.
                self.append([reset_entry(program_id, head.epoch, "imported", head.seq, 0)])
        attributes = attributes_of(head)
        if attributes != self.attributes:
            self.append([attributes_entry(self.epoch, self.seq, attributes)])
        return True

    async def _is_told(self, head: HeadRow) -> bool:
        """Whether a head that is further on comes after what was told, and not after others of its numbers.

        Those were written by an older owner that hung until the database had forgotten its successor.
        """
        if head.epoch != self.epoch or head.seq <= self.seq:
            return True
        ids = await self._history.message_ids({(self.uid, self.epoch, self.seq)})
        return _are_same(self.id, ids.get((self.uid, self.seq), ""))

    def _reset_of(self, head: HeadRow) -> Entry | None:
        if head.reason == "created":
            return None
        return reset_entry(self.key[1], head.epoch, head.reason, head.base, head.deleted)

    def _step(self, entry: Entry) -> Step:
        return Step(entry, entry.epoch, entry.seq, self._clock.monotonic_s())


class Topics:
    """All program topics of one owner that are in memory."""

    def __init__(
        self, history: History, order: asyncio.Lock, clock: Clock, limits: LogLimits, linger_s: float
    ) -> None:
        self._history = history
        self._order = order
        self._clock = clock
        self._limits = limits
        self._linger_s = linger_s
        self._topics: dict[ProgramKey, ProgramTopic] = {}

    def __len__(self) -> int:
        return len(self._topics)

    async def load(self, keys: Collection[ProgramKey], hold: Hold) -> dict[ProgramKey, ProgramTopic]:
        """The topics of the programs that exist, read where they are not in memory. Raises Unavailable.

        What the reply lacks, the database does not have: `hold` keeps the others, while this reads too.
        """
        for key in keys:
            if key in self._topics:
                hold.keep(self._topics[key])
        if any(key not in self._topics for key in keys):
            async with self._order:
                missing = [key for key in keys if key not in self._topics]
                for key in set(keys).difference(missing):
                    hold.keep(self._topics[key])  # another load, which may be over, has brought it meanwhile
                heads = await self._history.heads(missing) if missing else {}
                for key, head in heads.items():
                    topic = ProgramTopic(key, head, self._history, self._order, self._clock, self._limits)
                    self._topics[key] = topic
                    hold.keep(topic)
        return {key: self._topics[key] for key in keys if key in self._topics}

    def append(self, entries: dict[ProgramKey, list[Entry]]) -> set[ProgramKey]:
        """Hand out what was committed; returns the topics that miss something. Only under the lock."""
        stale = set()
        for key, added in entries.items():
            topic = self._topics.get(key)
            if topic is None:
                continue
            if not topic.append(added):
                stale.add(key)
            if topic.gone is not None:
                del self._topics[key]
        return stale

    def keys(self) -> set[ProgramKey]:
        """The programs whose topics are in memory."""
        return set(self._topics)

    def find_head(self, name: str) -> Head | None:
        """Where the topic of this name stands; None when it is not in memory."""
        account, _, rest = name.partition("/")
        topic = self._topics.get((account, rest.removeprefix("program/")))
        return None if topic is None or topic.name != name else topic.head()

    def find_cursor(self, key: ProgramKey) -> Cursor | None:
        """Where followers of a program stand that have everything; None when its topic is not in memory."""
        topic = self._topics.get(key)
        return None if topic is None else topic.cursor()

    async def disputed(
        self, cursors: Collection[tuple[ProgramTopic, Cursor]]
    ) -> dict[ProgramKey, list[Cursor]]:
        """Those cursors of followers that do not lead to where their topics stand. Raises Unavailable."""
        found: dict[ProgramKey, list[Cursor]] = {}
        unknown = []
        for topic, cursor in cursors:
            agrees = topic.agrees(cursor)
            if agrees is None:
                unknown.append((topic, cursor))
            elif not agrees:
                found.setdefault(topic.key, []).append(cursor)
        if unknown:
            places = {(topic.uid, cursor.epoch, cursor.seq) for topic, cursor in unknown}
            ids = await self._history.message_ids(places)
            for topic, cursor in unknown:
                if not _are_same(cursor.id, ids.get((topic.uid, cursor.seq), "")):
                    found.setdefault(topic.key, []).append(cursor)
        return found

    async def resync(
        self, keys: Collection[ProgramKey], begun: Begun | None = None
    ) -> dict[ProgramKey, Cursor]:
        """Read what memory may lack of these topics. Only under the lock. Raises Unavailable.

        Returns:
            What this owner has pushed of the topics about which the database disagrees.
        """
        held = {key: self._topics[key] for key in keys if key in self._topics}
        lost: dict[ProgramKey, Cursor] = {}
        heads = await self._history.heads(held) if held else {}
        for key, topic in held.items():
            if not await topic.resync(heads.get(key), (begun or {}).get(key, ())):
                lost[key] = topic.cursor()
            if topic.gone is not None:
                self._topics.pop(key, None)  # a sweep may have come first
        return lost

    def sweep(self) -> None:
        """Forget old entries, and topics that nobody has followed for a while."""
        now_s = self._clock.monotonic_s()
        for key, topic in list(self._topics.items()):
            topic.log.trim(now_s)
            if topic.waiters:
                topic.idle_since_s = now_s
            elif now_s - topic.idle_since_s >= self._linger_s:
                del self._topics[key]


def continues(head: HeadRow, cursor: Cursor, begun: Collection[str]) -> bool:
    """Whether the database's head is where the cursor of the program's own writer stands, or further on.

    A newer epoch is further on when it is one of `begun`; nobody else begins any. Further on in the same
    epoch is enough here: what was written under another generation of the slot is for a look at the events.
    """
    if head.uid != cursor.uid:
        return True  # another program of this id
    if head.epoch != cursor.epoch:
        return head.epoch in begun
    return head.seq > cursor.seq or (head.seq == cursor.seq and _are_same(head.id, cursor.id))


def _are_same(one: str, other: str) -> bool:
    """Whether two ids may be the same, as far as they are known."""
    return one == other or not one or not other


def _is_contiguous(pushes: Sequence[PushRow], after_seq: int, upto_seq: int, limit: int) -> bool:
    """Whether the pushes begin after `after_seq`, have no hole, and end where they should."""
    if len(pushes) < min(upto_seq - after_seq, limit):
        return False
    return all(push.seq == after_seq + 1 + index for index, push in enumerate(pushes))
