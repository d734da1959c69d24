"""All events of a program, as one list, in pages, or as a document for import.

A list is of one moment, whole or in pages. A whole one is sent as it is read, page by page from the database;
one that is longer than a page, or for which all events must be read, is bounded in number and rate
(`broker.limits.long_lists`).
"""

import base64
import binascii
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext
from typing import Annotated
from urllib.parse import urlencode

from pydantic import Field

from broker.clock import to_datetime
from broker.domain.events import Event
from broker.domain.programs import Access, Program
from broker.domain.values import Id, Integer, Model, format_time
from broker.errors import InvalidRequest
from broker.operations.context import Context
from broker.operations.listing import MAX_LIMIT
from broker.operations.program_access import allowed_program
from broker.operations.results import Json, Stream
from broker.storage.events import EventRange, ListPlace

NDJSON = "application/x-ndjson"
PAGE_BYTES = 1 << 20  # of a list in pages: what one answer over WebSocket may have, with room for its frame
MAX_CURSOR_CHARACTERS = 300

# Lists that end this far in the past do not change any more, apart from corrections.
_SETTLED_MS = 60_000
_PLACE = re.compile(r"([0-9A-Za-z_-]{1,128})/([0-9]{1,18})/(-?[0-9]{1,16})/([0-9]{1,18})")


class ListEventsParams(Model):
    """Which events: timecodes from `from` to `to`, both inclusive, in milliseconds.

    With `includeCreated` an event is also in the range when it was created in it.
    """

    program_id: Id
    from_: Annotated[Integer | None, Field(alias="from")] = None
    to: Integer | None = None
    include_created: bool = False
    limit: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_LIMIT,
            description="Maximum number of events on a page, which also ends at about a megabyte; all events"
            " when absent.",
        ),
    ] = None
    cursor: Annotated[
        str | None,
        Field(
            max_length=MAX_CURSOR_CHARACTERS,
            description="Position from `Link: rel=next` of the previous page; the range must stay the same.",
        ),
    ] = None


class ExportParams(Model):
    """Names the program whose events are exported."""

    program_id: Id


class EventExport(Model):
    """All events of a program; a valid body of an import."""

    program_id: str
    exported_time: str
    events: list[Event]


async def list_events(context: Context, params: ListEventsParams) -> Stream | Json:
    """The events of a range."""
    if params.from_ is not None and params.to is not None and params.to < params.from_:
        raise InvalidRequest.of_field("to", "must not be less than from")
    after = None if params.cursor is None else _parse_cursor(params.cursor)
    program = await allowed_program(context, params.program_id)
    selected = EventRange(start=params.from_, end=params.to, or_created=params.include_created)
    headers = _cache_control(context, params, program)
    if params.limit is None and after is None:
        return Stream(_document(context, params.program_id, selected, b"[", b"]"), headers=headers)
    with _admitted(context) if selected.needs_all else nullcontext():
        page = await context.services.events.page(
            context.principal.account,
            params.program_id,
            selected,
            params.limit or MAX_LIMIT,
            PAGE_BYTES,
            after,
        )
    cursor = None
    if page.next is not None:
        cursor = _cursor_of(page.next)
        headers["Link"] = f'<{_next_link(params, cursor)}>; rel="next"'
    return Json(b"[" + b",".join(page.events) + b"]", headers, cursor=cursor)


async def export_events(context: Context, params: ExportParams) -> Stream:
    """All events of a program as a download."""
    await allowed_program(context, params.program_id)
    everything = EventRange()
    name = params.program_id.replace(":", "_")
    if context.accept == NDJSON:
        headers = {"Content-Disposition": f'attachment; filename="{name}-events.ndjson"'}
        return Stream(_lines(context, params.program_id, everything), NDJSON, headers)
    time = format_time(to_datetime(context.services.clock.now_ms()))
    opening = f'{{"programId":"{params.program_id}","exportedTime":"{time}","events":['.encode()
    headers = {"Content-Disposition": f'attachment; filename="{name}-events.json"'}
    return Stream(_document(context, params.program_id, everything, opening, b"]}"), headers=headers)


def _cache_control(context: Context, params: ListEventsParams, program: Program) -> dict[str, str]:
    if params.to is None:
        return {}
    is_settled = params.to < context.services.clock.now_ms() - _SETTLED_MS
    scope = "public" if program.access is Access.PUBLIC else "private"
    return {"Cache-Control": f"{scope}, max-age={3600 if is_settled else 2}"}


async def _document(
    context: Context, program_id: str, selected: EventRange, opening: bytes, closing: bytes
) -> AsyncGenerator[bytes]:
    begun = False
    async with aclosing(_pages(context, program_id, selected)) as pages:
        async for page in pages:
            yield (b"," if begun else opening) + b",".join(page)
            begun = True
    yield closing if begun else opening + closing


async def _lines(context: Context, program_id: str, selected: EventRange) -> AsyncGenerator[bytes]:
    async with aclosing(_pages(context, program_id, selected)) as pages:
        async for page in pages:
            yield b"\n".join(page) + b"\n"


async def _pages(context: Context, program_id: str, selected: EventRange) -> AsyncGenerator[list[bytes]]:
    """The events in pages, none of them empty. Raises SlowDown before the first one is there."""
    with ExitStack() as stack:
        if selected.needs_all:
            stack.enter_context(_admitted(context))
        pages = context.services.events.pages(context.principal.account, program_id, selected)
        async with aclosing(pages):
            first = await anext(pages)
            if first.next is not None and not selected.needs_all:
                stack.enter_context(_admitted(context))
            if first.events:
                yield first.events
            async for page in pages:
                if page.events:
                    yield page.events


def _admitted(context: Context) -> AbstractContextManager[None]:
    """Counts a long list while it is read. Raises SlowDown."""
    return context.services.long_lists.admit(context.principal, context.address)


def _next_link(params: ListEventsParams, cursor: str) -> str:
    query = params.model_dump(by_alias=True, exclude={"program_id", "cursor"}, exclude_defaults=True)
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    return f"/api/v1/programs/{params.program_id}/events?{urlencode(said | {'cursor': cursor})}"


def _cursor_of(place: ListPlace) -> str:
    text = f"{place.epoch}/{place.upto}/{place.timecode}/{place.seq}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _parse_cursor(cursor: str) -> ListPlace:
    """The place that a cursor names. Raises InvalidRequest for what we did not write."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode(
            "ascii"
        )
    except (binascii.Error, ValueError):
        text = ""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidRequest.of_field("cursor", "must be a cursor from a Link header of this list")
    epoch, *numbers = match.groups()
    return ListPlace(epoch, *map(int, numbers))
