"""The `programs` channel of an account: tells what is written in the outbox `program_changes`.

Whoever changes a program writes a row in its own transaction; this topic tails the rows by their ids. It is
nudged when a row was written, and looks once a second while somebody follows, so a lost nudge costs a second
and nothing else. Programs that go live or end by the clock get their rows from here, on time.

Its entries have no seq. The cursor of a follower is epoch "" with the id of the last row as seq.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from broker.clock import Clock
from broker.domain.programs import Program, ProgramResource
from broker.errors import Unavailable
from broker.owners.log import Log, LogLimits, Step
from broker.owners.protocol import Attributes, Entry, EntryKind, Head, channel_topic
from broker.storage.program_changes import ProgramChangeRow, ProgramChanges

if TYPE_CHECKING:
    from broker.owners.sessions import Position

_log = logging.getLogger(__name__)
_LOOK_S = 1.0  # between looks when nobody nudges
_PAGE = 1_000  # rows a look


class ProgramsChannel:
    """The topic of one account's `programs` channel; `run` keeps it up to date."""

    def __init__(
        self, account: str, newest: int, changes: ProgramChanges, clock: Clock, limits: LogLimits
    ) -> None:
        self.name = channel_topic(account, "programs")
        self.log = Log(limits)
        self.positions: set[Position] = set()
        self.idle_since_s = clock.monotonic_s()
        self._account = account
        self._seq = newest
        self._changes = changes
        self._clock = clock
        self._nudged = asyncio.Event()

    def head(self) -> Head:
        """See `Topic.head`. Following it needs a token, so it is not public."""
        return Head("", self._seq, Attributes(public=False, project_id=None))

    def nudge(self) -> None:
        """Look at once: a row was written."""
        self._nudged.set()

    async def read_behind(self, epoch: str, seq: int, limit: int) -> tuple[Sequence[Step], int | None]:
        """See `Topic.read_behind`. Rows that were purged are left out. Raises Unavailable."""
        del epoch
        end, newest = self.log.end, self._seq
        rows = await self._changes.after(self._account, seq, limit)
        steps = [self._step(row) for row in rows if row.id <= newest]
        is_all = len(steps) < len(rows) or len(rows) < limit
        return steps, end if is_all else None

    async def run(self) -> None:
        """Tail the outbox until cancelled; survives a database that is away."""
        boundary_ms: int | None = self._clock.now_ms()  # the first look settles what passed meanwhile
        while True:
            self._nudged.clear()
            try:
                boundary_ms = await self._look(boundary_ms)
            except Unavailable as error:
                _log.info("programs_channel_waits account=%s reason=%s", self._account, error.log_text)
            except Exception:
                _log.exception("programs_channel_failed account=%s", self._account)
            wait_s = _LOOK_S
            if boundary_ms is not None:
                wait_s = min(wait_s, max(0.001, (boundary_ms - self._clock.now_ms()) / 1000))
            try:
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()
            except TimeoutError:
                continue

    async def _look(self, boundary_ms: int | None) -> int | None:
        """Write what has passed, tell what is new; returns when the next program goes live or ends."""
        now_ms = self._clock.now_ms()
        is_due = boundary_ms is not None and boundary_ms <= now_ms
        if is_due:
            await self._changes.pass_boundaries(self._account)
        found = False
        while rows := await self._changes.after(self._account, self._seq, _PAGE):
            found = True
            for row in rows:
                self.log.append(self._step(row))
            self._seq = rows[-1].id
            for position in self.positions:
                position.wake()
        if found or is_due:
            # changed programs may have changed what comes next
            return await self._changes.next_boundary_ms(self._account, now_ms)
        return boundary_ms

    def _step(self, row: ProgramChangeRow) -> Step:
        entry = Entry(EntryKind.NOTICE, "", 0, "program", _notice_json(row))
        return Step(entry, "", row.id, self._clock.monotonic_s())


def _notice_json(row: ProgramChangeRow) -> bytes:
    fields = orjson.loads(row.program)
    fields.pop("live", None)
    resource = ProgramResource.of(Program.model_validate(fields), row.time_ms)
    program = orjson.Fragment(resource.model_dump_json())
    return orjson.dumps({"channel": "programs", "change": row.change, "program": program})


class Channels:
    """The `programs` channels of an owner that are in memory, with the tasks that tail them."""

    def __init__(self, changes: ProgramChanges, clock: Clock, limits: LogLimits, linger_s: float) -> None:
        self._changes = changes
        self._clock = clock
        self._limits = limits
        self._linger_s = linger_s
        self._channels: dict[str, ProgramsChannel] = {}
        self._tails: dict[str, asyncio.Task[None]] = {}

    async def load(self, account: str) -> ProgramsChannel:
        """The account's channel; it is tailed from its newest row on. Raises Unavailable."""
        if account not in self._channels:
            newest = await self._changes.newest(account)
            if account not in self._channels:  # two may have read at once
                channel = ProgramsChannel(account, newest, self._changes, self._clock, self._limits)
                self._channels[account] = channel
                self._tails[account] = asyncio.create_task(channel.run(), name=f"tail {channel.name}")
        return self._channels[account]

    def nudge(self, account: str) -> None:
        """Look for news at once, if anybody follows."""
        channel = self._channels.get(account)
        if channel is not None:
            channel.nudge()

    async def sweep(self) -> None:
        """Forget old entries, and channels that nobody has followed for a while."""
        now_s = self._clock.monotonic_s()
        for account, channel in list(self._channels.items()):
            channel.log.trim(now_s)
            if channel.positions:
                channel.idle_since_s = now_s
            elif now_s - channel.idle_since_s >= self._linger_s:
                del self._channels[account]
                await _end(self._tails.pop(account))

    async def close(self) -> None:
        """End all tails."""
        self._channels.clear()
        tails = list(self._tails.values())
        self._tails.clear()
        for tail in tails:
            await _end(tail)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        _log.error("programs_channel_failed", exc_info=task.exception())
