"""The commands that doors send to owners, and the replies.

Every command carries an id of its own, made by whoever asks. A command that comes twice, because the first
answer was lost, takes effect once: a publish is known by the ids of its events, every other command by a row
that its transaction leaves, under the request's key if there is one and else under its id. Answers, errors
too, are plain values.

A command says what is to change, never what the whole is to be: whoever asks has read it some time ago. For
the same reason a command that has a `caller` is refused when its rights end before its turn comes. Publishes
have none: their door looks, and may be a second late.
"""

from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar

from broker.domain.audit import Actor
from broker.domain.idempotency import IdempotencyKey
from broker.domain.programs import Access, Program
from broker.errors import BrokerError
from broker.owners.protocol import Caller, NewEventRow
from broker.rpc.calls import Carried

_OVERHEAD_BYTES = 200  # of a command or an event besides its metadata, roughly


class Accepted(Carried, frozen=True):
    """The reply to a publish: the finished JSON of each event, in order."""

    events: list[bytes]


class Imported(Carried, frozen=True):
    """The reply to an import."""

    deleted: int
    imported: int
    epoch: str


class Kept(Carried, frozen=True):
    """The reply to a command whose key has a result: HTTP status and JSON of that."""

    status: int
    body: bytes


R = TypeVar("R")


class ProgramCommand(Carried, Generic[R], frozen=True):
    """A change of one program; `R` is the reply to one that succeeds.

    Attributes:
        id: made by whoever sends it, for this command alone.
    """

    id: str
    account: str
    program_id: str


class Publish(ProgramCommand[Accepted], frozen=True):
    """Append events, contiguous and in order; an unknown program is `NotFound`."""

    events: tuple[NewEventRow, ...]
    key: IdempotencyKey | None


class TracedPublish(Publish, tag="Publish", frozen=True):
    """A publish as a link takes it: one that is not traced has no `trace`, and no byte for it.

    `trace` names the span that it is a part of (`broker.tracing.contexts`). A process that knows no traces
    reads a plain `Publish`.
    """

    trace: str | None = None


class EventChanges(TypedDict, total=False):
    """New values of an event's fields; `metadata` is compact JSON."""

    event: str
    timestamp: int | None
    timecode: int | None
    metadata: bytes | None


class ProgramChanges(TypedDict, total=False):
    """New values of a program's fields."""

    name: str
    scheduled_start_time: datetime | None
    scheduled_end_time: datetime | None
    project_id: str | None
    access: Access
    metadata: dict[str, Any] | None


class UpdateEvent(ProgramCommand[bytes], frozen=True):
    """Change those fields of one event that `changes` names; None restores the default.

    Pushes `eventUpdated`. The reply is the JSON of the event as it now is.
    """

    event_id: str
    changes: EventChanges
    caller: Caller | None = None
    key: IdempotencyKey | None = None


class DeleteEvent(ProgramCommand[None], frozen=True):
    """Delete one event, and push `eventDeleted`."""

    event_id: str
    caller: Caller | None = None
    key: IdempotencyKey | None = None


class DeleteEvents(ProgramCommand[int], frozen=True):
    """Delete all events, begin a new epoch and push `eventsDeleted`. The reply is how many there were."""

    caller: Caller | None = None
    key: IdempotencyKey | None = None


class AdoptImport(ProgramCommand[Imported], frozen=True):
    """Replace all events by `rows` staged ones, begin a new epoch and push `historyReplaced`."""

    import_id: str
    rows: int
    caller: Caller | None = None
    key: IdempotencyKey | None = None


class UpdateProgram(ProgramCommand[Program], frozen=True):
    """Change those fields of a program that `changes` names; the others stay as they are by then.

    Tells the `programs` channel, and applies a changed access at once. The reply is the program as it now is.
    `project_was_there` says that there was a project of the new `project_id` when the change was asked for;
    `Conflict` when it is being deleted, or has been since.
    """

    changes: ProgramChanges
    caller: Caller | None = None
    key: IdempotencyKey | None = None
    project_was_there: bool = False


class DeleteProgram(ProgramCommand[None], frozen=True):
    """Delete a program and its events; the audit log says `by` whom, if that is given.

    With `of_project` only while the program belongs to that project; `NotFound` otherwise. Pushes
    `programDeleted` and ends the program's subscriptions.
    """

    by: Actor | None = None
    caller: Caller | None = None
    of_project: str | None = None
    key: IdempotencyKey | None = None


_Other = UpdateEvent | DeleteEvent | DeleteEvents | AdoptImport | UpdateProgram | DeleteProgram
Command = Publish | _Other
CarriedCommand = TracedPublish | _Other
"""A command as it comes out of a link."""
CommandReply = Accepted | Imported | Program | Kept | BrokerError | bytes | int | None

EXCLUSIVE = (DeleteEvents, AdoptImport, UpdateProgram, DeleteProgram)
"""Commands that are the only one of their program in a group."""


def size_bytes(command: Command) -> int:
    """About how much room the command takes; for bounds, not for bills."""
    if isinstance(command, Publish):
        return sum(len(event.metadata) + _OVERHEAD_BYTES for event in command.events) + _OVERHEAD_BYTES
    if isinstance(command, UpdateEvent):
        return _OVERHEAD_BYTES + len(command.changes.get("metadata") or b"")
    if isinstance(command, UpdateProgram):
        return _OVERHEAD_BYTES + 1024
    return _OVERHEAD_BYTES
