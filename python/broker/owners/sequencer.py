"""The order of events: applies a group of commands to the histories of its programs. No I/O.

A group's transaction locks the heads of its programs and reads what the commands refer to. `Sequencer` then
applies the commands in the order of acceptance and gives each push the next seq of its program, so that

* seq counts 1, 2, 3 … without a gap over everything pushed in an epoch, and a batch is contiguous;
* acceptance times never decrease within a program, even if the wall clock steps back;
* a command that fails has no effect and does not affect other commands;
* a command that took effect before (its id or its idempotency key is known) gets the same reply and has no
  further effect.

A command on a whole program is the only command of that program in its group. The writer ensures this, so
that the rows of a group have no order among themselves.
"""

from collections.abc import Callable, Mapping

import orjson

from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.audit import AuditEntry
from broker.domain.history import (
    ChangeRow,
    EventRow,
    GroupState,
    HeadMove,
    HeadRow,
    KeyRow,
    ProgramKey,
    Writes,
)
from broker.domain.idempotency import IdempotencyKey, KeptResult, used_for_another
from broker.domain.permission_table import Rule
from broker.domain.programs import Access, Program, ProgramChange, has_free_contexts, program_json, turn_of
from broker.domain.projects import going_project
from broker.domain.users import Principal
from broker.errors import BrokerError, NotFound, Unavailable
from broker.owners.commands import (
    Accepted,
    AdoptImport,
    Command,
    CommandReply,
    DeleteEvent,
    DeleteEvents,
    DeleteProgram,
    EventChanges,
    Imported,
    Kept,
    Publish,
    TracedPublish,
    UpdateEvent,
    UpdateProgram,
)
from broker.owners.encoding import (
    attributes_entry,
    attributes_of,
    batch_json,
    deleted_json,
    event_json,
    gone_entry,
    reset_entry,
    trace_entry,
)
from broker.owners.protocol import Attributes, Caller, Entry, EntryKind

INTERNAL_CALLER = ""
"""The caller under which commands leave their ids; no token has an empty subject."""

_RULES: Mapping[type[Command], Rule] = {
    UpdateEvent: permissions.rule_of("updateProgramEvent"),
    DeleteEvent: permissions.rule_of("deleteProgramEvent"),
    DeleteEvents: permissions.rule_of("deleteAllProgramEvents"),
    AdoptImport: permissions.rule_of("importProgramEvents"),
    UpdateProgram: permissions.rule_of("updateProgram"),
    DeleteProgram: permissions.rule_of("admin/deleteProgram"),
}


class Sequencer:
    """Plans one group. `add` each command in order, then take `replies`, `writes` and `entries`.

    `heads` are where the programs then stand, except those that a command touched as a whole.
    """

    def __init__(self, found: GroupState, now_ms: int, new_epoch: Callable[[], str]) -> None:
        self.writes = Writes()
        self.entries: dict[ProgramKey, list[Entry]] = {}
        self.replies: list[CommandReply] = []
        self.published: dict[tuple[str, str, str | None], int] = {}
        self._found = found
        self._now_ms = now_ms
        self._new_epoch = new_epoch
        self.heads = dict(found.heads)
        self._events = dict(found.events)
        self._keys = dict(found.keys)

    def add(self, command: Command) -> None:
        """Plan one command; its reply, an error too, goes to the end of `replies`."""
        try:
            self.replies.append(self._add(command))
        except BrokerError as error:
            self.replies.append(error)

    def _add(self, command: Command) -> CommandReply:
        kept = None if command.key is None else self._kept(command.account, command.key)
        if kept is not None:
            return kept
        if isinstance(command, Publish):
            return self._publish(command)
        known = self._keys.get((command.account, INTERNAL_CALLER, command.id))
        if known is not None:
            return _read_reply(command, known[1].body)
        head = self._head(command)
        if command.caller is not None:
            _require(command, command.caller, head)
        reply: CommandReply = None
        if isinstance(command, UpdateEvent):
            reply = self._update_event(command, head)
        elif isinstance(command, DeleteEvent):
            self._delete_event(command, head)
        elif isinstance(command, DeleteEvents):
            self.writes.erased.append(head.uid)
            reply = self._reset(command, head, "erased", 0)
        elif isinstance(command, AdoptImport):
            reply = self._adopt(command, head)
        elif isinstance(command, UpdateProgram):
            reply = self._update_program(command, head)
        else:
            self._delete_program(command, head)
        if command.key is None:
            row = KeyRow(command.account, INTERNAL_CALLER, command.id, b"", 200, _write_reply(reply))
            self.writes.keys.append(row)
        else:
            self._keep(command.account, command.key, _result(command, reply, self._now_ms))
        return reply

    def _head(self, command: Command) -> HeadRow:
        head = self.heads.get((command.account, command.program_id))
        if head is None:
            raise NotFound(f"there is no program {command.program_id}")
        return head

    # -- single events

    def _publish(self, command: Publish) -> Accepted:
        told = self._found.told
        if told and command.events and all(event.id in told for event in command.events):
            return Accepted([told[event.id] for event in command.events])
        head = self._head(command)
        accepted_ms = self._accepted_ms(head)
        events = []
        entries = self.entries.setdefault((command.account, command.program_id), []) if command.events else []
        if isinstance(command, TracedPublish) and command.trace is not None:
            entries.append(trace_entry(head.epoch, head.seq, attributes_of(head), command.trace))
        seq = head.seq
        for new in command.events:
            seq += 1
            timestamp = accepted_ms if new.timestamp is None else new.timestamp
            timecode = timestamp if new.timecode is None else new.timecode
            row = EventRow(seq, new.id, accepted_ms, timestamp, timecode, new.event, new.metadata)
            place = head.history, new.id
            self.writes.events[place] = self._events[place] = row
            params = event_json(head.epoch, command.program_id, row, seq)
            events.append(params)
            entries.append(Entry(EntryKind.PUSH, head.epoch, seq, "event", params))
        if events:
            self._move(command, _advanced(head, seq, accepted_ms, row.id))
            subject = (command.account, command.program_id, head.project_id)
            self.published[subject] = self.published.get(subject, 0) + len(events)
        if command.key is not None:
            is_one = len(events) == 1 and not command.key.is_list
            body = events[0] if is_one else batch_json(events)
            self._keep(command.account, command.key, KeptResult(201, body))
        return Accepted(events)

    def _kept(self, account: str, key: IdempotencyKey) -> Kept | None:
        """The result of the request that came with this key before."""
        kept = self._keys.get((account, key.caller, key.key))
        if kept is None:
            return None
        if kept[0] != key.request_hash:
            raise used_for_another()
        return Kept(*kept[1])

    def _keep(self, account: str, key: IdempotencyKey, result: KeptResult) -> None:
        self._keys[account, key.caller, key.key] = (key.request_hash, result)
        self.writes.keys.append(KeyRow(account, key.caller, key.key, key.request_hash, *result))

    def _update_event(self, command: UpdateEvent, head: HeadRow) -> bytes:
        """Change an event. The reply is the notification, its `seq` too; the stored event keeps its own."""
        old = self._event(head, command)
        head = _advanced(head, head.seq + 1, self._accepted_ms(head), old.id)
        new = self._changed(old, command.changes)
        before = event_json(head.epoch, command.program_id, old, old.seq)
        params = event_json(head.epoch, command.program_id, new, head.seq)
        self._change(head, old, "updated", before, params)
        where = self.writes.events if (head.history, old.id) in self.writes.events else self.writes.updated
        where[head.history, old.id] = new
        self._events[head.history, old.id] = new
        self._push(command, head.epoch, head.seq, "eventUpdated", params)
        self._move(command, head)
        return params

    def _changed(self, old: EventRow, changes: EventChanges) -> EventRow:
        fields: dict[str, object] = dict(changes)
        if "timestamp" in fields and fields["timestamp"] is None:
            fields["timestamp"] = self._now_ms
        if "timecode" in fields and fields["timecode"] is None:
            fields["timecode"] = fields.get("timestamp", old.timestamp)
        if "metadata" in fields and not isinstance(fields["metadata"], bytes):
            fields["metadata"] = orjson.dumps(fields["metadata"] or {})
        return old._replace(**fields)  # type: ignore[arg-type]  # the door validated the values

    def _delete_event(self, command: DeleteEvent, head: HeadRow) -> None:
        old = self._event(head, command)
        head = _advanced(head, head.seq + 1, self._accepted_ms(head), old.id)
        before = event_json(head.epoch, command.program_id, old, old.seq)
        self._change(head, old, "deleted", before, None)
        self.writes.deleted.add((head.history, old.id))
        del self._events[head.history, old.id]
        params = deleted_json(head.epoch, command.program_id, old.id, head.seq)
        self._push(command, head.epoch, head.seq, "eventDeleted", params)
        self._move(command, head)

    def _event(self, head: HeadRow, command: UpdateEvent | DeleteEvent) -> EventRow:
        row = self._events.get((head.history, command.event_id))
        if row is None:
            raise NotFound(f"there is no event {command.event_id} in program {command.program_id}")
        return row

    def _change(self, head: HeadRow, old: EventRow, kind: str, before: bytes, after: bytes | None) -> None:
        assert head.changed_ms is not None  # set by the caller
        row = ChangeRow(head.history, head.seq, old.id, old.seq, kind, before, after, head.changed_ms)
        self.writes.changes.append(row)

    # -- the program as a whole

    def _reset(self, command: Command, head: HeadRow, reason: str, base: int) -> int:
        deleted = self._found.counts[head.uid]
        new = HeadRow(
            uid=head.uid,
            history=head.history,  # the new one gets its number in the database; no other command needs it
            epoch=self._new_epoch(),
            reason=reason,
            base=base,
            deleted=deleted,
            seq=base,
            changed_ms=self._accepted_ms(head),
            public=head.public,
            project_id=head.project_id,
            id="",
            free_contexts=head.free_contexts,
        )
        self._move(command, new)
        self._entry(command, reset_entry(command.program_id, new.epoch, reason, base, deleted))
        return deleted

    def _adopt(self, command: AdoptImport, head: HeadRow) -> Imported:
        history, rows = self._found.staged.get(command.import_id, (0, 0))  # an empty one was never staged
        if rows != command.rows:
            # purged: it took longer than anybody was expected to wait
            raise Unavailable("the import was lost before it was committed; send it again", retry_after_s=1)
        if rows:
            self.writes.adoptions.append((head.uid, history, command.import_id))
        else:
            self.writes.erased.append(head.uid)
        deleted = self._reset(command, head, "imported", command.rows)
        new = self._head(command)
        return Imported(deleted=deleted, imported=command.rows, epoch=new.epoch)

    def _update_program(self, command: UpdateProgram, head: HeadRow) -> Program:
        changed = {"updated_time": to_datetime(self._now_ms)}
        before = self._found.programs[head.uid]
        program = before.model_copy(update={**command.changes, **changed})
        if command.caller is not None:
            principal = _principal(command, command.caller)
            permissions.require_into(_RULES[UpdateProgram], principal, program.project_id)
        to = program.project_id
        if to is not None and to != head.project_id and (command.account, to) in self._found.going:
            raise going_project(to)
        is_free = has_free_contexts(program.metadata)
        attributes = Attributes(program.access is Access.PUBLIC, program.project_id, is_free)
        self.writes.programs.append((head.uid, program))
        self.writes.program_changes.append((command.account, ProgramChange.UPDATED, program, self._now_ms))
        if (turn := turn_of(before, program, self._now_ms)) is not None:
            self.writes.program_changes.append((command.account, turn, program, self._now_ms))
        if attributes != attributes_of(head):
            self._entry(command, attributes_entry(head.epoch, head.seq, attributes))
        return program

    def _delete_program(self, command: DeleteProgram, head: HeadRow) -> None:
        if command.of_project not in (None, head.project_id):
            raise NotFound(f"there is no program {command.program_id} in project {command.of_project}")
        self.writes.removed.append(head.uid)
        if command.by is not None:
            entry = AuditEntry(command.by, "program.deleted", command.program_id)
            self.writes.audit.append((command.account, entry))
        self.writes.program_changes.append((command.account, ProgramChange.DELETED, head.uid, self._now_ms))
        self._entry(command, gone_entry(command.program_id, head.epoch, head.seq))
        del self.heads[command.account, command.program_id]

    def go_on_after_a_loss(self, program: ProgramKey) -> None:
        """Begin a new epoch where the program stands: the database has lost what was told after it."""
        head = self.heads[program]
        new = head._replace(
            epoch=self._new_epoch(),
            reason="lost",
            base=head.seq,
            deleted=0,
            changed_ms=self._accepted_ms(head),
        )
        self.heads[program] = new
        self._move_head(new)
        self.entries.setdefault(program, []).append(reset_entry(program[1], new.epoch, "lost", new.seq, 0))

    # -- what all share

    def _accepted_ms(self, head: HeadRow) -> int:
        """Now, or the newest change when the clock has stepped back behind it."""
        return self._now_ms if head.changed_ms is None else max(self._now_ms, head.changed_ms)

    def _move(self, command: Command, head: HeadRow) -> None:
        self.heads[command.account, command.program_id] = head
        self._move_head(head)

    def _move_head(self, head: HeadRow) -> None:
        assert head.changed_ms is not None  # whoever moves a head accepts something
        move = HeadMove(head.uid, head.epoch, head.reason, head.base, head.deleted, head.seq, head.changed_ms)
        self.writes.moves[head.uid] = move

    def _push(self, command: Command, epoch: str, seq: int, method: str, params: bytes) -> None:
        self._entry(command, Entry(EntryKind.PUSH, epoch, seq, method, params))

    def _entry(self, command: Command, entry: Entry) -> None:
        self.entries.setdefault((command.account, command.program_id), []).append(entry)


def _principal(command: Command, caller: Caller) -> Principal:
    return Principal(command.account, caller.role, project_ids=caller.project_ids)


def _require(command: Command, caller: Caller, head: HeadRow) -> None:
    """Raise unless the caller may do it to the program as it is now."""
    principal = _principal(command, caller)
    access = Access.PUBLIC if head.public else Access.PRIVATE
    target = permissions.access_target(principal, access, head.project_id)
    missing = f"there is no program {command.program_id}"
    permissions.require(_RULES[type(command)], principal, target, missing)


def _advanced(head: HeadRow, seq: int, changed_ms: int, id_: str) -> HeadRow:
    """The head after a push; `_replace` takes twice as long, and this is done for each publish."""
    uid, history, epoch, reason, base, deleted, _, _, public, project_id, _, free = head
    return HeadRow(uid, history, epoch, reason, base, deleted, seq, changed_ms, public, project_id, id_, free)


def _result(command: Command, reply: CommandReply, now_ms: int) -> KeptResult:
    """What the door answers to the request of the command."""
    if isinstance(reply, Imported):
        imported = {"deleted": reply.deleted, "imported": reply.imported, "epoch": reply.epoch}
        return KeptResult(200, orjson.dumps(imported))
    if isinstance(reply, Program):
        return KeptResult(200, program_json(reply, now_ms))
    if isinstance(command, DeleteEvents):
        return KeptResult(200, orjson.dumps({"deleted": reply}))
    if isinstance(reply, bytes):
        return KeptResult(200, reply)
    return KeptResult(204, b"")


def _write_reply(reply: CommandReply) -> bytes:
    if isinstance(reply, Imported):
        return orjson.dumps([reply.deleted, reply.imported, reply.epoch])
    if isinstance(reply, Program):
        return reply.model_dump_json().encode()
    if isinstance(reply, bytes):
        return reply
    return b"" if reply is None else orjson.dumps(reply)


def _read_reply(command: Command, result: bytes) -> CommandReply:
    if isinstance(command, UpdateEvent):
        return result
    if isinstance(command, UpdateProgram):
        return Program.read(result)
    if isinstance(command, AdoptImport):
        deleted, imported, epoch = orjson.loads(result)
        return Imported(deleted=deleted, imported=imported, epoch=epoch)
    if isinstance(command, DeleteEvents):
        return int(result)
    return None
