"""A program's events in time with a viewer's video: each is released when the video reaches it.

A subscription tells what happens; what it cannot tell, because it lies before the subscription or because
the viewer has sought backwards, is read by REST, in windows of whole minutes. `Playback` knows where the
viewer is, `Held` what waits. Both SDKs keep the same rules, which docs/sdk.md explains to their users.
"""

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from broker.client.errors import ClientError, HistoryLost
from broker.client.held import Held
from broker.client.models import (
    Change,
    Event,
    EventDeleted,
    EventUpdated,
    ServerTime,
)
from broker.client.playback import Move, Playback, Position
from broker.client.subscription import Subscription
from broker.clock import Clock
from broker.concurrency.back_off import Backoff

WINDOW_MS = 60_000  # of whole minutes, so that shared caches answer many viewers
AHEAD_MS = 10_000.0  # before its time a window is read
_LOOK_S = 0.1  # a tenth of a second late is not seen; a player is asked as often
_SYNC_S = 600.0  # a machine's clock gains less than 100 ms in this time
_PROBES = 3

Reason = Literal["back", "forward", "replaced", "lost"]


@dataclass(frozen=True, slots=True)
class Seek:
    """The video is somewhere else, or the history is another one: an overlay begins again.

    Attributes:
        reason: `back` or `forward` in time; `replaced` by an import or a deletion of all events; `lost`, what
            was missed, and all is read again.
        position_ms: where the video is now.
    """

    reason: Reason
    position_ms: float


Seeked = Callable[[Seek], Awaitable[None] | None]


class Source(Protocol):
    """Where a timeline has events from."""

    def subscribe(self, program_id: str, *, changes: Literal[True]) -> Subscription[Change]:
        """What happens from now on."""

    async def list(
        self, program_id: str, *, from_timecode: int | None = None, to_timecode: int | None = None
    ) -> Sequence[Event]:
        """The events of a range, both bounds inclusive."""


class TimeSource(Protocol):
    """Where a timeline has the broker's time from."""

    async def get_server_time(self) -> ServerTime:
        """The broker's clock."""


class Timeline:
    """The events of one program at their places in a video; iterate it with `async for`, once."""

    def __init__(
        self,
        source: Source,
        time: TimeSource,
        clock: Clock,
        program_id: str,
        position: Position | None,
        delay_ms: float,
        lookback_ms: float,
        seeked: Seeked | None,
    ) -> None:
        if delay_ms < 0 or lookback_ms < 0:
            raise ValueError("delay_ms and lookback_ms must not be negative")
        self._source = source
        self._time = time
        self._clock = clock
        self._program_id = program_id
        self._position = position
        self._delay_ms = delay_ms
        self._lookback_ms = lookback_ms
        self._seeked = seeked
        self._playback = Playback(position, delay_ms)
        self._held = Held()
        self._news = asyncio.Event()
        self._subscription = source.subscribe(program_id, changes=True)
        self._following: asyncio.Task[None] | None = None
        self._reset: Reason | None = None
        self._reading: asyncio.Task[None] | None = None
        self._offset_ms = 0.0
        self._synced_s = -math.inf

    @property
    def position_ms(self) -> float | None:
        """What the video shows, as the timeline sees it; None before the first look."""
        return self._playback.place_ms

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events as the video reaches them.

        Raises:
            ProgramDeleted, Unsubscribed, ApiError, ConnectionFailed: as a subscription does.
        """
        self._following = asyncio.create_task(self._follow())
        try:
            while True:
                await self._sync()
                await self._move()
                for event in self._due():
                    yield event
                self._read_ahead()
                await self._pause()
        finally:
            await _end(self._following)
            await _end(self._reading)

    # -- the subscription

    async def _follow(self) -> None:
        """Take what is told, for ever; what was missed for good is read again."""
        while True:
            try:
                async for change in self._subscription:
                    self._take(change)
            except HistoryLost:
                self._subscription = self._source.subscribe(self._program_id, changes=True)
                self._begin_anew("lost")

    def _take(self, change: Change) -> None:
        match change:
            case Event():
                self._held.tell(change)
            case EventUpdated(event):
                place_ms = self._playback.place_ms
                self._held.change(
                    event, math.inf if place_ms is None else place_ms, falls_back=self._playback.falls_back
                )
            case EventDeleted():
                self._held.delete(change.id)
            case _:
                self._begin_anew("replaced")
        self._news.set()

    def _begin_anew(self, reason: Reason) -> None:
        self._held.clear()
        self._reset = reason
        self._news.set()

    # -- the video

    async def _move(self) -> None:
        """Look where the video is, and make ready what belongs there."""
        move = self._playback.look(self._now_ms(), self._server_ms())
        place_ms = self._playback.place_ms
        if place_ms is None:
            return
        reason, self._reset = self._reset, None
        if reason is None and move in (Move.BACK, Move.FORWARD):
            reason = "back" if move is Move.BACK else "forward"
        if reason is not None and move is not Move.BEGUN:
            await self._tell(Seek(reason, place_ms))
        if reason == "forward":
            self._held.drop_before(place_ms - self._lookback_ms)
        if reason == "forward" and place_ms < self._held.horizon_ms:
            self._held.begin(self._held.horizon_ms)
        elif reason is not None or move is Move.BEGUN or self._has_fallen_behind:
            await self._load(place_ms)

    async def _tell(self, seek: Seek) -> None:
        told = None if self._seeked is None else self._seeked(seek)
        if inspect.isawaitable(told):
            await told

    def _due(self) -> list[Event]:
        place_ms = self._playback.place_ms
        if place_ms is None:
            return []
        if self._comes_as_it_is:
            place_ms = math.inf
        return self._held.release(place_ms, falls_back=self._playback.falls_back)

    @property
    def _comes_as_it_is(self) -> bool:
        """Whether events are handed out as they come: there is neither a position nor a delay."""
        return self._playback.falls_back and not self._delay_ms

    @property
    def _has_fallen_behind(self) -> bool:
        """Whether the video has left what is held for the broker's clock."""
        return self._playback.falls_back and not math.isinf(self._held.horizon_ms)

    async def _pause(self) -> None:
        """Wait for news, or until it is time to look again."""
        wait_s = _LOOK_S
        if self._position is None:
            next_ms = self._held.next_due_ms(falls_back=True) - (self._playback.place_ms or 0.0)
            wait_s = min(_SYNC_S, max(0.0, next_ms / 1000))
        await self._until(self._news.wait(), wait_s)
        self._news.clear()

    async def _until(self, work: Coroutine[Any, Any, object], wait_s: float | None = None) -> None:
        """Wait for something, so long as the subscription goes on. Raises what has ended it."""
        assert self._following is not None, "it is followed while the timeline is iterated"
        waiting = asyncio.ensure_future(work)
        try:
            await asyncio.wait(
                {waiting, self._following}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._following.done():
            await self._following

    # -- what is read

    async def _load(self, place_ms: float) -> None:
        """Read what lies around a place, and hold it."""
        await _end(self._reading)
        if self._comes_as_it_is and not self._lookback_ms:
            self._held.horizon_ms = math.inf
            return
        await self._until(self._subscription.answered())  # so that nothing lies between it and what is read
        start_ms = place_ms - self._lookback_ms
        end_ms = self._end_of(place_ms)
        self._held.begin(end_ms)
        await self._read(start_ms, end_ms)

    def _read_ahead(self) -> None:
        """Begin to read the next window when the video comes near."""
        place_ms, start_ms = self._playback.place_ms, self._held.horizon_ms
        is_reading = self._reading is not None and not self._reading.done()
        if place_ms is None or is_reading or place_ms + AHEAD_MS < start_ms or math.isinf(start_ms):
            return
        end_ms = self._end_of(start_ms)
        self._held.horizon_ms = end_ms  # first, so that what comes meanwhile is held
        self._reading = asyncio.create_task(self._read_until_there(start_ms, end_ms))

    async def _read_until_there(self, start_ms: float, end_ms: float) -> None:
        backoff, attempt = Backoff(0.25, 15.0), 0
        while True:
            try:
                await self._read(start_ms, end_ms)
            except ClientError:
                # The client has tried for as long as it does. Live events go on meanwhile.
                await asyncio.sleep(backoff.delay_s(attempt))
                attempt += 1
            else:
                self._news.set()
                return

    async def _read(self, start_ms: float, end_ms: float) -> None:
        """Read a window of whole minutes, and hold of it what is due from its start on."""
        events = await self._source.list(
            self._program_id,
            from_timecode=None if math.isinf(start_ms) else max(0, _minute(start_ms)),
            to_timecode=None if math.isinf(end_ms) else int(end_ms) - 1,
        )
        self._held.put(events, start_ms, falls_back=self._playback.falls_back)

    def _end_of(self, place_ms: float) -> float:
        """The end of the window around a place; infinite if it lies in the future."""
        end_ms = _minute(place_ms) + WINDOW_MS
        return math.inf if end_ms > self._server_ms() else float(end_ms)

    # -- clocks

    def _now_ms(self) -> float:
        return self._clock.monotonic_s() * 1000

    def _server_ms(self) -> float:
        """The broker's time; any, where nothing depends on it."""
        return self._now_ms() + self._offset_ms

    async def _sync(self) -> None:
        """Compare clocks, now and then: of a few answers the soonest is the best."""
        is_needed = self._position is not None or self._delay_ms or self._lookback_ms
        if not is_needed or self._clock.monotonic_s() - self._synced_s < _SYNC_S:
            return
        is_first, self._synced_s = math.isinf(self._synced_s), self._clock.monotonic_s()
        best_ms = math.inf
        try:
            for _ in range(_PROBES):
                before_ms = self._now_ms()
                told = await self._time.get_server_time()
                after_ms = self._now_ms()
                if after_ms - before_ms < best_ms:
                    best_ms = after_ms - before_ms
                    self._offset_ms = told.server_time_ms - (before_ms + after_ms) / 2
        except ClientError:
            if is_first:
                raise


def _minute(ms: float) -> int:
    """Down to a whole minute."""
    return math.floor(ms / WINDOW_MS) * WINDOW_MS


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientError):
            await task
