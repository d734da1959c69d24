"""Channels that follow a database table: the base class, and channels that push each row.

Whoever has something to tell writes a row in its own transaction; a tailed channel follows the rows by their
numbers, which become visible in order. It is nudged when a row was written, and looks once a second while
a subscriber follows, so a lost nudge costs a second and nothing else.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from broker.clock import Clock
from broker.errors import Unavailable
from broker.owners.log import Log, LogLimits, Step
from broker.owners.protocol import Attributes, Entry, EntryKind, Head
from broker.owners.topics import Waiter

_log = logging.getLogger(__name__)
LOOK_S = 1.0  # between looks when nobody nudges


class Channel(ABC):
    """A topic that looks for what it has to tell: when it is nudged, and once a second.

    Its entries have no seq. The cursor of a follower is epoch "" with the channel's number as seq, which only
    grows. `run` keeps it up to date.
    """

    def __init__(self, name: str, number: int, clock: Clock, limits: LogLimits, *, public: bool):
        self.name = name
        self.log = Log(limits)
        self.waiters: set[Waiter] = set()
        self.idle_since_s = clock.monotonic_s()
        self._seq = number
        self._clock = clock
        self._attributes = Attributes(public=public, project_id=None)
        self._nudged = asyncio.Event()
        self._is_doubtful = False

    def head(self) -> Head:
        """Epoch, `seq` and id of the latest push."""
        return Head("", self._seq, self._attributes)

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
        return Step(Entry(EntryKind.NOTICE, "", 0, method, params), "", number, self._clock.monotonic_s())


class TailedChannel(Channel):
    """A channel that tells the rows of a table; its number is that of the last row told."""

    def __init__(self, name: str, newest: int, clock: Clock, limits: LogLimits, *, public: bool, page: int):
        """Begin after the row `newest`; `page` bounds the rows of one query."""
        super().__init__(name, newest, clock, limits, public=public)
        self._page = page

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """Pushes after `seq`, without rows that were purged. Raises Unavailable."""
        del epoch
        end, newest = self.log.end, self._seq
        limit = min(limit, self._page)
        rows = await self._read(seq, limit)
        steps = [step for step in rows if step.seq <= newest]
        is_all = len(steps) < len(rows) or len(rows) < limit
        return steps, end if is_all else None

    async def _look(self) -> float:
        await self._tell_news()
        return LOOK_S

    async def _tell_news(self) -> bool:
        """Tell all rows that are new; false when there was none. Raises Unavailable."""
        if self._is_doubtful:
            await self._go_back()
        found = False
        while steps := await self._read(self._seq, self._page):
            found = True
            self._tell(steps)
        return found

    async def _go_back(self) -> None:
        """Go on after the last row that was told and is still there: a number after it may be used again.

        Where none of those remembered is there, what was written before this looked is not told.
        """
        self._is_doubtful = False
        told = {step.seq: step.entry.params for step in self.log.kept()}
        number = min(told, default=self._seq + 1) - 1
        after = number
        try:
            number = min(number, await self._newest())
            while after < self._seq and (rows := await self._read(after, self._page)):
                after = rows[-1].seq
                number = max([number, *(row.seq for row in rows if told.get(row.seq) == row.entry.params)])
        except BaseException:
            self._is_doubtful = True
            raise
        if number < self._seq:
            _log.warning("channel_went_back", extra={"channel": self.name, "to": number, "from": self._seq})
            self._seq = number

    @abstractmethod
    async def _newest(self) -> int:
        """The number of the newest row, 0 without one. Raises Unavailable."""

    @abstractmethod
    async def _read(self, after: int, limit: int) -> list[Step]:
        """At most `limit` rows after the number `after`, oldest first, as `_notice` makes them."""
