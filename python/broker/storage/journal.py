"""The general path of owners: one transaction for a group of commands over many programs.

A transaction begins with the fence (`broker.storage.fence`). Then it locks the heads of its programs. What is
planned from them is written whole or not at all.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

import asyncpg
import orjson

from broker.clock import to_datetime
from broker.domain.history import EventRow, HeadRow, KeyRow, ProgramKey, PushRow, Writes
from broker.domain.idempotency import KeptResult
from broker.domain.programs import Program
from broker.storage.appending import append, insert_keys
from broker.storage.audit import append_audit
from broker.storage.fence import HOLD, Fence, refusal
from broker.storage.group_commit import Again
from broker.storage.history import HEAD_COLUMNS, MESSAGE_ID, TOLD, head_of, push_of
from broker.storage.idempotency import KEY_LIFETIME
from broker.storage.program_changes import append_change
from broker.storage.program_rows import PROGRAM_COLUMNS, program_of
from broker.storage.project_holds import hold_project

T = TypeVar("T")

# The heads are joined to the fence: a lost fence is no row, programs that do not exist are a row of NULLs.
_LOCK = f"""
WITH fence AS MATERIALIZED (
    {HOLD}
), heads AS MATERIALIZED (
    SELECT p.account, p.id, {HEAD_COLUMNS}
    FROM unnest($3::text[], $4::text[]) AS wanted(account, id)
    JOIN programs p ON p.account = wanted.account AND p.id = wanted.id
    JOIN program_heads h ON h.program_uid = p.uid
    ORDER BY p.uid FOR UPDATE OF h
)
SELECT heads.* FROM fence LEFT JOIN heads ON true
"""  # noqa: S608  # the columns are a constant
_EVENTS = """
SELECT e.history, e.seq, e.id::text, (extract(epoch FROM e.created_time) * 1000)::bigint, e.timestamp,
    e.timecode, e.event, e.metadata::text
FROM unnest($1::bigint[], $2::uuid[]) AS wanted(history, id)
JOIN events e ON e.history = wanted.history AND e.id = wanted.id
WHERE NOT e.deleted
"""
_KEYS = f"""
SELECT k.account, k.caller, k.key, k.request_hash, k.status, k.result
FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted(account, caller, key)
JOIN idempotency_keys k
    ON k.account = wanted.account AND k.caller = wanted.caller AND k.key = wanted.key
WHERE k.created_time > now() - {KEY_LIFETIME}
"""  # noqa: S608  # a constant
_MESSAGE_ID = f"SELECT {MESSAGE_ID.format(history='$1::bigint', seq='$2::bigint')}"  # a constant
_COUNT_EVENTS = "SELECT count(*) FROM events WHERE history = $1 AND NOT deleted"
_STAGED = "SELECT history, row_count FROM staged_imports WHERE import_id = $1 FOR UPDATE"

# The history that a head turns from stays behind (a trigger keeps the list); its rows are deleted later.
_ERASE = "UPDATE program_heads SET history = nextval('histories') WHERE program_uid = any($1::bigint[])"
_ADOPT = "UPDATE program_heads SET history = $2 WHERE program_uid = $1"
_UNSTAGE = "DELETE FROM staged_imports WHERE import_id = $1"
_TIME = "timestamptz 'epoch' + {} * interval '1 millisecond'"
_MOVE_HEADS = f"""
UPDATE program_heads h SET epoch = m.epoch, epoch_reason = m.reason, epoch_base = m.base,
    epoch_deleted = m.deleted, seq = m.seq, last_change = {_TIME.format("m.changed")}
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS m(uid, epoch, reason, base, deleted, seq, changed)
WHERE h.program_uid = m.uid
"""  # noqa: S608  # a constant
_INSERT_EVENTS = f"""
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata, deleted)
SELECT history, seq, id, {_TIME.format("created")}, timestamp, timecode, event, metadata::json, deleted
FROM unnest($8::bigint[], $9::bigint[], $10::uuid[], $11::bigint[], $12::bigint[], $13::bigint[],
    $14::text[], $15::text[], $16::boolean[])
    AS n(history, seq, id, created, timestamp, timecode, event, metadata, deleted)
"""  # noqa: S608  # a constant
# One statement, one round trip.
_MOVE_AND_INSERT = f"WITH moved AS ({_MOVE_HEADS}) {_INSERT_EVENTS}"
_UPDATE_EVENTS = """
UPDATE events e SET timestamp = n.timestamp, timecode = n.timecode, event = n.event,
    metadata = n.metadata::json
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
    AS n(history, seq, timestamp, timecode, event, metadata)
WHERE e.history = n.history AND e.seq = n.seq
"""
_HIDE_EVENTS = """
UPDATE events e SET deleted = true FROM unnest($1::bigint[], $2::uuid[]) AS n(history, id)
WHERE e.history = n.history AND e.id = n.id
"""
_INSERT_CHANGES = f"""
INSERT INTO event_changes (history, seq, event_id, event_seq, kind, before, after, time)
SELECT history, seq, event_id, event_seq, kind, before::json, after::json, {_TIME.format("accepted")}
FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::text[],
    $8::bigint[]) AS n(history, seq, event_id, event_seq, kind, before, after, accepted)
"""  # noqa: S608  # a constant
_INSERT_KEYS = insert_keys(1)
_GET_PROGRAM = f"SELECT {PROGRAM_COLUMNS} FROM programs WHERE uid = $1"  # noqa: S608  # a constant
_UPDATE_PROGRAM = """
UPDATE programs SET name = $2, scheduled_start = $3, scheduled_end = $4, project_id = $5, access = $6,
    metadata = $7, updated_time = $8
WHERE uid = $1
"""
_DELETE_PROGRAMS = "DELETE FROM programs WHERE uid = any($1::bigint[])"


class AlreadyWritten(Again):
    """Something that the group writes is there already, from an earlier try; nothing was written now."""

    most = 5  # one is usual after a lost reply


class GroupTransaction:
    """What can be read and written inside one group's transaction. See `Journal.write`."""

    def __init__(self, connection: asyncpg.Connection, slot: str, generation: int) -> None:
        self._connection = connection
        self._slot = slot
        self._generation = generation

    async def lock(self, programs: Collection[ProgramKey]) -> dict[ProgramKey, HeadRow]:
        """Hold the fence and the heads of the programs that exist; call it first.

        Raises:
            Fenced: another has the slot.
            Unavailable: the database has forgotten the generation: `renew` it.
        """
        accounts, ids = [key[0] for key in programs], [key[1] for key in programs]
        rows = await self._connection.fetch(_LOCK, self._slot, self._generation, accounts, ids)
        if not rows:
            raise await refusal(self._connection, self._slot, self._generation)
        return {(row[0], row[1]): head_of(row, 2) for row in rows if row[0] is not None}

    async def find_message_id(self, history: int, seq: int) -> str:
        """The id of the message at `seq`; empty when there is none, or it was purged."""
        return await self._connection.fetchval(_MESSAGE_ID, history, seq) or ""

    async def find_events(self, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str], EventRow]:
        """The events of (history, event id) that exist and are not deleted."""
        histories, ids = [key[0] for key in wanted], [key[1] for key in wanted]
        rows = await self._connection.fetch(_EVENTS, histories, ids)
        return {(row[0], row[2]): _event_of(row) for row in rows}

    async def find_told(self, event_ids: Sequence[str]) -> list[tuple[str, PushRow]]:
        """The pushes, with their epochs, that published these events; also of epochs that are over."""
        rows = await self._connection.fetch(TOLD, event_ids)
        return [(row["epoch"], push_of(row)) for row in rows]

    async def find_keys(
        self, wanted: Sequence[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], tuple[bytes, KeptResult]]:
        """What is kept under (account, caller, key): request hash and result."""
        columns = [list(column) for column in zip(*wanted, strict=True)]
        rows = await self._connection.fetch(_KEYS, *columns)
        return {(row[0], row[1], row[2]): (row[3], KeptResult(row[4], row[5])) for row in rows}

    async def get_program(self, uid: int) -> Program:
        """A program whose head is held; everybody who changes a program holds its head."""
        return program_of(await self._connection.fetchrow(_GET_PROGRAM, uid))

    async def hold_project(self, account: str, project_id: str, *, was_there: bool) -> bool:
        """False for a project into which no program can come; see `broker.storage.project_holds`."""
        return await hold_project(self._connection, account, project_id, was_there=was_there)

    async def count_events(self, history: int) -> int:
        """How many events of the history are not deleted: 15 ms for 100,000."""
        return int(await self._connection.fetchval(_COUNT_EVENTS, history))

    async def find_staged(self, import_id: str) -> tuple[int, int] | None:
        """The history that holds the import, and how many rows it has; held until the end."""
        row = await self._connection.fetchrow(_STAGED, import_id)
        return None if row is None else (row["history"], row["row_count"])

    async def apply(self, writes: Writes) -> None:
        """Write a plan. Raises AlreadyWritten."""
        if writes.erased:
            await self._connection.execute(_ERASE, writes.erased)
        for uid, history, import_id in writes.adoptions:
            await self._connection.execute(_ADOPT, uid, history)
            await self._connection.execute(_UNSTAGE, import_id)
        if writes.events or writes.moves:
            await self._move_and_insert(writes)
        if writes.updated or writes.deleted or writes.changes:
            await self._change_events(writes)
        if writes.keys:
            await self._insert_keys(writes.keys)
        if writes.program_changes:
            await self._change_programs(writes)

    async def _move_and_insert(self, writes: Writes) -> None:
        moves = _columns(writes.moves.values(), 7)
        events = _columns(
            (
                (history, row.seq, row.id, row.created_ms, row.timestamp, row.timecode, row.event,
                 row.metadata.decode(), (history, row.id) in writes.deleted)
                for (history, _), row in writes.events.items()
            ),
            9,
        )  # fmt: skip
        await self._connection.execute(_MOVE_AND_INSERT, *moves, *events)

    async def _change_events(self, writes: Writes) -> None:
        if writes.updated:
            rows = (
                (history, row.seq, row.timestamp, row.timecode, row.event, row.metadata.decode())
                for (history, _), row in writes.updated.items()
            )
            await self._connection.execute(_UPDATE_EVENTS, *_columns(rows, 6))
        hidden = [key for key in writes.deleted if key not in writes.events]
        if hidden:
            await self._connection.execute(_HIDE_EVENTS, *_columns(hidden, 2))
        changes = (
            (*change[:5], change.before.decode(), change.after and change.after.decode(), change.accepted_ms)
            for change in writes.changes
        )
        await self._connection.execute(_INSERT_CHANGES, *_columns(changes, 8))

    async def _insert_keys(self, keys: Sequence[KeyRow]) -> None:
        written = await self._connection.fetch(_INSERT_KEYS, *_columns(keys, 6))
        if len(written) != len(keys):
            raise AlreadyWritten("idempotency key")

    async def _change_programs(self, writes: Writes) -> None:
        for uid, program in writes.programs:
            await self._connection.execute(_UPDATE_PROGRAM, uid, *_program_columns(program))
        for account, change, of, time_ms in writes.program_changes:
            if isinstance(of, int):
                program = await self.get_program(of)
            else:
                program = of
            await append_change(self._connection, account, change, program, to_datetime(time_ms))
        if writes.removed:
            await self._connection.execute(_DELETE_PROGRAMS, writes.removed)
        for account, entry in writes.audit:
            await append_audit(self._connection, account, entry)


class Journal(Fence):
    """The write side of one owner's slot."""

    async def append(self, generation: int, writes: Writes, heads: Collection[HeadRow]) -> bool:
        """Append in one statement, as `broker.storage.appending` does it; False when nothing was written.

        Raises:
            Unavailable: nothing was written.
            OutcomeUnknown: `renew`, then look.
        """
        async with self._database.writing() as connection:
            return await append(connection, self._slot, generation, writes, heads)

    async def write(self, generation: int, work: Callable[[GroupTransaction], Awaitable[T]]) -> T:
        """Run `work` in one transaction and commit it.

        Raises:
            Fenced, AlreadyWritten: nothing was written.
            Unavailable: nothing was written.
            OutcomeUnknown: `renew`, then look.
        """
        try:
            async with self._database.transaction() as connection:
                return await work(GroupTransaction(connection, self._slot, generation))
        except asyncpg.UniqueViolationError as error:
            raise AlreadyWritten(error.constraint_name) from error


def _event_of(row: Sequence[Any]) -> EventRow:
    _, seq, id_, created_ms, timestamp, timecode, event, metadata = row
    return EventRow(seq, id_, created_ms, timestamp, timecode, event, metadata.encode())


def _columns(rows: Any, width: int) -> list[list[Any]]:
    """Rows turned into columns; `width` empty ones when there is no row."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _program_columns(program: Program) -> tuple[Any, ...]:
    return (
        program.name,
        program.scheduled_start_time,
        program.scheduled_end_time,
        program.project_id,
        program.access.value,
        None if program.metadata is None else orjson.dumps(program.metadata).decode(),
        program.updated_time,
    )
