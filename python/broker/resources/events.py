"""Program events: publish, read, filter, change, delete, import and export them.

Events travel as finished JSON from where they are stored or accepted; nothing here decodes one again.
"""

import asyncio
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field

from broker.domain.events import Event, EventName, NewEvent
from broker.domain.values import (
    FIRST_FAULT,
    NEVER_NULL,
    FreeObject,
    Id,
    Integer,
    Model,
    bounded,
    limited_by,
)
from broker.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge
from broker.operations.context import Context, nobody_waits
from broker.operations.listing import MAX_IDS, CommaList, ListParams
from broker.operations.metadata import compact
from broker.operations.program_access import allowed_program, check_publisher
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Json
from broker.owners.commands import (
    DeleteEvent,
    DeleteEvents,
    EventChanges,
    Publish,
    TracedPublish,
    UpdateEvent,
)
from broker.owners.encoding import batch_json
from broker.owners.protocol import NewEventRow
from broker.resources.event_lists import (
    NDJSON,
    EventExport,
    export_events,
    list_events,
)
from broker.resources.programs import ProgramParams
from broker.storage.events import EventQuery

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ONE = {"programId": "final-2026", "eventId": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"}
_EXAMPLE_EVENT = {"event": "Score#update", "metadata": {"home": 2, "away": 1}}


_SINGLE_FIELDS = ("event", "timestamp", "timecode", "metadata")
_ONE_OR_MANY: list[Any] = [
    {"required": ["event"], "properties": {"event": {"type": "string"}, "events": {"type": "null"}}},
    {
        "required": ["events"],
        "properties": {"events": {"type": "array"}} | {name: {"type": "null"} for name in _SINGLE_FIELDS},
    },
]


class PublishParams(Model):
    """One event, or a list of them in `events`; never both."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _ONE_OR_MANY})

    program_id: Id
    event: Annotated[EventName | None, Field(description="`Component#action`")] = None
    timestamp: Annotated[
        Integer | None,
        Field(
            description="When the event occurred, in ms since 1970-01-01T00:00:00Z; the server's time when"
            " absent."
        ),
    ] = None
    timecode: Annotated[
        Integer | None,
        Field(description="Position of the event in the program, in ms; `timestamp` when absent."),
    ] = None
    metadata: FreeObject | None = Field(default=None, json_schema_extra=limited_by("metadata_limit_bytes"))
    events: Annotated[list[NewEvent], FIRST_FAULT, bounded(NewEvent)] | None = Field(
        default=None, json_schema_extra=limited_by("batch_limit_events") | {"minItems": 1}
    )


class EventBatch(Model):
    """Published events, in the order of the request."""

    events: list[Event]


class EventSort(StrEnum):
    """Fields of an event that it can be sorted by."""

    SEQ = "seq"
    EPOCH = "epoch"
    ID = "id"
    PROGRAM_ID = "programId"
    CREATED_TIME = "createdTime"
    TIMESTAMP = "timestamp"
    TIMECODE = "timecode"
    EVENT = "event"


class EventStatus(StrEnum):
    """How an event came to be."""

    PUBLISHED = "published"
    IMPORTED = "imported"


def _check_uuid(value: str) -> str:
    """The one spelling of a UUID; those without hyphens or with braces are not taken."""
    if not _UUID.fullmatch(value):
        raise ValueError("must be the id of an event, a UUID")
    return value.lower()


EventId = Annotated[
    str, AfterValidator(_check_uuid), Field(json_schema_extra={"pattern": f"^{_UUID.pattern}$"})
]


class FilterEventsParams(ListParams):
    """Which events of a program; without `sort` they are ordered by timecode and seq."""

    program_id: Id
    sort: Annotated[EventSort, Field(strict=False)] | None = None
    ids: Annotated[list[EventId], FIRST_FAULT, CommaList, Field(max_length=MAX_IDS)] | None = None
    status: (
        Annotated[
            list[Annotated[EventStatus, Field(strict=False)]], FIRST_FAULT, CommaList, Field(max_length=8)
        ]
        | None
    ) = None


class EventPage(Model):
    """One page of events; `total` counts those on the other pages too."""

    items: list[Event]
    total: int
    limit: int
    skip: int


class EventParams(Model):
    """Names an event of a program."""

    program_id: Id
    event_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})]


class UpdateEventParams(Model):
    """An event's new fields; those that are absent keep their value.

    Null brings back what an event has that was published without the field. The fields that the server sets
    are taken, so that an event that was read can be sent back, and ignored.
    """

    program_id: Id
    event_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})]
    id: Annotated[str | None, Field(description="The event's id, which cannot change.")] = None
    event: EventName | None = Field(default=None, json_schema_extra=NEVER_NULL)
    timestamp: Integer | None = None
    timecode: Integer | None = None
    metadata: FreeObject | None = Field(default=None, json_schema_extra=limited_by("metadata_limit_bytes"))
    seq: Annotated[object, Field(description="Ignored.")] = None
    epoch: Annotated[object, Field(description="Ignored.")] = None
    created_time: Annotated[object, Field(description="Ignored.")] = None


class Deleted(Model):
    """How many events were deleted."""

    deleted: int


async def _publish(context: Context, params: PublishParams) -> Json:
    new = _events_of(params, context.services.settings.batch_limit_events)
    limit_bytes = context.services.settings.metadata_limit_bytes
    prefix = "metadata" if params.events is None else "events[{}].metadata"
    rows = [
        NewEventRow(
            context.services.ids.uuid7(),
            event.timestamp,
            event.timecode,
            event.event or "",
            compact(event.metadata, prefix.format(index), limit_bytes),
        )
        for index, event in enumerate(new)
    ]
    await check_publisher(context, params.program_id)
    await context.services.event_rates.take(context.principal.account, len(rows))
    accepted = await _in_order(context, params.program_id, rows)
    warmer = context.services.image_warmer
    if warmer.is_on:
        warmer.note(context.principal.account, [event.metadata for event in new])
    await context.services.presence.note(context.principal)
    if params.events is not None:
        return Json(batch_json(accepted))
    return Json(accepted[0], {"Location": f"/api/v1/programs/{params.program_id}/events/{rows[0].id}"})


async def _in_order(context: Context, program_id: str, rows: Sequence[NewEventRow]) -> list[bytes]:
    """Publish, and say when the order is fixed: the next request of a connection need not wait for more."""
    services, account = context.services, context.principal.account
    id_, events, key = rows[0].id, tuple(rows), context.key  # a new id, and good for the command, too
    command = Publish(id_, account, program_id, events, key)
    if context.trace is not None:
        command = TracedPublish(id_, account, program_id, events, key, context.trace)
    publishing = services.owners.submit(command)
    if context.ordered is nobody_waits:
        return (await publishing).events
    # Tasks are first stepped in the order in which they are made, and that step puts a publish in its queue.
    task = asyncio.ensure_future(publishing)
    context.ordered()
    return (await task).events


def _events_of(params: PublishParams, limit: int) -> Sequence[PublishParams | NewEvent]:
    if params.events is None:
        if params.event is None:
            raise InvalidRequest.of_field("event", "is required unless events is given")
        return [params]
    for name in _SINGLE_FIELDS:
        if getattr(params, name) is not None:
            raise InvalidRequest.of_field(name, "must not be combined with events")
    if not params.events:
        raise InvalidRequest.of_field("events", "must have at least one event")
    if len(params.events) > limit:
        raise PayloadTooLarge.of_field("events", f"must not have over {limit} events")
    return params.events


async def _filter_events(context: Context, params: FilterEventsParams) -> Json:
    await allowed_program(context, params.program_id)
    query = EventQuery(
        limit=params.limit,
        skip=params.skip,
        sort=params.sort or EventSort.TIMECODE,
        descending=params.order == "desc",
        search=params.search,
        ids=params.ids,
        statuses=params.status,
    )
    items, total = await context.services.events.filter(context.principal.account, params.program_id, query)
    tail = f'],"total":{total},"limit":{params.limit},"skip":{params.skip}}}'
    return Json(b'{"items":[' + b",".join(items) + tail.encode())


async def _get_event(context: Context, params: EventParams) -> Json:
    await allowed_program(context, params.program_id)
    event_id = _event_id(params)
    return Json(await context.services.events.get(context.principal.account, params.program_id, event_id))


async def _update_event(context: Context, params: UpdateEventParams) -> Json:
    await allowed_program(context, params.program_id)
    event_id = _event_id(params)
    if params.id is not None and params.id.lower() != event_id:
        raise InvalidRequest.of_field("id", "must be the event's id as in the path; it cannot change")
    changes: EventChanges = {}
    for name in params.model_fields_set & {"event", "timestamp", "timecode"}:
        changes[name] = getattr(params, name)  # type: ignore[literal-required]  # of these three
    if "event" in changes and params.event is None:
        raise InvalidRequest.of_field("event", "must not be null")
    if "metadata" in params.model_fields_set:
        limit_bytes = context.services.settings.metadata_limit_bytes
        changes["metadata"] = compact(params.metadata, "metadata", limit_bytes)
    services, account = context.services, context.principal.account
    await services.event_rates.take(account, 1)
    command = UpdateEvent(
        services.ids.uuid7(), account, params.program_id, event_id, changes, context.caller, context.key
    )
    changed = await services.owners.submit(command)
    if services.image_warmer.is_on:
        services.image_warmer.note(account, [params.metadata])
    return Json(changed)


async def _delete_event(context: Context, params: EventParams) -> None:
    await allowed_program(context, params.program_id)
    event_id = _event_id(params)
    services, account = context.services, context.principal.account
    await services.owners.submit(
        DeleteEvent(services.ids.uuid7(), account, params.program_id, event_id, context.caller, context.key)
    )


async def _delete_events(context: Context, params: ProgramParams) -> Deleted:
    await allowed_program(context, params.program_id)
    services, account = context.services, context.principal.account
    command = DeleteEvents(services.ids.uuid7(), account, params.program_id, context.caller, context.key)
    return Deleted(deleted=await services.owners.submit(command))


def _event_id(params: EventParams | UpdateEventParams) -> str:
    """The event's id in its one spelling. What is no UUID names no event."""
    try:
        return _check_uuid(params.event_id)
    except ValueError:
        raise NotFound(f"there is no such event in program {params.program_id}") from None


OPERATIONS = of_resource(
    "Program events",
    Operation(
        name="getProgramEvents",
        summary="List all events of a program, ordered by timecode and seq",
        result=list[Event],
        handler=list_events,
        is_list=True,
        route=Route(
            "GET",
            "/programs/{programId}/events",
            description="With `to`, caches may keep the response, for an hour if `to` is over a minute in the"
            " past. The list is a snapshot, however long it takes to read. With `limit` the snapshot"
            " is read in pages: as long as there are more, `Link` with `rel=next` (RFC 8288) is the"
            " URL of the next page. If the events have been erased or replaced since the first page,"
            " the next one is 409. One address may read {lists_per_address} lists of over 200 events without"
            " `limit`, or of a range with `includeCreated`, concurrently and begin {lists_rate_per_address}"
            " per second (burst {lists_burst_per_address}), and one account {lists_per_account} and"
            " {lists_rate_per_account} (burst {lists_burst_per_account}), counted separately with and"
            " without a token; 0 is no limit. Over WebSocket `withCursor: true` makes the result an"
            " object of `items` and `cursor`, which is null after the last page.",
            headers=("Link",),
        ),
        former_names=("admin/getProgramEvents",),
        errors=(Conflict,),
        has_cursor=True,
        example={"programId": "final-2026", "from": 0},
    ),
    Operation(
        name="producer",
        summary="Publish one event, or a batch of events, to all subscribers of the program",
        result=Event | EventBatch,
        handler=_publish,
        route=Route(
            "POST",
            "/programs/{programId}/events",
            status=201,
            description="Returns when the events are durable: the event, or `events` for a batch.",
            location="/programs/{programId}/events/{id}",
            locates_itself=True,
        ),
        is_owners=True,
        is_traced=True,
        example=_EXAMPLE_EVENT | {"programId": "final-2026"},
    ),
    Operation(
        name="deleteAllProgramEvents",
        summary="Delete all events of a program",
        handler=_delete_events,
        route=Route("DELETE", "/programs/{programId}/events"),
        former_names=("admin/deleteAllProgramEvents",),
        is_owners=True,
        example={"programId": "final-2026"},
    ),
    Operation(
        name="filterProgramEvents",
        summary="Search events of a program",
        result=EventPage,
        handler=_filter_events,
        is_list=True,
        route=Route(
            "GET", "/programs/{programId}/events/filter", description="`search` matches names and metadata."
        ),
        example={"programId": "final-2026", "search": "score", "limit": 20},
    ),
    Operation(
        name="exportProgramEvents",
        summary="Export the events of a program",
        result=EventExport,
        handler=export_events,
        is_list=True,
        route=Route(
            "GET",
            "/programs/{programId}/events/export",
            description=f"A download that can be imported; as {NDJSON} it has one event a line.",
            produces=("application/json", NDJSON),
            headers=("Content-Disposition",),
        ),
        example={"programId": "final-2026"},
    ),
    Operation(
        name="getProgramEvent",
        summary="Get an event",
        result=Event,
        handler=_get_event,
        route=Route("GET", "/programs/{programId}/events/{eventId}"),
        example=_ONE,
    ),
    Operation(
        name="updateProgramEvent",
        summary="Change an event and notify the subscribers of the program",
        result=Event,
        handler=_update_event,
        route=Route(
            "PUT",
            "/programs/{programId}/events/{eventId}",
            description="Returns the content of the notification `eventUpdated`, with its `seq`. The stored"
            " event keeps the `seq` of its publishing, by which lists are ordered.",
        ),
        is_owners=True,
        example=_ONE | {"metadata": {"home": 2, "away": 2}},
    ),
    Operation(
        name="deleteProgramEvent",
        summary="Delete an event and notify the subscribers of the program",
        handler=_delete_event,
        route=Route("DELETE", "/programs/{programId}/events/{eventId}", status=204),
        is_owners=True,
        example=_ONE,
    ),
)
