"""Reads programs' histories: their heads, and their pushes as they were sent.

A push is either the row of its event or a row of `event_changes`. An event that was changed later was told
with the content that it had before its first change. Of an event that was deleted later nothing but its
deletion is read, in the place of each of its pushes (as in `native/core/src/log/history/withdrawal.rs`).
"""

from collections.abc import Collection, Sequence
from typing import Any

from broker.clock import to_datetime
from broker.domain.history import EventRow, HeadRow, ProgramKey, PushRow
from broker.storage.database import Repository
from broker.storage.idempotency import KEY_LIFETIME

_MS = "(extract(epoch FROM {}) * 1000)::bigint"
MESSAGE_ID = """coalesce(
    (SELECT e.id FROM events e WHERE e.history = {history} AND e.seq = {seq}),
    (SELECT c.event_id FROM event_changes c WHERE c.history = {history} AND c.seq = {seq}))::text"""
"""The id of the event that a push is about; NULL when there is no such push, or when it was purged."""
HEAD_COLUMNS = (
    "p.uid, h.history, h.epoch, h.epoch_reason, h.epoch_base, h.epoch_deleted, h.seq,"
    f" {_MS.format('h.last_change')} AS changed, p.access = 'public' AS public, p.project_id,"
    f" coalesce({MESSAGE_ID.format(history='h.history', seq='h.seq')}, '') AS last_id,"
    " coalesce((p.metadata -> 'freeContexts')::text = 'true', false) AS free_contexts"
)
"""Of `programs p` joined with `program_heads h`."""

_EVENT_PUSH = f"""
SELECT e.history, e.seq, 'event' AS kind, e.id::text AS event_id,
    {_MS.format("e.created_time")} AS accepted,
    first.before::text AS told, e.timestamp, e.timecode, e.event, e.metadata::text AS metadata
"""
_FIRST_CHANGE = """
LEFT JOIN LATERAL (
    SELECT c.before FROM event_changes c WHERE c.history = e.history AND c.event_seq = e.seq
    ORDER BY c.seq LIMIT 1
) AS first ON true
"""
TOLD = f"""
{_EVENT_PUSH}, coalesce(h.epoch, f.epoch) AS epoch
FROM unnest($1::uuid[]) AS wanted(id) JOIN events e ON e.id = wanted.id AND NOT e.imported {_FIRST_CHANGE}
LEFT JOIN program_heads h ON h.history = e.history
LEFT JOIN former_histories f ON f.history = e.history
"""
"""The pushes of published events by id, of any program and epoch; rows for `push_of`.

An imported event may have the id of a published one, whose push it is not.
"""

_HEADS = f"""
SELECT p.account, p.id, {HEAD_COLUMNS}
FROM unnest($1::text[], $2::text[]) AS wanted(account, id)
JOIN programs p ON p.account = wanted.account AND p.id = wanted.id
JOIN program_heads h ON h.program_uid = p.uid
"""  # noqa: S608  # a constant
# The epoch is checked in the statement's own snapshot: pushes of two epochs never mix.
_PUSHES = f"""
WITH head AS MATERIALIZED (SELECT history FROM program_heads WHERE program_uid = $1 AND epoch = $2),
published AS (
    {_EVENT_PUSH}, e.deleted FROM events e {_FIRST_CHANGE}
    WHERE e.history = (SELECT history FROM head) AND e.seq > $3 AND e.seq <= $4
    ORDER BY e.seq LIMIT $5
), changed AS (
    SELECT c.history, c.seq, c.kind, c.event_id::text, {_MS.format("c.time")} AS accepted,
        c.after::text AS told, NULL::bigint, NULL::bigint, NULL::text, NULL::text, EXISTS (
            SELECT FROM event_changes d
            WHERE d.history = c.history AND d.event_seq = c.event_seq AND d.kind = 'deleted'
        ) AS deleted
    FROM event_changes c
    WHERE c.history = (SELECT history FROM head) AND c.seq > $3 AND c.seq <= $4
    ORDER BY c.seq LIMIT $5
)
SELECT * FROM published UNION ALL SELECT * FROM changed ORDER BY seq LIMIT $5
"""  # noqa: S608  # a constant
_MESSAGE_IDS = f"""
SELECT w.uid, w.seq, {MESSAGE_ID.format(history="h.history", seq="w.seq")}
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS w(uid, epoch, seq)
JOIN program_heads h ON h.program_uid = w.uid AND h.epoch = w.epoch
"""  # noqa: S608  # a constant
# Recovery never reaches behind the cutoff, so what was hidden or changed before it serves nobody.
_PURGES = (
    """
DELETE FROM events WHERE (history, seq) IN (
    SELECT history, seq FROM events WHERE deleted AND created_time < $1 LIMIT $2)
""",
    """
DELETE FROM event_changes WHERE (history, seq) IN (
    SELECT history, seq FROM event_changes WHERE time < $1 LIMIT $2)
""",
)
_PURGE_KEYS = f"""
DELETE FROM idempotency_keys WHERE (account, caller, key) IN (
    SELECT account, caller, key FROM idempotency_keys WHERE created_time < now() - {KEY_LIFETIME} LIMIT $1)
"""  # noqa: S608  # a constant


class History(Repository):
    """The read side of the journal."""

    async def heads(self, programs: Collection[ProgramKey]) -> dict[ProgramKey, HeadRow]:
        """Where the programs that exist stand. Raises Unavailable."""
        accounts, ids = [key[0] for key in programs], [key[1] for key in programs]
        rows = await self._database.fetch(_HEADS, accounts, ids)
        return {(row[0], row[1]): head_of(row, 2) for row in rows}

    async def pushes(self, uid: int, epoch: str, after_seq: int, upto_seq: int, limit: int) -> list[PushRow]:
        """Pushes with `after_seq` < seq ≤ `upto_seq`, oldest first, at most `limit`; none of another epoch.

        Those of an event that has been deleted since are deletions.

        What was purged is missing: the caller checks that the seqs follow each other. Raises Unavailable.
        """
        rows = await self._database.fetch(_PUSHES, uid, epoch, after_seq, upto_seq, limit)
        return [_deletion_of(row) if row["deleted"] else push_of(row) for row in rows]

    async def message_ids(self, places: Collection[tuple[int, str, int]]) -> dict[tuple[int, int], str]:
        """The id of the message at each (uid, epoch, seq), by (uid, seq), of those that can be known.

        Raises Unavailable.
        """
        columns = [list(column) for column in zip(*places, strict=True)]
        rows = await self._database.fetch(_MESSAGE_IDS, *columns)
        return {(row[0], row[1]): row[2] for row in rows if row[2] is not None}

    async def purge(self, history_before_ms: int, limit: int) -> int:
        """Drop at most `limit` rows of each kind that recovery and retries need no more; returns how many."""
        removed = await self._database.execute(_PURGE_KEYS, limit)
        for statement in _PURGES:
            removed += await self._database.execute(statement, to_datetime(history_before_ms), limit)
        return removed


def head_of(row: Sequence[Any], first: int) -> HeadRow:
    """The head of a row whose columns from `first` on are `HEAD_COLUMNS`."""
    return HeadRow(*row[first : first + 12])


def _deletion_of(row: Any) -> PushRow:
    return PushRow(row["seq"], "deleted", row["event_id"], row["accepted"], None, None)


def push_of(row: Any) -> PushRow:
    """The push of a row of `TOLD` or of a history."""
    told = None if row["told"] is None else row["told"].encode()
    event = None
    if row["kind"] == "event" and told is None:
        event = EventRow(
            row["seq"], row["event_id"], row["accepted"], row["timestamp"], row["timecode"], row["event"],
            row["metadata"].encode(),
        )  # fmt: skip
    return PushRow(row["seq"], row["kind"], row["event_id"], row["accepted"], told, event)
