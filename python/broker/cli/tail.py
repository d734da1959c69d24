"""`broker tail`."""

import asyncio
import re
from typing import Annotated, Any

import orjson
import typer

from broker.cli.output import to_wire, write_json, write_line
from broker.cli.remote import DEFAULT_URL, Json, Password, TokenOption, Url, Username, open_client
from broker.client import (
    Change,
    Cursor,
    Event,
    EventDeleted,
    EventsDeleted,
    EventUpdated,
    HistoryReplaced,
)

# The id is a UUID, which no seq and no end of an epoch looks like.
_CURSOR = re.compile(r"(?P<epoch>.+?):(?P<seq>[0-9]+)(:(?P<id>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}))?")


def tail(
    program: Annotated[str, typer.Argument(help="Id of the program.")],
    since: Annotated[
        str | None,
        typer.Option(metavar="EPOCH:SEQ[:ID]", help="Continue after this position.", show_default=False),
    ] = None,
    history: Annotated[int, typer.Option(min=0, help="Start with the last N events.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="End after N events.", show_default=False)] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Also show changed and deleted events.")] = False,
    url: Url = DEFAULT_URL,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Print a program's events as they are published. Reconnects and recovers until Ctrl-C."""
    cursor = parse_cursor(since)

    async def run() -> None:
        left = count
        async with open_client(url, token, username, password) as client:
            async for change in client.subscribe(program, cursor, history, changes=changes):
                write_json(_labelled(change)) if json else write_line(render(change))
                left = None if left is None else left - 1
                if left == 0:
                    return

    asyncio.run(run())


def parse_cursor(text: str | None) -> Cursor | None:
    """Read `EPOCH:SEQ` or `EPOCH:SEQ:ID`. Raises BadParameter."""
    if text is None:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise typer.BadParameter("--since must be EPOCH:SEQ or EPOCH:SEQ:ID, such as Xy3kQ0aB12cd:41")
    return Cursor(found["epoch"], int(found["seq"]), found["id"])


def render(change: Change) -> str:
    """One line for people."""
    match change:
        case Event():
            return _event_line(change)
        case EventUpdated(event):
            return f"{_event_line(event)}  (changed)"
        case EventDeleted():
            return f"{change.seq:>6}  event {change.id} was deleted"
        case EventsDeleted():
            return f"{'':>6}  all {change.deleted} events were deleted; epoch {change.epoch}"
        case HistoryReplaced():
            return f"{'':>6}  the history was replaced, up to {change.seq}; epoch {change.epoch}"


def _event_line(event: Event) -> str:
    moment = event.created_time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    metadata = orjson.dumps(event.metadata).decode() if event.metadata else ""
    return f"{event.seq:>6}  {moment}  {event.event}  {metadata}".rstrip()


_METHODS = {
    EventUpdated: "eventUpdated",
    EventDeleted: "eventDeleted",
    EventsDeleted: "eventsDeleted",
    HistoryReplaced: "historyReplaced",
}


def _labelled(change: Change) -> dict[str, Any]:
    """As on the wire; what is no event carries `method` first."""
    if isinstance(change, Event):
        wire: dict[str, Any] = to_wire(change)
        return wire
    body = change.event if isinstance(change, EventUpdated) else change
    return {"method": _METHODS[type(change)], **to_wire(body)}
