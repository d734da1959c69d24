"""The SQL of counters: what their tallies have counted, and what they need after a restart.

A commit is one statement, one round trip. It holds the fence (`broker.storage.fence`) and the rows of its
polls, so that the deletion of a program either waits for it or is seen by it: of a poll that is gone nothing
is written. Sealing a poll (`broker.storage.polls`) likewise: a commit with a sealed poll writes nothing at
all, since the outcomes that it would keep for its senders are not those of its votes. The totals are beside
the records because readers want nothing else.

Nothing is written either when the row of a shard that the counter knows to be the newest is not there: the
database has lost rows then, and totals that go on from those of before would count what is gone.
`AnswerLog.require` checks the same for shards to which a commit writes nothing.

A commit adds a row of records to each shard that it touches. So that a poll of an hour does not become a
hundred thousand rows, rows are merged when they are many: those of one level, from the oldest on, become one
row of the next. All rows of a higher level are older than those of a lower one, so the order of the numbers
stays the order of the records, and each byte is written at most `_MOST_LEVEL` times more.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.storage.fence import HOLD, Fence, refusal
from broker.storage.group_commit import Again
from broker.storage.idempotency import KEY_LIFETIME

MERGED_ROWS = 64
"""So many rows of a level are merged."""
_MOST_LEVEL = 3  # its rows are 262,144 commits, or megabytes, so they are few
# A merge takes about this and no more, so that it is quick, and a row far from what a value may have.
_MERGED_BYTES = 4 << 20

KEY_SENDER = "key "
"""How the sender of a request with an idempotency key begins; it is kept as long as the key."""

_LOAD = """
SELECT p.uid, wanted.shard, t.impressions, r.number, r.level, r.records
FROM unnest($1::text::bigint[], $2::text::smallint[]) AS wanted (poll, shard)
JOIN answer_polls p ON p.uid = wanted.poll
LEFT JOIN answer_tallies t ON t.poll = p.uid AND t.shard = wanted.shard
LEFT JOIN answer_records r ON r.poll = p.uid AND r.shard = wanted.shard
ORDER BY p.uid, wanted.shard, r.number
"""
_FIND_SENDERS = "SELECT door, number, outcomes FROM answer_doors WHERE slot = $1 AND door = ANY($2::text[])"
# Numbers are array literals: the driver looks at each element of a list through two abstract classes.
_COMMIT = f"""
WITH fence AS MATERIALIZED (
    {HOLD}
), held AS MATERIALIZED (
    SELECT n.*, p.sealed, n.number - (n.records <> '')::integer AS newest
    FROM fence CROSS JOIN unnest($3::text::bigint[], $4::text::smallint[], $5::text::bigint[], $6::bytea[],
        $7::text[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[])
        AS n(poll, shard, number, records, totals, impressions, visitors, sessions)
    JOIN answer_polls p ON p.uid = n.poll
    ORDER BY p.uid FOR KEY SHARE OF p
), lost AS MATERIALIZED (
    SELECT FROM held WHERE newest > 0 AND NOT EXISTS (
        SELECT FROM answer_records r WHERE r.poll = held.poll AND r.shard = held.shard AND r.number = newest)
    LIMIT 1
), open AS MATERIALIZED (
    SELECT FROM fence WHERE NOT EXISTS (SELECT FROM lost) AND NOT EXISTS (SELECT FROM held WHERE sealed)
), written AS MATERIALIZED (
    SELECT held.* FROM open CROSS JOIN held
), kept AS (
    INSERT INTO answer_records (poll, shard, number, level, records)
    SELECT poll, shard, number, 0, records FROM written WHERE records <> ''
), told AS (
    INSERT INTO answer_tallies AS t (poll, shard, totals, impressions, visitors, sessions, changed)
    SELECT poll, shard, totals::bigint[], impressions, visitors, sessions, now() FROM written
    ON CONFLICT (poll, shard) DO UPDATE SET totals = excluded.totals, impressions = excluded.impressions,
        visitors = excluded.visitors, sessions = excluded.sessions, changed = excluded.changed
), answered AS (
    INSERT INTO answer_doors AS d (slot, door, number, outcomes, time)
    SELECT $1, n.door, n.number, n.outcomes, now() FROM open
    CROSS JOIN unnest($11::text[], $12::text::bigint[], $13::bytea[]) AS n(door, number, outcomes)
    ON CONFLICT (slot, door) DO UPDATE SET number = excluded.number, outcomes = excluded.outcomes,
        time = excluded.time
)
SELECT EXISTS (SELECT FROM fence), EXISTS (SELECT FROM lost),
    ARRAY(SELECT DISTINCT poll FROM held WHERE sealed), ARRAY(SELECT DISTINCT poll FROM written)
"""  # noqa: S608  # a constant
_HAS_LOST = """
SELECT EXISTS (SELECT FROM owner_slots WHERE slot = $1 AND generation = $2), EXISTS (
    SELECT FROM unnest($3::text::bigint[], $4::text::smallint[], $5::text::bigint[]) AS n(poll, shard, newest)
    JOIN answer_polls p ON p.uid = n.poll
    WHERE NOT EXISTS (
        SELECT FROM answer_records r WHERE r.poll = n.poll AND r.shard = n.shard AND r.number = n.newest))
"""
# The deletion is done before the insertion, which may use a number again.
_MERGE = f"""
WITH fence AS MATERIALIZED (
    {HOLD}
), rows AS MATERIALIZED (
    SELECT level, number, row_number() OVER by_age AS place, sum(octet_length(records)) OVER by_age AS octets
    FROM answer_records WHERE poll = $3 AND shard = $4 AND level = (
        SELECT level FROM answer_records WHERE poll = $3 AND shard = $4 AND level < {_MOST_LEVEL}
        GROUP BY level HAVING count(*) >= {MERGED_ROWS} ORDER BY level LIMIT 1)
    WINDOW by_age AS (ORDER BY number)
), taken AS (
    DELETE FROM answer_records r USING fence, rows
    WHERE r.poll = $3 AND r.shard = $4 AND r.number = rows.number AND (octets <= $5 OR place = 1)
    RETURNING r.number, r.level, r.records
), merged AS (
    INSERT INTO answer_records (poll, shard, number, level, records)
    SELECT $3, $4, max(number), min(level) + 1, string_agg(records, ''::bytea ORDER BY number) FROM taken
    HAVING count(*) > 0 RETURNING 1
)
SELECT EXISTS (SELECT FROM fence), EXISTS (SELECT FROM merged)
"""  # noqa: S608  # a constant
_FORGET_SENDERS = f"""
DELETE FROM answer_doors WHERE slot = $1 AND time < now() - CASE
    WHEN starts_with(door, '{KEY_SENDER}') THEN {KEY_LIFETIME} ELSE $2 * interval '1 second' END
"""  # noqa: S608  # a constant


class RecordsLost(Exception):
    """The database lacks rows that were committed: it was restored, or promoted before it had them."""


class PollWrite(NamedTuple):
    """What a commit adds to one shard of a poll.

    `records` are the new ones, or empty, and `number` is that of the shard's newest row after the write: with
    records one more than before. The rest is what the shard has counted in all.
    """

    poll: int
    shard: int
    number: int
    records: bytes
    totals: list[int]
    impressions: int
    visitors: int
    sessions: int


class SenderWrite(NamedTuple):
    """The newest batch that a sender has sent, and the outcomes that it is answered with."""

    sender: str
    number: int
    outcomes: bytes


class Sealed(Again):
    """Nothing was written, because `polls` take no more votes."""

    def __init__(self, polls: frozenset[int]) -> None:
        super().__init__()
        self.polls = polls


class StoredTally(NamedTuple):
    """What is stored of one shard of a poll.

    `newest` is the highest number of a row, 0 without one; `records` are those of each row, in order; `loose`
    is how many of the rows have not been merged.
    """

    impressions: int
    newest: int
    records: list[bytes]
    loose: int


class AnswerLog(Fence):
    """The write side of one counter's slot. Every method raises `Unavailable` without the database."""

    async def load(self, polls: Sequence[tuple[int, int]]) -> dict[tuple[int, int], StoredTally]:
        """What is stored of each (poll, shard): empty when nothing is, left out when the poll is gone."""
        columns = [_literal(column) for column in zip(*polls, strict=True)] or ["{}", "{}"]
        rows = await self._database.fetch(_LOAD, *columns)
        found: dict[tuple[int, int], StoredTally] = {}
        for poll, shard, impressions, number, level, records in rows:
            before = found.get((poll, shard)) or StoredTally(impressions or 0, 0, [], 0)
            if number is not None:
                before.records.append(records)
                before = before._replace(newest=number, loose=before.loose + (level == 0))
            found[poll, shard] = before
        return found

    async def find_senders(self, senders: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """The number and the outcomes of the newest batch of each sender that has one at this slot."""
        rows = await self._database.fetch(_FIND_SENDERS, self._slot, senders)
        return {row[0]: (row[1], row[2]) for row in rows}

    async def commit(
        self, generation: int, writes: Sequence[PollWrite], senders: Sequence[SenderWrite]
    ) -> set[int]:
        """Write all of it, or nothing. At most one write of a shard, and one of a sender.

        Returns:
            The polls that exist; nothing was written for the others.

        Raises:
            Fenced: another has the slot; nothing was written.
            RecordsLost: the database has not all that was counted; nothing was written.
            Sealed: some of the polls take no more votes; nothing was written.
            Unavailable: nothing was written.
            OutcomeUnknown: `renew`, then look.
        """
        polls, shards, numbers, records, totals, *counts = zip(*writes, strict=True) if writes else [()] * 8
        names, batches, outcomes = zip(*senders, strict=True) if senders else [()] * 3
        async with self._database.writing() as connection:
            is_held, is_lost, sealed, existing = await connection.fetchrow(
                _COMMIT, self._slot, generation,
                _literal(polls), _literal(shards), _literal(numbers),
                records, [_literal(one) for one in totals], *map(_literal, counts),
                names, _literal(batches), outcomes,
            )  # fmt: skip
            if not is_held:
                raise await refusal(connection, self._slot, generation)
        if is_lost:
            raise RecordsLost(self._slot)
        if sealed:
            raise Sealed(frozenset(sealed))
        return set(existing)

    async def require(self, generation: int, newest: Sequence[tuple[int, int, int]]) -> None:
        """Check that each (poll, shard, number) names a row that is still there, or a poll that was deleted.

        Raises:
            Fenced: another has the slot.
            RecordsLost: a row is missing.
            Unavailable: the database cannot be asked, or has lost who has the slot.
        """
        columns = [_literal(column) for column in zip(*newest, strict=True)]
        async with self._database.connection() as connection:
            is_held, is_lost = await connection.fetchrow(_HAS_LOST, self._slot, generation, *columns)
            if not is_held:
                raise await refusal(connection, self._slot, generation)
        if is_lost:
            raise RecordsLost(self._slot)

    async def merge(self, generation: int, poll: int, shard: int) -> None:
        """Merge the shard's rows until each level has fewer than `MERGED_ROWS`; the last has what comes.

        Raises:
            Fenced: another has the slot.
            Unavailable: some are merged or none, and nothing is lost.
        """
        is_merged = True
        while is_merged:
            async with self._database.connection() as connection:
                is_held, is_merged = await connection.fetchrow(
                    _MERGE, self._slot, generation, poll, shard, _MERGED_BYTES
                )
                if not is_held:
                    raise await refusal(connection, self._slot, generation)

    async def forget_senders(self, older_than_s: float) -> None:
        """Forget senders that have sent nothing to this slot for so long, and keys that have ended."""
        await self._database.execute(_FORGET_SENDERS, self._slot, older_than_s)


def _literal(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
