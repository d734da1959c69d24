"""A channel that is told from the rows of a table: what the kinds of such channels have in common.

Whoever has something to tell writes a row in its own transaction; the channel tails the rows by their
numbers, which become visible in order. It is nudged when a row was written, and looks once a second while
somebody follows, so a lost nudge costs a second and nothing else.

Its entries have no seq. The cursor of a follower is epoch "" with the number of the last row as seq.
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


class TailedChannel(ABC):
    """See the module's docstring. `run` keeps it up to date."""

    def __init__(self, name: str, newest: int, clock: Clock, limits: LogLimits, *, public: bool, page: int):
        """Begin after the row `newest`; `page` bounds the rows of one query."""
        self.name = name
        self.log = Log(limits)
        self.waiters: set[Waiter] = set()
        self.idle_since_s = clock.monotonic_s()
        self._seq = newest
        self._clock = clock
        self._public = public
        self._page = page
        self._nudged = asyncio.Event()

    def head(self) -> Head:
        """See `Topic.head`."""
        return Head("", self._seq, Attributes(public=self._public, project_id=None))

    def nudge(self) -> None:
        """Look at once: a row was written."""
        self._nudged.set()

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """See `Topic.read_behind`. Rows that were purged are left out. Raises Unavailable."""
        del epoch
        end, newest = self.log.end, self._seq
        limit = min(limit, self._page)
        rows = await self._read(seq, limit)
        steps = [step for step in rows if step.seq <= newest]
        is_all = len(steps) < len(rows) or len(rows) < limit
        return steps, end if is_all else None

    async def run(self) -> None:
        """Tail the rows until cancelled; survives a database that is away."""
        while True:
            self._nudged.clear()
            wait_s = LOOK_S
            try:
                wait_s = await self._look()
            except Unavailable as error:
                _log.info("channel_waits name=%s reason=%s", self.name, error.log_text)
            except Exception:
                _log.exception("channel_failed name=%s", self.name)
            try:
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()
            except TimeoutError:
                continue

    async def _look(self) -> float:
        """Tell what is new; returns how many seconds to wait at most before the next look."""
        await self._tell_news()
        return LOOK_S

    async def _tell_news(self) -> bool:
        """Tell all rows that are new; false when there was none. Raises Unavailable."""
        found = False
        while steps := await self._read(self._seq, self._page):
            found = True
            for step in steps:
                self.log.append(step)
            self._seq = steps[-1].seq
            for waiter in self.waiters:
                waiter.wake()
        return found

    @abstractmethod
    async def _read(self, after: int, limit: int) -> list[Step]:
        """At most `limit` rows after the number `after`, oldest first, as `_notice` makes them."""

    def _notice(self, number: int, method: str, params: bytes) -> Step:
        """The step of one row."""
        return Step(Entry(EntryKind.NOTICE, "", 0, method, params), "", number, self._clock.monotonic_s())
