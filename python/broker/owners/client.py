"""What operations publish and change events with: the caller's side of the program owners."""

from collections.abc import Sequence
from typing import Protocol

from broker.domain.audit import Actor
from broker.domain.idempotency import IdempotencyKey
from broker.domain.programs import Program
from broker.owners.protocol import Caller, NewEventRow
from broker.slots.calls import Carried


class Accepted(Carried, frozen=True):
    """What a publish answers: the finished JSON of each event, in order."""

    events: list[bytes]


class Kept(Carried, frozen=True):
    """What a command answers whose key has a result: HTTP status and JSON of that."""

    status: int
    body: bytes


class Imported(Carried, frozen=True):
    """What an import answers."""

    deleted: int
    imported: int
    epoch: str


class Owners(Protocol):
    """The port to the owners.

    Every method returns after its effect is durable in PostgreSQL. One that raises `Unavailable` has not
    happened at all, one that raises `OutcomeUnknown` has wholly happened or not at all. A change that comes
    with a key leaves its result under it, in one transaction; one whose key has a result raises `Repeated`
    with it and does nothing, or `Conflict` when the key was used for another request.

    Calls on one program take effect in the order in which the coroutines were first stepped within one
    process; `publish` is in its owner's queue when its first await begins.

    With a `caller` a change raises `InsufficientScope` or `NotFound` when the caller may not do it to the
    program as it is at the moment of the change.
    """

    async def publish(
        self, account: str, program_id: str, events: Sequence[NewEventRow], key: IdempotencyKey | None
    ) -> Accepted:
        """Append `events`, contiguous and in order.

        Raises:
            NotFound: no such program.
            Unavailable: the owner or the database cannot be reached in time.
        """

    async def update_event(
        self,
        account: str,
        program_id: str,
        event_id: str,
        changes: dict[str, object],
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
    ) -> bytes:
        """Change fields of one event (`event`, `timestamp`, `timecode`, `metadata`) and push `eventUpdated`.

        Returns:
            The JSON of the event as it now is. Raises NotFound, Unavailable.
        """

    async def delete_event(
        self,
        account: str,
        program_id: str,
        event_id: str,
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
    ) -> None:
        """Delete one event and push `eventDeleted`. Raises NotFound, Unavailable."""

    async def delete_events(
        self,
        account: str,
        program_id: str,
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
    ) -> int:
        """Delete all events, begin a new epoch, push `eventsDeleted`; returns how many there were."""

    async def adopt_import(
        self,
        account: str,
        program_id: str,
        import_id: str,
        count: int,
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
    ) -> Imported:
        """Replace the program's events by the `count` staged rows and push `historyReplaced`."""

    async def update_program(
        self,
        account: str,
        program_id: str,
        changes: dict[str, object],
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
    ) -> Program:
        """Change the program's fields that `changes` names, by the names of `Program`; the others stay.

        Pushes to the `programs` channel, and applies a changed access at once.

        Returns:
            The program as it now is. Raises NotFound, Unavailable.
        """

    async def delete_program(
        self,
        account: str,
        program_id: str,
        by: Actor | None = None,
        caller: Caller | None = None,
        key: IdempotencyKey | None = None,
        *,
        of_project: str | None = None,
    ) -> None:
        """Delete the program with its events, push `programDeleted` and end its subscriptions.

        Args:
            of_project: delete it only while it belongs to this project; NotFound otherwise.
        """

    async def value_stored(self, account: str, project_id: str) -> None:
        """Tell the owner of the project's `storage` channel to look for news; loses nothing when it fails."""

    async def answers_counted(self, account: str, program_id: str) -> None:
        """Tell the owner of the program's `responses` channel to look for news; as `value_stored` does."""

    async def program_created(self, account: str) -> None:
        """Tell the owner of the `programs` channel to look for news; loses nothing when it fails."""
