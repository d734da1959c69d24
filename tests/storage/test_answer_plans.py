"""What the server does for the queries of answers: none reads a whole table."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from broker.storage.answer_log import AnswerLog, PollWrite, SenderWrite
from broker.storage.database import Database
from broker.storage.polls import Polls, Room
from tests.storage.answers import open_counter

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FILL = """
INSERT INTO accounts (name, created_time) SELECT 'a' || n, now() FROM generate_series(0, 9) n;
INSERT INTO programs (account, id, name, project_id, access, created_time, updated_time)
    SELECT 'a' || n % 10, 'p' || n, 'n', 'own' || n, 'public', now(), now() FROM generate_series(1, 2000) n;
INSERT INTO program_heads (program_uid, epoch, epoch_reason) SELECT uid, uid, 'created' FROM programs;
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata)
    SELECT history, n, gen_random_uuid(), now(), 0, 0, 'A#b', '{}'
    FROM program_heads, generate_series(1, 5) n;
INSERT INTO answer_keys SELECT uid, decode(repeat('00', 16), 'hex') FROM programs WHERE uid % 2 = 0;
INSERT INTO answer_polls (program_uid, account, measure, context, shards)
    SELECT p.uid, p.account, 'm' || p.uid, e.id::text, 2
    FROM programs p JOIN program_heads h ON h.program_uid = p.uid JOIN events e USING (history);
INSERT INTO answer_tallies SELECT uid, n, '{1,2}', 1, 1, 1, now() FROM answer_polls, generate_series(0, 1) n;
INSERT INTO answer_records SELECT uid, 0, n, 0, '\\x0102' FROM answer_polls, generate_series(1, 2) n;
INSERT INTO answer_records SELECT min(uid), 1, n, 0, '\\x0102' FROM answer_polls, generate_series(1, 64) n
    GROUP BY n;
INSERT INTO owner_slots SELECT 's' || n, 1 FROM generate_series(1, 2000) n;
INSERT INTO answer_doors SELECT 'counter-' || n % 8, n, 1, '', now() FROM generate_series(1, 2000) n;
ANALYZE
"""


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Each statement that is run inside the block, with the arguments of its last run."""
    seen: dict[str, tuple[Any, ...]] = {}

    def note(name: str) -> None:
        run = getattr(asyncpg.Connection, name)

        async def noting(connection: Any, query: str, *args: Any, **kwargs: Any) -> Any:
            seen[query] = args
            return await run(connection, query, *args, **kwargs)

        patch.setattr(asyncpg.Connection, name, noting)

    with monkeypatch.context() as patch:
        for name in ("fetch", "fetchrow", "fetchval", "execute"):
            note(name)
        yield seen


async def run_all(log: AnswerLog, generation: int, polls: Polls, uid: int, poll: int, event: str) -> None:
    """Every query of the two repositories, in all their forms."""
    await log.load([(poll, 0), (poll + 1, 1)])
    await log.find_senders(["1", "2"])
    writes = [PollWrite(poll, 0, 3, b"a", [1], 1, 1, 1), PollWrite(poll + 1, 0, 2, b"", [1], 1, 1, 1)]
    await log.commit(generation, writes, [SenderWrite("1", 1, b"")])
    await log.require(generation, [(poll, 0, 3), (poll + 1, 0, 2)])
    await log.merge(generation, poll, 1)
    await log.forget_senders(60)
    await polls.find_program("a1", "p1")
    await polls.find_contexts(uid, [event])
    await polls.find_program_of("a1", event)
    await polls.ensure(uid, [("new", event)], 2, Room({}, 20, 100))
    await polls.count("a1", "m1")
    await polls.count("a1", "m1", context_id=event)
    await polls.count("a1", None, program_id="p1")
    await polls.count("a1", "m1", project_id="own1")
    await polls.count("a1", None, project_id="own1", program_id="p1")


def scanned(plan: Any) -> set[str]:
    """The tables that a plan reads whole."""
    found = {scan for part in plan.get("Plans", ()) for scan in scanned(part)}
    if plan["Node Type"] == "Seq Scan":
        found.add(plan["Relation Name"])
    return found


@pytest.fixture
async def connection(own_migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """To a database with so much in it that the server would rather not read a table whole."""
    connection = await asyncpg.connect(own_migrated_dsn)
    await connection.execute(FILL)
    yield connection
    await connection.close()


@pytest.fixture
async def queries(
    own_migrated_dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[Any, ...]]:
    """All of them, with arguments."""
    first = "SELECT program_uid, uid, context FROM answer_polls ORDER BY uid LIMIT 1"
    uid, poll, event = await connection.fetchrow(first)
    database = await Database.open(own_migrated_dsn, size=2, timeout_s=10)
    async with open_counter(own_migrated_dsn) as (log, generation):
        with noted(monkeypatch) as seen:
            await run_all(log, generation, Polls(database), uid, poll, event)
    await database.close()
    queries = {query: args for query, args in seen.items() if "answer_" in query or "program" in query}
    assert len(queries) == 18
    return queries


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_no_query_reads_a_whole_table(
    connection: asyncpg.Connection, queries: dict[str, tuple[Any, ...]], mode: str
) -> None:
    await connection.execute(f"SET plan_cache_mode = {mode}")
    read = {}
    for query, args in queries.items():
        plan = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {query}", *args))
        read[query] = scanned(plan[0]["Plan"])
    assert {query: tables for query, tables in read.items() if tables} == {}
