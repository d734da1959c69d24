"""`broker tail`."""

import asyncio
import re
from typing import Annotated, Any

import orjson
import typer

from broker.cli.output import to_wire, write_json, write_line, write_notice
from broker.cli.remote import NOTICE_S, JsonOption, ProgramId, Remote, find_url
from broker.client import (
    Backoff,
    Change,
    ClientError,
    Cursor,
    Event,
    EventDeleted,
    EventsDeleted,
    EventUpdated,
    HistoryReplaced,
    RetryPolicy,
    SubscriptionConfig,
)

# The id is a UUID, which no seq and no end of an epoch looks like.
_CURSOR = re.compile(r"(?P<epoch>.+?):(?P<seq>[0-9]+)(:(?P<id>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}))?")


# A person watches: a broker that is back is followed again within two seconds.
_BACK_OFF = Backoff(0.25, 2.0)
_TRY_S = 5.0


class _State:
    """Tells people whether the program is followed: once when it is, once when it is not any more."""

    def __init__(self, program: str, url: str) -> None:
        self._program = program
        self._url = url
        self._told: str | None = None
        self._late: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "_State":
        waiting = f"waiting for {self._url}"
        self._late = asyncio.get_running_loop().call_later(NOTICE_S, self._tell, waiting, "waiting")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._settle()

    def live(self) -> None:
        """The program is followed from now on."""
        self._tell(f"following {self._program} at {self._url}; Ctrl-C ends it", "live")

    def lost(self, error: ClientError) -> None:
        """There is no connection, and another try will be made."""
        self._tell(f"{error}; trying again until Ctrl-C", "lost")

    def _tell(self, text: str, state: str) -> None:
        self._settle()
        if state != self._told:
            self._told = state
            write_notice(text)

    def _settle(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def tail(
    program: ProgramId,
    since: Annotated[
        str | None, typer.Option(metavar="EPOCH:SEQ[:ID]", help="Continue after this position.")
    ] = None,
    history: Annotated[int, typer.Option(min=0, help="Start with the last N events.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="End after N events.")] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Also show changed and deleted events.")] = False,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Print a program's events as they are published. Reconnects and recovers until Ctrl-C.

    The state of the connection goes to standard error.
    """
    cursor = parse_cursor(since)

    async def run() -> None:
        left = count
        state = _State(program, find_url(remote.url))
        subscription = SubscriptionConfig(
            backoff=_BACK_OFF, first_deadline_s=None, on_live=state.live, on_lost=state.lost
        )
        once = RetryPolicy(deadline_s=0, timeout_s=_TRY_S)  # the subscription itself tries again
        async with (
            remote.open_client(retry=once, subscription=subscription) as client,
            state,
        ):
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
