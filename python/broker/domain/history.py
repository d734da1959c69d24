"""A program's history as rows: events, the pushes that change them, and the head of the history.

The sequencer plans with these types and the journal stores them; neither knows the other.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.domain.audit import AuditEntry
from broker.domain.idempotency import KeptResult
from broker.domain.programs import Program

ProgramKey = tuple[str, str]
"""Account and program id."""


class EventRow(NamedTuple):
    """A stored event. Times are milliseconds since the epoch; `metadata` is compact JSON."""

    seq: int
    id: str
    created_ms: int
    timestamp: int
    timecode: int
    event: str
    metadata: bytes


class HeadRow(NamedTuple):
    """Where a program's history stands, and what decides who may follow it.

    `uid` is the program's number, `history` that of what happened in this epoch: its events have it.
    `reason` (`created`, `imported`, `erased`, `lost`), `base` and `deleted` tell how the epoch began: the seq
    before its first push, and how many events its beginning deleted. `changed_ms` is None while nothing
    happened. `id` is that of the event that the push `seq` is about; empty when that is not known.
    `free_contexts`, as `public` and `project_id`, is the program's.
    """

    uid: int
    history: int
    epoch: str
    reason: str
    base: int
    deleted: int
    seq: int
    changed_ms: int | None
    public: bool
    project_id: str | None
    id: str
    free_contexts: bool = False


class PushRow(NamedTuple):
    """A push as recovery repeats it: as it was sent, or the deletion of its event in its place.

    `kind` is `event`, `updated` or `deleted`. `told` is the finished JSON of the params where it was kept;
    without it `event` holds the fields, or, for `deleted`, `event_id` says all.
    """

    seq: int
    kind: str
    event_id: str
    accepted_ms: int
    told: bytes | None
    event: EventRow | None


class ChangeRow(NamedTuple):
    """A push that changed or deleted one event.

    `before` is the JSON of the event as the last push before this one told it, `after` the params of
    `eventUpdated`, None for a deletion. Both are kept word for word, so that recovery repeats what was said.
    """

    history: int
    seq: int
    event_id: str
    event_seq: int
    kind: str
    before: bytes
    after: bytes | None
    accepted_ms: int


class HeadMove(NamedTuple):
    """The head of a program's history after a group: within its epoch, or at the base of a new one."""

    uid: int
    epoch: str
    reason: str
    base: int
    deleted: int
    seq: int
    changed_ms: int


class KeyRow(NamedTuple):
    """The result that is kept under an idempotency key."""

    account: str
    caller: str
    key: str
    request_hash: bytes
    status: int
    result: bytes


@dataclass(slots=True)
class Writes:
    """All that one group changes in the database; applied in one transaction or not at all.

    Attributes:
        events: new events by (history, event id), as they are at the end of the group.
        updated: events of earlier groups with their new content, keyed alike.
        deleted: events, old or new, that the group hides, keyed alike.
        moves: one a program, where its head ends up.
        erased: uids of programs that turn to a new, empty history before their heads move.
        adoptions: (program uid, history, import id): programs that turn to a staged history.
        programs: (uid, new fields) of changed programs.
        removed: uids of deleted programs.
        program_changes: (account, change, program, time) for the `programs` channel; a deletion has the
            uid of the program, which is read before it goes.
        audit: (account, entry) for the audit log.
    """

    events: dict[tuple[int, str], EventRow] = field(default_factory=dict)
    updated: dict[tuple[int, str], EventRow] = field(default_factory=dict)
    deleted: set[tuple[int, str]] = field(default_factory=set)
    changes: list[ChangeRow] = field(default_factory=list)
    moves: dict[int, HeadMove] = field(default_factory=dict)
    erased: list[int] = field(default_factory=list)
    adoptions: list[tuple[int, int, str]] = field(default_factory=list)
    programs: list[tuple[int, Program]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    program_changes: list[tuple[str, str, Program | int, int]] = field(default_factory=list)
    keys: list[KeyRow] = field(default_factory=list)
    audit: list[tuple[str, AuditEntry]] = field(default_factory=list)


@dataclass(slots=True)
class GroupState:
    """What a group's transaction read under its locks, for the planning.

    Attributes:
        heads: of the group's programs; one that is missing does not exist.
        events: the targets of changes and deletions that exist and are not deleted.
        keys: (account, caller, key) → (request hash, result), younger than a day.
        told: event id → JSON as published, for events of this group that are in the database already.
        counts: program uid → events that a reset of the program deletes.
        staged: import id → (history, rows) of imports that wait.
        programs: program uid → the program as it is, of those that are to be changed.
        going: (account, project id) of projects that are being deleted, where a program is to come into one.
    """

    heads: dict[ProgramKey, HeadRow] = field(default_factory=dict)
    events: dict[tuple[int, str], EventRow] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], tuple[bytes, KeptResult]] = field(default_factory=dict)
    told: dict[str, bytes] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    staged: dict[str, tuple[int, int]] = field(default_factory=dict)
    programs: dict[int, Program] = field(default_factory=dict)
    going: set[tuple[str, str]] = field(default_factory=set)
