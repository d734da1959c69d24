"""The calls on programs' events, reached as `client.events`."""

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Literal, overload

from broker.client import query
from broker.client.connector import Connector
from broker.client.cursor import Cursor
from broker.client.engine import Call, Engine, Group
from broker.client.errors import Conflict, HistoryLost
from broker.client.models import Change, Event, Imported, NewEvent, Page
from broker.client.playback import Position
from broker.client.query import UNSET, Unset
from broker.client.status import Status
from broker.client.subscription import Subscription, SubscriptionConfig
from broker.client.timeline import Seeked, Timeline
from broker.client.tracker import Tracker
from broker.client.upload import ImportSource, Progress, Upload
from broker.client.wire import Model
from broker.clock import Clock

_PAGE_EVENTS = 1_000  # the most that the broker puts into one
_IMPORT_TIMEOUT_S = 300.0  # 100,000 events are read, checked and stored before the answer


class Events(Group):
    """Events of the account's programs."""

    def __init__(
        self,
        engine: Engine,
        status: Status,
        connector: Connector,
        subscription: SubscriptionConfig,
        clock: Clock,
    ) -> None:
        super().__init__(engine)
        self._status = status
        self._connector = connector
        self._subscription = subscription
        self._clock = clock

    async def publish(
        self,
        program_id: str,
        event: str | NewEvent,
        metadata: Mapping[str, Any] | None = None,
        *,
        timestamp: int | None = None,
        timecode: int | None = None,
        idempotency_key: str | None = None,
    ) -> Event:
        """Publish one event; returns once it is durable and on its way to every subscriber."""
        new = event if isinstance(event, NewEvent) else NewEvent(event, metadata, timestamp, timecode)
        target = query.path("programs", program_id, "events")
        return await self._create(target, Event, new.body(), idempotency_key)

    async def publish_batch(
        self, program_id: str, events: Iterable[NewEvent], *, idempotency_key: str | None = None
    ) -> tuple[Event, ...]:
        """Publish up to 1,000 events, contiguous and in order, all or none."""
        body = {"events": [event.body() for event in events]}
        target = query.path("programs", program_id, "events")
        return (await self._create(target, _Batch, body, idempotency_key)).events

    async def list(
        self,
        program_id: str,
        *,
        from_timecode: int | None = None,
        to_timecode: int | None = None,
        include_created: bool | None = None,
    ) -> tuple[Event, ...]:
        """All events of a program by timecode, then seq; both bounds are inclusive milliseconds.

        They are read in pages and are of one moment.

        Raises:
            Conflict: again and again they were erased or replaced while they were read.
        """
        parameters = {"from": from_timecode, "to": to_timecode, "includeCreated": include_created}
        for is_last in (False, False, True):
            try:
                pages = [page async for page in self._pages(program_id, parameters)]
                return tuple(itertools.chain.from_iterable(pages))
            except Conflict:
                if is_last:
                    raise
        raise AssertionError("the last turn returns or raises")

    async def iterate(self, program_id: str) -> AsyncIterator[Event]:
        """All events of a program, one after the other: a long history needs no memory, and no haste.

        They are of one moment, that of the first.

        Raises:
            Conflict: they were erased or replaced meanwhile.
        """
        async for page in self._pages(program_id, {}):
            for event in page:
                yield event

    async def missed(self, lost: HistoryLost) -> tuple[Event, ...]:
        """What a subscription that ended with `HistoryLost` has not yielded: all events of another history.

        They are those up to `lost.cursor`, ordered as by `list`; a subscription from there yields the others.

        Raises:
            Conflict: as `list`.
        """
        seen, cursor = lost.seen, lost.cursor
        return tuple(
            event
            for event in await self.list(lost.program_id)
            if not (event.epoch == seen.epoch and event.seq <= seen.seq)
            and not (event.epoch == cursor.epoch and event.seq > cursor.seq)
        )

    async def filter(
        self,
        program_id: str,
        *,
        search: str | None = None,
        ids: Iterable[str] | None = None,
        status: str | None = None,
        sort: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        skip: int | None = None,
    ) -> Page[Event]:
        """Search a program's events; `status` is published or imported."""
        parameters = query.filters(
            search=search, ids=ids, status=status, sort=sort, order=order, limit=limit, skip=skip
        )
        target = query.path("programs", program_id, "events", "filter")
        return await self._get(target, Page[Event], parameters)

    async def get(self, program_id: str, event_id: str) -> Event:
        """One event. Raises NotFound."""
        target = query.path("programs", program_id, "events", event_id)
        return await self._get(target, Event)

    async def update(
        self,
        program_id: str,
        event_id: str,
        *,
        event: str | Unset = UNSET,
        timestamp: int | Unset = UNSET,
        timecode: int | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        idempotency_key: str | None = None,
    ) -> Event:
        """Change fields of one event and tell every subscriber. Raises NotFound."""
        changes = {"event": event, "timestamp": timestamp, "timecode": timecode, "metadata": metadata}
        target = query.path("programs", program_id, "events", event_id)
        return await self._update(target, Event, changes, idempotency_key)

    async def delete(self, program_id: str, event_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete one event and tell every subscriber. Raises NotFound."""
        await self._delete(query.path("programs", program_id, "events", event_id), idempotency_key)

    async def delete_all(self, program_id: str, *, idempotency_key: str | None = None) -> int:
        """Delete all events of a program; returns how many."""
        target = query.path("programs", program_id, "events")
        return (await self._engine.send(Call("DELETE", target, _Deleted, key=idempotency_key))).deleted

    async def import_all(
        self,
        program_id: str,
        source: ImportSource,
        *,
        progress: Progress | None = None,
        idempotency_key: str | None = None,
    ) -> Imported:
        """Replace all events of a program. Events from an iterator can be sent only once.

        Raises:
            OSError: the file cannot be read.
        """
        upload = Upload(source, progress)
        headers = {"Content-Type": "application/json"}
        if upload.length is not None:
            headers["Content-Length"] = str(upload.length)
        target = query.path("programs", program_id, "events", "import")
        call = Call(
            "POST",
            target,
            Imported,
            content=upload.open,
            headers=headers,
            key=idempotency_key,
            is_single_try=not upload.is_repeatable,
            timeout_s=_IMPORT_TIMEOUT_S,
        )
        return await self._engine.send(call)

    async def export_all(self, program_id: str, *, ndjson: bool = False) -> AsyncIterator[bytes]:
        """A program's events as a document that can be imported, or one event a line, in pieces."""
        accept = "application/x-ndjson" if ndjson else "application/json"
        target = query.path("programs", program_id, "events", "export")
        call = Call("GET", target, bytes, headers={"Accept": accept})
        async with self._engine.stream(call) as reply:
            async for chunk in reply.aiter_bytes():
                yield chunk

    @overload
    def subscribe(
        self,
        program_id: str,
        since: Cursor | None = None,
        history: int = 0,
        *,
        changes: Literal[False] = False,
    ) -> Subscription[Event]: ...

    @overload
    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool
    ) -> Subscription[Change]: ...

    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool = False
    ) -> Subscription[Event] | Subscription[Change]:
        """Follow a program: in order, nothing twice, over any number of connections.

        Args:
            since: go on after this position; raises HistoryLost while iterating when that is too long ago.
            history: without `since`, begin with the last so many pushes.
            changes: also yield what was updated, deleted or replaced.
        """
        tracker = Tracker(program_id, since, history)
        return Subscription(self._connector, self._clock, self._subscription, tracker, changes=changes)

    def timeline(
        self,
        program_id: str,
        *,
        position: Position | None = None,
        delay_ms: float = 0.0,
        lookback_ms: float = 0.0,
        seeked: Seeked | None = None,
    ) -> Timeline:
        """Follow a program in time with a video: an event comes when the video is where it belongs.

        Args:
            position: tells which moment the video shows, on the axis of `timecode`: milliseconds since 1970
                or an aware datetime; None, or an exception, is unknown. Asked ten times a second.
            delay_ms: how far the video is behind the broker's clock, where there is no position or it is
                unknown for five seconds. With 0 events then come as they are published.
            lookback_ms: how much of what lies before the video comes at once, at the start and after a
                seek; `math.inf` is all.
            seeked: called, and awaited where it is async, after a seek and before what belongs to the new
                place. A synchronous client calls both on its own thread.

        Raises:
            ValueError: a negative time.
        """
        return Timeline(self, self._status, self._clock, program_id, position, delay_ms, lookback_ms, seeked)

    async def _pages(
        self, program_id: str, parameters: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Event, ...]]:
        target = query.path("programs", program_id, "events")
        asked = {"limit": _PAGE_EVENTS, **parameters}
        while True:
            page = await self._engine.send_paged(Call("GET", target, tuple[Event, ...], query=asked))
            yield page.items
            if page.cursor is None:
                return
            asked = {**asked, "cursor": page.cursor}


class _Batch(Model, frozen=True):
    events: tuple[Event, ...]


class _Deleted(Model, frozen=True):
    deleted: int
