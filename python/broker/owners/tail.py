"""Channels that follow a database table: the base class, and channels that push each row.

Whoever has something to tell writes a row in its own transaction; a tailed channel follows the rows by their
numbers, which become visible in order. It is nudged when a row was written, and looks once a second while
a subscriber follows, so a lost nudge costs a second and nothing else.

A database that was restored, or a standby that was promoted too early, may lack rows that were told, and
give their numbers to others. A channel therefore remembers what it told last, and a follower's cursor has
the id of what it was told at its number (`notice_id`). Where the last row that was told and is still there
is known, the rows after it are told. Where it is not, the channel tells `resumed`: some may be missing,
read how things stand.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import orjson

from broker.clock import Clock
from broker.errors import Unavailable
from broker.owners.encoding import RESUMED, notice_id
from broker.owners.log import Log, LogLimits, Step
from broker.owners.protocol import Attributes, Cursor, Entry, EntryKind, Head
from broker.owners.topics import Waiter

_log = logging.getLogger(__name__)
LOOK_S = 1.0  # between looks when nobody nudges
_REMEMBERED = 8
"""How many rows a new channel reads to know them again: a value that is deleted is no row that was lost."""
_REMEMBERED_LATER = 64
_LOST = "lost"
"""The epoch of a cursor that leads nowhere: no channel is ever in it."""


class Channel(ABC):
    """A topic that looks for what it has to tell: when it is nudged, and once a second.

    Its entries have no seq. The cursor of a follower has the channel's number as seq, which only grows within
    an epoch. The first epoch is ""; `run` keeps the channel up to date.
    """

    def __init__(self, name: str, number: int, clock: Clock, limits: LogLimits, *, public: bool):
        self.name = name
        self.log = Log(limits)
        self.waiters: set[Waiter] = set()
        self.idle_since_s = clock.monotonic_s()
        self._epoch = ""
        self._seq = number
        self._clock = clock
        self._attributes = Attributes(public=public, project_id=None)
        self._nudged = asyncio.Event()
        self._is_doubtful = False

    def head(self) -> Head:
        """Epoch, `seq` and id of the latest push."""
        return Head(self._epoch, self._seq, self._attributes)

    def nudge(self) -> None:
        """Look at once: there is news."""
        self._nudged.set()

    def doubt(self) -> None:
        """Look whether the database still has what was told."""
        self._is_doubtful = True
        self.nudge()

    @abstractmethod
    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """Pushes after `seq`, from memory or the database. Raises Unavailable."""

    async def run(self) -> None:
        """Look for news until cancelled; survives an unavailable database."""
        while True:
            self._nudged.clear()
            wait_s = LOOK_S
            try:
                wait_s = await self._look()
            except Unavailable as error:
                _log.info("channel_waits", extra={"channel": self.name, "cause": error.log_text})
            except Exception:
                _log.exception("channel_failed", extra={"channel": self.name})
            try:
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()
            except TimeoutError:
                continue

    @abstractmethod
    async def _look(self) -> float:
        """Tell what is new; returns how many seconds to wait at most before the next look."""

    def _tell(self, steps: Sequence[Step]) -> None:
        """Append steps, the last of which has the channel's new number."""
        for step in steps:
            self.log.append(step)
        self._seq = steps[-1].seq
        for waiter in self.waiters:
            waiter.wake()

    def _notice(self, number: int, method: str, params: bytes) -> Step:
        """The step of one notification."""
        entry = Entry(EntryKind.NOTICE, "", 0, method, params)
        return Step(entry, self._epoch, number, self._clock.monotonic_s())


class TailedChannel(Channel):
    """A channel that tells the rows of a table; its number is that of the last row told.

    A new epoch begins when it goes back to a smaller number. Epochs are those of one owner: `locate` turns a
    cursor of another one into one of this.
    """

    def __init__(self, name: str, clock: Clock, limits: LogLimits, *, public: bool, page: int):
        """Tell all rows, or those after `begin`; `page` bounds the rows of one query."""
        super().__init__(name, 0, clock, limits, public=public)
        self._is_doubtful = True  # what ended before it was there to be told
        self._page = page
        self._told: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED_LATER)  # numbers, ascending, and ids

    async def begin(self) -> None:
        """Begin after the newest row, and remember it. Raises Unavailable."""
        self._begin_after(await self._recent(_REMEMBERED))

    def head(self) -> Head:
        """The number of the last row told, with its id where that is known."""
        return Head(self._epoch, self._seq, self._attributes, dict(self._told).get(self._seq, ""))

    async def locate(self, cursor: Cursor) -> Cursor:
        """Where a follower with this cursor goes on here. Raises Unavailable.

        Returns:
            A cursor that leads nowhere, and so to `resumed`, where the table has other rows up to there than
            the follower was told, or may have.
        """
        epoch = self._epoch  # as it is before the look: one that ends meanwhile leads to `resumed` too
        is_followed = not cursor.id or await self._has_seen_all(cursor.seq, cursor.id)
        seq = min(cursor.seq, self._seq)  # where all rows are gone, numbers begin anew
        return Cursor(epoch if is_followed else _LOST, seq, cursor.id, cursor.uid)

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """Pushes after `seq`, without rows that were purged. Raises Unavailable."""
        end, newest = self.log.end, self._seq
        limit = min(limit, self._page)
        rows = await self._read(seq, limit)
        if epoch != self._epoch:
            return [self._resumed()], self.log.end
        steps = [step for step in rows if step.seq <= newest]
        is_all = len(steps) < len(rows) or len(rows) < limit
        return steps, end if is_all else None

    async def _look(self) -> float:
        await self._tell_news()
        return LOOK_S

    async def _tell_news(self) -> bool:
        """Tell all rows that are new; false when there was none. Raises Unavailable."""
        found = False
        while True:
            if self._is_doubtful:
                await self._go_back()
            steps = await self._read(self._seq, self._page)
            if self._is_doubtful:
                continue  # it may have been read from another server
            if not steps:
                return found
            found = True
            self._tell(steps)
            self._remember(steps)

    async def _go_back(self) -> None:
        """Go on after the last row that was told and is still there: a number after it may be used again.

        Where that cannot be said, followers are told so, and it goes on after the newest row.
        """
        self._is_doubtful = False
        recent: list[Step] = []
        try:
            kept = await self._last_kept()
            if kept is None:
                recent = await self._recent(_REMEMBERED)
        except BaseException:
            self._is_doubtful = True
            raise
        if kept == self._seq:
            return
        before = self._seq
        self._epoch = str(int(self._epoch or "0") + 1)
        if kept is None:
            self._begin_after(recent)
            self._tell([self._resumed()])
        else:
            self._seq = kept
            while self._told and self._told[-1][0] > kept:
                self._told.pop()
        _log.warning("channel_went_back", extra={"channel": self.name, "to": self._seq, "from": before})

    async def _last_kept(self) -> int | None:
        """The number of the last row that was told and is still there; None when that cannot be said.

        It is 0 where the table has no row up to the last one told. Raises Unavailable.
        """
        told = dict(self._told)
        if self._seq in told and await self._has(self._seq, told[self._seq]):
            return self._seq  # nearly always: connections come and go
        kept, after = None, min(told, default=self._seq + 1) - 1
        while after < self._seq and (rows := await self._read(after, self._page)):
            after = rows[-1].seq
            for row in rows:
                if told.get(row.seq) == notice_id(row.entry.params):
                    kept = row.seq
        if kept is None and not await self._has_any(self._seq):
            return 0
        return kept

    async def _has_seen_all(self, number: int, id_: str) -> bool:
        """Whether who was told a row with this id has seen all rows up to its number. Raises Unavailable.

        Where the row is gone, nobody knows: it may have been deleted, or lost with others that followed it.
        """
        known = dict(self._told).get(number)
        if known is not None:
            return known == id_
        return await self._has(number, id_) or not await self._has_any(number)

    async def _has(self, number: int, id_: str) -> bool:
        """Whether the table has the row of this number and id."""
        rows = await self._read(number - 1, 1)
        return bool(rows) and (rows[0].seq, notice_id(rows[0].entry.params)) == (number, id_)

    async def _has_any(self, upto: int) -> bool:
        """Whether the table has a row up to this number."""
        rows = await self._read(0, 1)
        return bool(rows) and rows[0].seq <= upto

    def _begin_after(self, recent: Sequence[Step]) -> None:
        self._seq = recent[-1].seq if recent else 0
        self._told.clear()
        self._remember(recent)

    def _remember(self, steps: Sequence[Step]) -> None:
        self._told.extend((step.seq, notice_id(step.entry.params)) for step in steps)

    def _resumed(self) -> Step:
        """The step that says that rows up to the channel's number may be missing."""
        channel = self.name.split("/", 2)[2]
        return self._notice(self._seq, RESUMED, orjson.dumps({"channel": channel}))

    @abstractmethod
    async def _recent(self, limit: int) -> list[Step]:
        """The newest `limit` rows, oldest first, as `_notice` makes them. Raises Unavailable."""

    @abstractmethod
    async def _read(self, after: int, limit: int) -> list[Step]:
        """At most `limit` rows after the number `after`, oldest first, as `_notice` makes them."""
