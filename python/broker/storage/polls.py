"""Polls for doors and readers: the known polls, the keys for visitor hashes, and the counts.

A poll is a measure in a context of a program. The context is the id of an event, or any text where the
program allows it; an id counts as one only as the server writes it, so that no event has two polls of one
measure.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg
import orjson

from broker.domain.programs import Access
from broker.storage.database import Repository

_KEY_BYTES = 16  # what SipHash takes
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_FIND_PROGRAM = """
SELECT p.uid, p.project_id, p.access, p.metadata::text, k.key
FROM programs p LEFT JOIN answer_keys k ON k.program_uid = p.uid WHERE p.account = $1 AND p.id = $2
"""
# The program is held, so that it is not deleted before its key is there.
_MAKE_KEY = """
INSERT INTO answer_keys (program_uid, key) SELECT uid, $2 FROM programs WHERE uid = $1 FOR KEY SHARE
ON CONFLICT DO NOTHING
"""
_FIND_CONTEXTS = """
SELECT e.id::text, e.metadata::text
FROM program_heads h JOIN events e ON e.history = h.history
WHERE h.program_uid = $1 AND e.id = ANY ($2::uuid[]) AND NOT e.deleted
"""
_FIND_PROGRAM_OF = """
SELECT p.id
FROM events e JOIN program_heads h ON h.history = e.history JOIN programs p ON p.uid = h.program_uid
WHERE e.id = $2::uuid AND NOT e.deleted AND p.account = $1
"""
_FIND = """
SELECT q.measure, q.context, q.uid, q.shards
FROM unnest($2::text[], $3::text[]) AS wanted (measure, context)
JOIN answer_polls q
    ON q.program_uid = $1 AND q.measure = wanted.measure AND q.context = wanted.context
"""
NEW_NUMBER = """
nextval(pg_get_serial_sequence('answer_polls', 'uid')) << 31 | floor(random() * 2147483648)::bigint
"""
"""The number of a new poll, higher than those before, and no other poll's even where the database loses some.

Doors know a poll by its number for minutes, and the sequence goes back with the database: votes for the poll
that was lost would be counted in the one that has its number. So half of it is random.
"""
# Nobody else makes polls of the program meanwhile, and it stays.
_LOCK = "SELECT FROM programs WHERE uid = $1 FOR NO KEY UPDATE"
# A name that its context declares needs no room; other names share that of the context, and those of contexts
# that are no events that of the program besides.
_MAKE = f"""
WITH wanted AS (
    SELECT *, measure IS NOT DISTINCT FROM declared AS is_declared
    FROM unnest($2::text[], $3::text[], $5::text[], $6::boolean[]) WITH ORDINALITY
        AS wanted (measure, context, declared, is_free, place)
    WHERE NOT EXISTS (
        SELECT FROM answer_polls q
        WHERE q.program_uid = $1 AND q.measure = wanted.measure AND q.context = wanted.context)
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY context, is_declared ORDER BY place) AS of_context,
        count(*) FILTER (WHERE is_free) OVER (ORDER BY place) AS of_free
    FROM wanted
)
INSERT INTO answer_polls (uid, program_uid, account, measure, context, shards, is_free)
OVERRIDING SYSTEM VALUE
SELECT {NEW_NUMBER}, p.uid, p.account, w.measure, w.context, $4, w.is_free
FROM programs p CROSS JOIN placed w
WHERE p.uid = $1
    AND (w.is_declared OR w.of_context + (
        SELECT count(*) FROM answer_polls q
        WHERE q.program_uid = $1 AND q.context = w.context AND q.measure IS DISTINCT FROM w.declared) <= $7)
    AND (NOT w.is_free OR w.of_free + (
        SELECT count(*) FROM answer_polls q WHERE q.program_uid = $1 AND q.is_free) <= $8)
ORDER BY w.place
"""  # noqa: S608  # a constant
_COUNT = f"""
SELECT q.uid, p.id, p.project_id, q.measure, q.context, (extract(epoch FROM q.created_time) * 1000)::bigint,
    ARRAY(
        SELECT sum(answers.total)::bigint
        FROM answer_tallies t CROSS JOIN unnest(t.totals) WITH ORDINALITY AS answers (total, index)
        WHERE t.poll = q.uid GROUP BY answers.index ORDER BY answers.index
    ), sums.*, q.sealed, e.metadata::text
FROM answer_polls q
JOIN programs p ON p.uid = q.program_uid
LEFT JOIN program_heads h ON h.program_uid = p.uid
LEFT JOIN events e ON e.history = h.history AND NOT e.deleted
    AND e.id = CASE WHEN q.context ~ '^{_UUID}$' THEN q.context::uuid END
CROSS JOIN LATERAL (
    SELECT coalesce(sum(t.impressions), 0)::bigint, coalesce(sum(t.visitors), 0)::bigint,
        coalesce(sum(t.sessions), 0)::bigint
    FROM answer_tallies t WHERE t.poll = q.uid
) AS sums
WHERE q.account = $1 AND p.account = $1
"""  # noqa: S608  # a constant
# In the order in which commits hold them.
_HOLD_POLLS = "SELECT FROM answer_polls WHERE uid = ANY ($1::bigint[]) ORDER BY uid FOR UPDATE"
_DECLARED = f"""
SELECT q.uid, q.sealed, e.metadata::text
FROM answer_polls q
LEFT JOIN program_heads h ON h.program_uid = q.program_uid
LEFT JOIN events e ON e.history = h.history AND NOT e.deleted
    AND e.id = CASE WHEN q.context ~ '^{_UUID}$' THEN q.context::uuid END
WHERE q.uid = ANY ($1::bigint[])
"""  # noqa: S608  # a constant
_SET_SEALED = "UPDATE answer_polls SET sealed = $2 WHERE uid = $1"
_ORDER = "ORDER BY q.created_time, q.uid"

HasEnded = Callable[[bytes], bool]
"""Whether the metadata of an event, as JSON, say that no vote can come any more."""

Key = tuple[str, str]
"""Measure and context."""


class Room(NamedTuple):
    """What polls may be made.

    `declared` has the contexts that are events, each with the name of the measure that it declares, which
    may always be made, or None. A context has at most `others` other measures, and all contexts that are no
    events have at most `free`.
    """

    declared: Mapping[str, str | None]
    others: int
    free: int


class PollProgram(NamedTuple):
    """What a door must know of a program. `key` is the secret under which its visitors are hashed."""

    uid: int
    project_id: str | None
    access: Access
    metadata: dict[str, Any]
    key: bytes


class PollRow(NamedTuple):
    """A poll, and into how many shards its answers are divided."""

    uid: int
    shards: int


class PollCount(NamedTuple):
    """What a poll has counted in all its shards.

    `totals` are the answers for each option, from index 0 up to the highest that was chosen; `sealed` says
    that nothing more is counted in it; `event` is the metadata of the context's event as JSON, None when
    there is no such event now.
    """

    uid: int
    program_id: str
    project_id: str | None
    measure: str
    context: str
    created_ms: int
    totals: list[int]
    impressions: int
    visitors: int
    sessions: int
    sealed: bool
    event: bytes | None


class Polls(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def find_program(self, account: str, program_id: str) -> PollProgram | None:
        """The program, with the key that it has or is given now; any number may ask at a time."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_FIND_PROGRAM, account, program_id)
            if row is not None and row["key"] is None:
                await connection.execute(_MAKE_KEY, row["uid"], secrets.token_bytes(_KEY_BYTES))
                row = await connection.fetchrow(_FIND_PROGRAM, account, program_id)
        # Without a key it was deleted and made again meanwhile: the next who asks finds the new one.
        if row is None or row["key"] is None:
            return None
        uid, project_id, access, metadata, key = row
        return PollProgram(uid, project_id, Access(access), orjson.loads(metadata or "{}"), key)

    async def find_contexts(self, program_uid: int, contexts: Sequence[str]) -> dict[str, bytes]:
        """Event id → its metadata as JSON, of those contexts that are events of the program now."""
        ids = [context for context in contexts if re.fullmatch(_UUID, context)]
        if not ids:
            return {}
        rows = await self._database.fetch(_FIND_CONTEXTS, program_uid, ids)
        return {row[0]: row[1].encode() for row in rows}

    async def find_program_of(self, account: str, context: str) -> str | None:
        """The program whose event the context is now; None when it is no event of the account."""
        if not re.fullmatch(_UUID, context):
            return None
        found: str | None = await self._database.fetchval(_FIND_PROGRAM_OF, account, context)
        return found

    async def find(self, program_uid: int, wanted: Sequence[Key]) -> dict[Key, PollRow]:
        """Those polls of these measures and contexts that there are."""
        async with self._database.connection() as connection:
            return await _find(connection, program_uid, wanted)

    async def ensure(
        self, program_uid: int, wanted: Sequence[Key], shards: int, room: Room
    ) -> dict[Key, PollRow]:
        """The polls of these measures and contexts, made with `shards` where there is none.

        What there is no room for is left out, and so is all of a program that is gone. Those that are made
        are made in the order in which they are wanted.
        """
        keys = list(dict.fromkeys(wanted))
        async with self._database.connection() as connection:
            found = await _find(connection, program_uid, keys)
            missing = [key for key in keys if key not in found]
            if missing:
                async with connection.transaction():
                    await connection.execute(_LOCK, program_uid)
                    declared = [room.declared.get(context) for _, context in missing]
                    is_free = [context not in room.declared for _, context in missing]
                    await connection.execute(
                        _MAKE, program_uid, *_columns(missing), shards, declared, is_free, *room[1:]
                    )
                found |= await _find(connection, program_uid, missing)
        return found

    async def count(
        self,
        account: str,
        measure: str | None,
        *,
        project_id: str | None = None,
        program_id: str | None = None,
        context_id: str | None = None,
    ) -> list[PollCount]:
        """What the account's polls have counted, oldest first; None selects everything."""
        wanted = {
            "q.measure": measure,
            "p.project_id": project_id,
            "p.id": program_id,
            "q.context": context_id,
        }
        selected = {column: value for column, value in wanted.items() if value is not None}
        conditions = [f"AND {column} = ${number}" for number, column in enumerate(selected, 2)]
        rows = await self._database.fetch(
            " ".join((_COUNT, *conditions, _ORDER)), account, *selected.values()
        )
        return [PollCount._make((*row[:-1], row[-1] and row[-1].encode())) for row in rows]

    async def seal(self, polls: Sequence[int], has_ended: HasEnded) -> set[int]:
        """Let nothing more be counted in those whose event has ended, and let it in the others again.

        It waits for the commits to them that are under way. What the events say is read after that, so that
        no poll is sealed whose event asks on.

        Args:
            polls: their numbers, ascending.

        Returns:
            Those that are sealed now.
        """
        sealed: set[int] = set()
        async with self._database.transaction() as connection:
            await connection.execute(_HOLD_POLLS, polls)
            for uid, was_sealed, metadata in await connection.fetch(_DECLARED, polls):
                if metadata is not None and has_ended(metadata.encode()):
                    sealed.add(uid)
                if (uid in sealed) != was_sealed:
                    await connection.execute(_SET_SEALED, uid, not was_sealed)
        return sealed


async def _find(connection: asyncpg.Connection, program_uid: int, keys: Sequence[Key]) -> dict[Key, PollRow]:
    rows = await connection.fetch(_FIND, program_uid, *_columns(keys))
    return {(row[0], row[1]): PollRow(row[2], row[3]) for row in rows}


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str]]:
    return [measure for measure, _ in keys], [context for _, context in keys]
