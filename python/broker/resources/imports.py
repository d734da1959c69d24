"""Import: replaces all events of a program with a body that may be too large for memory.

The body's events are staged in the database as they are read and checked, and adopted by the program's owner
in one transaction. What fails before that leaves the program as it was.

An export can be imported with its ids, by which answers of the audience, titles and links name events. An id
that is no UUIDv7, or that belongs to another program of the account, is replaced. The new one is derived from
it, so that an id that stands twice is noticed without a list of all of them: both events then have one id,
which the database refuses.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Annotated

import orjson
from pydantic import ConfigDict, Field

from broker.clock import to_datetime
from broker.domain.events import NewEvent
from broker.domain.values import FIRST_FAULT, NEVER_NULL, Id, Model, bounded, limited_by
from broker.errors import InvalidRequest, PayloadTooLarge, Unavailable
from broker.ids import IdSource
from broker.operations.context import Context
from broker.operations.invoke import validate
from broker.operations.metadata import compact
from broker.operations.program_access import allowed_program
from broker.operations.registry import Operation, Route
from broker.operations.services import Services
from broker.owners.commands import AdoptImport
from broker.resources.import_body import import_members
from broker.storage.imports import ImportRow, ImportTarget, RepeatedId

# A stage is one COPY; these keep it from being many small ones, and from being large in memory.
_STAGE_ROWS = 1_000
_STAGE_BYTES = 4 << 20
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = (
    "Kept if it is a UUIDv7 that belongs to no other program; otherwise the event gets a new one."
    " Must not be repeated."
)


class ImportedEvent(NewEvent):
    """An event to import. But for `id`, what the server gives every event is taken and ignored."""

    id: Annotated[object, Field(description=_ID)] = None
    seq: Annotated[object, Field(description="Ignored.")] = None
    epoch: Annotated[object, Field(description="Ignored.")] = None
    program_id: Annotated[object, Field(description="Ignored.")] = None
    created_time: Annotated[object, Field(description="Ignored.")] = None


class ImportParams(Model):
    """The events that replace those of the program; `programId` must be the path's if given."""

    model_config = ConfigDict(json_schema_extra={"required": ["programId", "events"]})

    program_id: Id
    # A body that is streamed is not here, so the model cannot ask for it.
    events: Annotated[list[ImportedEvent], FIRST_FAULT, bounded(ImportedEvent)] | None = Field(
        default=None, json_schema_extra=limited_by("import_limit_events") | NEVER_NULL
    )
    exported_time: Annotated[object, Field(description="Ignored.")] = None


class ImportResult(Model):
    """How many events there were and are, and the epoch that began."""

    deleted: int
    imported: int
    epoch: str


async def _import_events(context: Context, params: ImportParams) -> ImportResult:
    await allowed_program(context, params.program_id)
    services = context.services
    await services.imports.purge(services.clock.now_ms())
    import_id = services.ids.uuid7()
    try:
        count = await _stage(context, params, import_id)
        account, caller, key = context.principal.account, context.caller, context.key
        imported = await services.owners.submit(
            AdoptImport(services.ids.uuid7(), account, params.program_id, import_id, count, caller, key)
        )
    except BaseException:
        # Without a database there is nothing to be done; what is stale is purged some day.
        with suppress(Unavailable):
            await services.imports.drop(import_id)
        raise
    return ImportResult(deleted=imported.deleted, imported=imported.imported, epoch=imported.epoch)


async def _stage(context: Context, params: ImportParams, import_id: str) -> int:
    """Stage the events of the body in its order; returns how many there are."""
    settings, services = context.services.settings, context.services
    now_ms = services.clock.now_ms()
    now = to_datetime(now_ms)
    target = ImportTarget(import_id, context.principal.account, params.program_id)
    rows: list[ImportRow] = []
    body_hash = hashlib.sha256()
    count = size = 0
    async with aclosing(_elements(context, params)) as elements:
        async for event in elements:
            if count == settings.import_limit_events:
                raise PayloadTooLarge.of_field(
                    "events", f"must not have over {settings.import_limit_events} events"
                )
            metadata = compact(event.metadata, f"events[{count}].metadata", settings.metadata_limit_bytes)
            count += 1
            if context.key is not None:
                body_hash.update(_content(event, metadata))
            event_id, is_given = _id(event.id, import_id, services.ids)
            rows.append(_row(event, metadata, count, event_id, is_given, now, now_ms))
            size += len(metadata)
            if len(rows) == _STAGE_ROWS or size >= _STAGE_BYTES:
                await _stage_rows(services, target, rows)
                rows, size = [], 0
    if rows:
        await _stage_rows(services, target, rows)
    if context.key is not None:
        context.key = context.key.with_body(body_hash.digest())
    return count


async def _stage_rows(services: Services, target: ImportTarget, rows: list[ImportRow]) -> None:
    def replace(event_id: str) -> str:
        return services.ids.uuid7_of(event_id, target.import_id)

    try:
        await services.imports.stage(target, rows, replace)
    except RepeatedId as error:
        raise InvalidRequest.of_field(f"events[{error.seq - 1}].id", "must not be repeated") from error


def _id(given: object, import_id: str, ids: IdSource) -> tuple[str, bool]:
    """The id of an event, unless it is taken, and whether it is the given one."""
    if given is None:
        return ids.uuid7(), False
    if isinstance(given, str) and _UUID7.fullmatch(given):
        return given.lower(), True
    return ids.uuid7_of(repr(given), import_id), False


def _content(event: ImportedEvent, metadata: bytes) -> bytes:
    """What an event adds to the hash of its import: all that is not ignored, in one spelling."""
    fields = orjson.dumps([repr(event.id), event.event, event.timestamp, event.timecode, len(metadata)])
    return fields + metadata


async def _elements(context: Context, params: ImportParams) -> AsyncGenerator[ImportedEvent]:
    """The elements of `events`, from the params or from a body that is still coming."""
    if context.body is None:
        if params.events is None:
            raise _missing()
        for event in params.events:
            yield event
        return
    # An element is no larger than the same event published alone.
    limit_bytes = context.services.settings.body_limit_bytes
    async with aclosing(_body_elements(context.body, params.program_id, limit_bytes)) as events:
        async for event in events:
            yield event


async def _body_elements(
    body: AsyncIterator[bytes], program_id: str, limit_bytes: int
) -> AsyncGenerator[ImportedEvent]:
    has_events = False
    async with aclosing(import_members(body, limit_bytes)) as members:
        async for field, value in members:
            if field.startswith("events["):
                has_events = True
                yield validate(ImportedEvent, value, field)
            elif field == "events":
                if not isinstance(value, list):
                    raise InvalidRequest.of_field("events", "must be a list")
                has_events = True
            elif field == "programId":
                if value not in (program_id, None):
                    raise InvalidRequest.of_field("programId", "must equal the one in the path")
            elif field not in ("exportedTime", "access_token"):
                raise InvalidRequest.of_field(field, "is not a field of this request")
    if not has_events:
        raise _missing()


def _missing() -> InvalidRequest:
    return InvalidRequest.of_field("events", "is required")


def _row(
    event: ImportedEvent,
    metadata: bytes,
    seq: int,
    event_id: str,
    is_given: bool,
    now: datetime,
    now_ms: int,
) -> ImportRow:
    timestamp = now_ms if event.timestamp is None else event.timestamp
    timecode = timestamp if event.timecode is None else event.timecode
    return ImportRow(seq, event_id, now, timestamp, timecode, event.event, metadata.decode(), is_given)


OPERATIONS = (
    Operation(
        name="importProgramEvents",
        summary="Replace all events of a program",
        handler=_import_events,
        route=Route(
            "POST",
            "/programs/{programId}/events/import",
            streams_body=True,
            echoed=("programId",),
            description="Imports all events or none. The events are not pushed; subscribers receive"
            " `historyReplaced`. An `access_token` in the body must be its first member.",
        ),
        is_owners=True,
        example={
            "programId": "final-2026",
            "events": [{"event": "Score#update", "timestamp": 1784484000000, "metadata": {"home": 1}}],
        },
        tag="Program events",
    ),
)
