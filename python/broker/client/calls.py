"""The REST calls on programs, events and the broker itself.

Every method may raise what `broker.client.engine.Engine.send` raises, and is tried again within the client's
`RetryPolicy`. Every change goes with an idempotency key, the caller's or one of its own, the same with every
try: what is retried is never done twice.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

from broker.client import query
from broker.client.engine import Call, Engine, Slice
from broker.client.errors import Conflict, ProtocolError
from broker.client.models import (
    Event,
    Gateways,
    Imported,
    LastUpdate,
    NewEvent,
    Page,
    Program,
    ServerTime,
    Token,
    Version,
)
from broker.client.query import UNSET, TimeLike, Unset
from broker.client.retry import Safety
from broker.client.upload import ImportSource, Progress, Upload
from broker.clock import Clock

T = TypeVar("T")
ModelT = TypeVar("ModelT", Program, Event)

_PAGE_EVENTS = 1_000  # the most that the broker puts into one
_IMPORT_TIMEOUT_S = 300.0  # 100,000 events are read, checked and stored before the answer


class Calls:
    """What can be asked of one account's broker over HTTP."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    # -- tokens and status

    async def login(self) -> Token:
        """Fetch a token now. Calls do so by themselves when they need one."""
        return await self._engine.login()

    async def ping(self) -> int:
        """Tell the broker that the caller is still there; returns its time in milliseconds."""
        return await self._engine.send(_asking("/ping", lambda raw: int(raw["current_time"]), {}))

    async def server_time(self) -> ServerTime:
        """The broker's clock beside the caller's."""
        body = {"requestTime": self._clock.now_ms()}
        return await self._engine.send(_asking("/servertime", ServerTime.parse, body))

    async def version(self) -> Version:
        """What the broker runs."""
        return await self._engine.send(Call("GET", "/version", Version.parse))

    async def connect(self) -> Gateways:
        """Where to open a WebSocket, the least loaded gateway first."""
        return await self._engine.send(Call("GET", "/connect", Gateways.parse))

    # -- programs

    async def create_program(
        self,
        program_id: str,
        name: str,
        *,
        scheduled_start_time: TimeLike | None = None,
        scheduled_end_time: TimeLike | None = None,
        project_id: str | None = None,
        access: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Program:
        """Create a program, public unless `access` is `private`. Raises Conflict when the id is taken."""
        optional = {
            "scheduledStartTime": scheduled_start_time,
            "scheduledEndTime": scheduled_end_time,
            "projectId": project_id,
            "access": access,
            "metadata": metadata,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        body = query.fields({"id": program_id, "name": name, **given})
        return await self._create("/programs", Program.parse, body, idempotency_key)

    async def get_program(self, program_id: str) -> Program:
        """One program. Raises NotFound."""
        return await self._engine.send(Call("GET", query.path("programs", program_id), Program.parse))

    async def update_program(
        self,
        program_id: str,
        name: str,
        scheduled_start_time: TimeLike | None,
        scheduled_end_time: TimeLike | None,
        *,
        project_id: str | Unset | None = UNSET,
        access: str | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        idempotency_key: str | None = None,
    ) -> Program:
        """Replace name and times; the others keep their value unless given, and None clears them."""
        body = query.fields(
            {
                "id": program_id,
                "name": name,
                "scheduledStartTime": scheduled_start_time,
                "scheduledEndTime": scheduled_end_time,
                "projectId": project_id,
                "access": access,
                "metadata": metadata,
            }
        )
        target = query.path("programs", program_id)
        return await self._engine.send(Call("PUT", target, Program.parse, body=body, key=idempotency_key))

    async def delete_program(self, program_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete a program and all its events. Raises NotFound."""
        await self._delete(query.path("programs", program_id), idempotency_key)

    async def list_programs(self) -> list[Program]:
        """The programs that have not ended and that the caller may publish to, newest first."""
        return await self._engine.send(Call("GET", "/programs", _list_of(Program)))

    async def filter_programs(
        self,
        *,
        search: str | None = None,
        ids: Iterable[str] | None = None,
        status: str | None = None,
        project_id: str | None = None,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        live: bool | None = None,
        sort: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        skip: int | None = None,
    ) -> Page[Program]:
        """Search programs; `project_id="undefined"` selects those without one."""
        parameters = query.filters(
            search=search, ids=ids, status=status, sort=sort, order=order, limit=limit, skip=skip
        )
        parameters |= {
            "projectId": project_id,
            "from": query.time_text(from_time),
            "to": query.time_text(to_time),
            "live": live,
        }
        call = Call("GET", "/programs/filter", _page_of(Program), query=parameters)
        return await self._engine.send(call)

    async def last_update(self, program_id: str) -> LastUpdate:
        """When and where the program last changed; its cursor is good as `since`."""
        return await self._engine.send(
            Call("GET", query.path("programs", program_id, "lastUpdate"), LastUpdate.parse)
        )

    # -- events

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
        return await self._create(target, Event.parse, new.body(), idempotency_key)

    async def publish_batch(
        self, program_id: str, events: Iterable[NewEvent], *, idempotency_key: str | None = None
    ) -> list[Event]:
        """Publish up to 1,000 events, contiguous and in order, all or none."""
        body = {"events": [event.body() for event in events]}
        target = query.path("programs", program_id, "events")
        parse = _list_of(Event)
        return await self._create(target, lambda raw: parse(raw["events"]), body, idempotency_key)

    async def events(
        self,
        program_id: str,
        *,
        from_timecode: int | None = None,
        to_timecode: int | None = None,
        include_created: bool | None = None,
    ) -> list[Event]:
        """All events of a program by timecode, then seq; both bounds are inclusive milliseconds.

        They are read in pages and are of one moment.

        Raises:
            Conflict: again and again they were erased or replaced while they were read.
        """
        parameters = {"from": from_timecode, "to": to_timecode, "includeCreated": include_created}
        for is_last in (False, False, True):
            try:
                return [event async for page in self._event_pages(program_id, parameters) for event in page]
            except Conflict:
                if is_last:
                    raise
        raise AssertionError("the last turn returns or raises")

    async def iterate_events(self, program_id: str) -> AsyncIterator[Event]:
        """All events of a program, one after the other: a long history needs no memory, and no haste.

        They are of one moment, that of the first.

        Raises:
            Conflict: they were erased or replaced meanwhile.
        """
        async for page in self._event_pages(program_id, {}):
            for event in page:
                yield event

    async def _event_pages(
        self, program_id: str, parameters: Mapping[str, Any]
    ) -> AsyncIterator[list[Event]]:
        target = query.path("programs", program_id, "events")
        asked = {"limit": _PAGE_EVENTS, **parameters}
        while True:
            call: Call[Any] = Call("GET", target, _list_of(Event), query=asked, is_paged=True)
            page: Slice[list[Event]] = await self._engine.send(call)
            yield page.items
            if page.cursor is None:
                return
            asked = {**asked, "cursor": page.cursor}

    async def filter_events(
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
        return await self._engine.send(Call("GET", target, _page_of(Event), query=parameters))

    async def get_event(self, program_id: str, event_id: str) -> Event:
        """One event. Raises NotFound."""
        target = query.path("programs", program_id, "events", event_id)
        return await self._engine.send(Call("GET", target, Event.parse))

    async def update_event(
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
        body = query.fields(changes)
        return await self._engine.send(Call("PUT", target, Event.parse, body=body, key=idempotency_key))

    async def delete_event(
        self, program_id: str, event_id: str, *, idempotency_key: str | None = None
    ) -> None:
        """Delete one event and tell every subscriber. Raises NotFound."""
        await self._delete(query.path("programs", program_id, "events", event_id), idempotency_key)

    async def delete_events(self, program_id: str, *, idempotency_key: str | None = None) -> int:
        """Delete all events of a program; returns how many."""
        target = query.path("programs", program_id, "events")
        call = Call("DELETE", target, lambda raw: int(raw["deleted"]), key=idempotency_key)
        return await self._engine.send(call)

    async def import_events(
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
            Imported.parse,
            content=upload.open,
            headers=headers,
            key=idempotency_key,
            is_single_try=not upload.is_repeatable,
            timeout_s=_IMPORT_TIMEOUT_S,
        )
        return await self._engine.send(call)

    async def export_events(self, program_id: str, *, ndjson: bool = False) -> AsyncIterator[bytes]:
        """A program's events as a document that can be imported, or one event a line, in pieces."""
        accept = "application/x-ndjson" if ndjson else "application/json"
        target = query.path("programs", program_id, "events", "export")
        call = Call("GET", target, bytes, headers={"Accept": accept})
        async with self._engine.stream(call) as reply:
            async for chunk in reply.aiter_bytes():
                yield chunk

    async def _create(
        self, target: str, parse: Callable[[Any], T], body: Mapping[str, Any], key: str | None
    ) -> T:
        return await self._engine.send(Call("POST", target, parse, body=body, key=key))

    async def _delete(self, target: str, key: str | None) -> None:
        await self._engine.send(Call("DELETE", target, lambda _: None, key=key))


def _asking(path: str, parse: Callable[[Any], T], body: Mapping[str, Any]) -> Call[T]:
    """A POST that changes nothing."""
    return Call("POST", path, parse, body=body, own_safety=Safety.REPEATABLE)


def _list_of(kind: type[ModelT]) -> Callable[[Any], list[ModelT]]:
    def parse(raw: Any) -> list[ModelT]:
        if not isinstance(raw, list):
            raise ProtocolError("the broker sent no list")
        return [kind.parse(item) for item in raw]

    return parse


def _page_of(kind: type[ModelT]) -> Callable[[Any], Page[ModelT]]:
    return lambda raw: Page.parse(raw, kind.parse)
