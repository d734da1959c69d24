"""What the tests of the counters share: polls in the database, records, and what the database says."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from broker._native import pack_answer, pack_impression, pack_session
from broker.concurrency.batch_queue import BatchLimits
from broker.settings import Settings
from broker.voting.counting.batches import Group, VoteBatch
from broker.voting.counting.counter import Counter
from tests.owners.support import create_programs

KEY = bytes(range(16))
SETTINGS = Settings(publish_timeout_s=5.0)
SLOT = "counter-0"


async def make_polls(dsn: str, count: int, *, shards: int = 1, program_id: str = "p") -> list[int]:
    """Polls of a program that is there."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "INSERT INTO answer_polls (program_uid, account, measure, context, shards, created_time)"
            " SELECT uid, account, 'winner', 'context-' || n, $3, now()"
            " FROM programs, generate_series(1, $2) n"
            " WHERE id = $1 RETURNING uid",
            program_id,
            count,
            shards,
        )
        return [row["uid"] for row in rows]
    finally:
        await connection.close()


async def make_polls_of_another(dsn: str) -> list[int]:
    """One poll of a program `q`, which is made too."""
    await create_programs(dsn, ["q"])
    return await make_polls(dsn, 1, program_id="q")


@asynccontextmanager
async def open_counter(
    dsn: str, slot: str = SLOT, limits: BatchLimits | None = None, settings: Settings = SETTINGS
) -> AsyncIterator[Counter]:
    """A counter that is closed in the end."""
    counter = await Counter.start(settings, dsn, slot, limits=limits)
    try:
        yield counter
    finally:
        await counter.close()


def vote(poll: int, visitor: str, *indexes: int) -> bytes:
    return pack_answer(KEY, poll, visitor, indexes)


def seen(poll: int, visitor: str) -> bytes:
    return pack_impression(KEY, poll, visitor)


def session(poll: int, name: str) -> bytes:
    return pack_session(KEY, poll, name)


def batch(
    sender: str, number: int, poll: int, records: Sequence[bytes], *, change: bool = False
) -> VoteBatch:
    """A batch for shard 0 of one poll."""
    return VoteBatch(sender, number, (Group(poll, 0, change, b"".join(records)),))


async def read_totals(dsn: str, poll: int) -> list[int]:
    """What the database has counted, summed over the shards, by option."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT n AS place, sum(t)::bigint AS total FROM answer_tallies, unnest(totals) WITH ORDINALITY"
            " AS one(t, n) WHERE poll = $1 GROUP BY n ORDER BY n",
            poll,
        )
        return [row["total"] for row in rows]
    finally:
        await connection.close()
