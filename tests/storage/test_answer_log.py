"""`broker.storage.answer_log`: commits, what a start finds of them, and how their rows are merged."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from broker.errors import Unavailable
from broker.storage import answer_log as module
from broker.storage.answer_log import AnswerLog, PollWrite, RecordsLost, SenderWrite, StoredTally
from broker.storage.fence import Fenced
from tests.storage.answers import build_write, fetch, make_polls, open_counter, until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

TALLIES = """
SELECT poll, shard, totals, impressions, visitors, sessions FROM answer_tallies ORDER BY poll, shard
"""
ROWS = "SELECT level, number FROM answer_records ORDER BY number"
DELETE_PROGRAM = "DELETE FROM programs WHERE id = $1"
COUNT = """
SELECT (SELECT count(*) FROM answer_keys) + (SELECT count(*) FROM answer_polls)
    + (SELECT count(*) FROM answer_records) + (SELECT count(*) FROM answer_tallies)
"""


@pytest.fixture
def dsn(migrated_dsn: str) -> str:
    return migrated_dsn


@pytest.fixture
async def counter(dsn: str) -> AsyncIterator[tuple[AnswerLog, int]]:
    async with open_counter(dsn) as counter:
        yield counter


@pytest.fixture
async def log(counter: tuple[AnswerLog, int]) -> AnswerLog:
    return counter[0]


@pytest.fixture
async def generation(counter: tuple[AnswerLog, int]) -> int:
    return counter[1]


# -- commits


async def test_what_was_committed_is_loaded_in_order(dsn: str, log: AnswerLog, generation: int) -> None:
    one, two = await make_polls(dsn, "one", "two")
    await log.commit(generation, [build_write(one, 1, b"ab"), build_write(two, 1, b"\x00")], [])
    last = PollWrite(one, 0, 3, b"ef", [7, 0, 1], 9, 8, 6)
    await log.commit(generation, [build_write(one, 2, b"cd"), build_write(one, 1, b"z", shard=1)], [])
    assert await log.commit(generation, [last], []) == {one}
    assert await log.load([(two, 0), (one, 1), (one, 0)]) == {
        (one, 0): StoredTally(impressions=9, newest=3, records=[b"ab", b"cd", b"ef"], loose=3),
        (one, 1): StoredTally(impressions=11, newest=1, records=[b"z"], loose=1),
        (two, 0): StoredTally(impressions=11, newest=1, records=[b"\x00"], loose=1),
    }
    assert await fetch(dsn, TALLIES) == [
        (one, 0, [7, 0, 1], 9, 8, 6),
        (one, 1, [1, 0, 2], 11, 21, 31),
        (two, 0, [1, 0, 2], 11, 21, 31),
    ]


async def test_poll_with_nothing_yet_is_empty_and_one_that_is_gone_is_left_out(
    dsn: str, log: AnswerLog
) -> None:
    (poll,) = await make_polls(dsn, "one")
    assert await log.load([(poll, 1), (poll + 1, 0)]) == {(poll, 1): StoredTally(0, 0, [], 0)}
    assert await log.load([]) == {}


async def test_write_without_records_leaves_only_its_counts(
    dsn: str, log: AnswerLog, generation: int
) -> None:
    (poll,) = await make_polls(dsn, "one")
    assert await log.commit(generation, [PollWrite(poll, 0, 0, b"", [], 4, 0, 0)], []) == {poll}
    assert await log.load([(poll, 0)]) == {(poll, 0): StoredTally(4, 0, [], 0)}
    assert await fetch(dsn, TALLIES) == [(poll, 0, [], 4, 0, 0)]


async def test_senders_have_the_newest_batch_of_this_slot(dsn: str, log: AnswerLog, generation: int) -> None:
    await log.commit(generation, [], [SenderWrite("a", 1, b"\x01"), SenderWrite("b", 1, b"")])
    assert await log.commit(generation, [], [SenderWrite("a", 2, b"\x00\x01")]) == set()
    async with open_counter(dsn, "counter-1") as (other, other_generation):
        await other.commit(other_generation, [], [SenderWrite("a", 9, b"\x01")])
    assert await log.find_senders(["a", "b", "c"]) == {"a": (2, b"\x00\x01"), "b": (1, b"")}


async def test_senders_that_are_silent_are_forgotten(dsn: str, log: AnswerLog, generation: int) -> None:
    await log.commit(generation, [], [SenderWrite(name, 1, b"") for name in ("old", "new")])
    await fetch(dsn, "UPDATE answer_doors SET time = now() - interval '61 s' WHERE door = 'old'")
    await log.forget_senders(62)
    assert set(await log.find_senders(["old", "new"])) == {"old", "new"}
    await log.forget_senders(60)
    assert set(await log.find_senders(["old", "new"])) == {"new"}


# -- who may commit, and what is there to commit to


async def test_older_generation_writes_nothing(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    newer = await log.acquire()
    with pytest.raises(Fenced):
        await log.commit(generation, [build_write(poll, 1, b"a")], [SenderWrite("d", 1, b"\x01")])
    with pytest.raises(Fenced):
        await log.commit(generation, [], [SenderWrite("d", 1, b"\x01")])
    assert await log.load([(poll, 0)]) == {(poll, 0): StoredTally(0, 0, [], 0)}
    assert await fetch(dsn, TALLIES) == []
    assert await log.find_senders(["d"]) == {}
    assert await log.commit(newer, [build_write(poll, 1, b"a")], []) == {poll}


async def test_newer_generation_waits_for_a_commit_that_runs(
    dsn: str, log: AnswerLog, generation: int
) -> None:
    """And finds then what it wrote."""
    (poll,) = await make_polls(dsn, "one")
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("SELECT FROM answer_polls FOR UPDATE")
        committing = asyncio.create_task(log.commit(generation, [build_write(poll, 1, b"a")], []))
        await until_waiting(dsn)
        async with asyncio.timeout(10):
            taking = asyncio.create_task(log.acquire())
            while not await holder.fetchval(
                "SELECT count(*) > 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ):
                await holder.execute("SELECT pg_sleep(0.01)")
    assert await committing == {poll}
    assert await taking > generation
    assert (await log.load([(poll, 0)]))[poll, 0].records == [b"a"]
    await holder.close()


async def test_poll_that_went_with_its_program_is_skipped(dsn: str, log: AnswerLog, generation: int) -> None:
    (gone,) = await make_polls(dsn, "one", program="p")
    (kept,) = await make_polls(dsn, "one", program="q")
    await log.commit(generation, [build_write(gone, 1, b"a"), build_write(kept, 1, b"a")], [])
    await fetch(dsn, DELETE_PROGRAM, "p")
    writes = [build_write(gone, 2, b"b"), build_write(kept, 2, b"c")]
    assert await log.commit(generation, writes, [SenderWrite("d", 1, b"\x01\x01")]) == {kept}
    assert (await log.load([(gone, 0), (kept, 0)])).keys() == {(kept, 0)}
    assert [row[0] for row in await fetch(dsn, TALLIES)] == [kept]
    assert await log.find_senders(["d"]) == {"d": (1, b"\x01\x01")}


async def test_commit_waits_for_a_deletion_that_runs_and_skips_its_poll(
    dsn: str, log: AnswerLog, generation: int
) -> None:
    (poll,) = await make_polls(dsn, "one")
    deleter = await asyncpg.connect(dsn)
    async with deleter.transaction():
        await deleter.execute(DELETE_PROGRAM, "p")
        committing = asyncio.create_task(
            log.commit(generation, [build_write(poll, 1, b"a")], [SenderWrite("d", 1, b"\x01")])
        )
        await until_waiting(dsn)
    assert await committing == set()
    assert await log.find_senders(["d"]) == {"d": (1, b"\x01")}
    await deleter.close()


async def test_nothing_is_left_of_a_deleted_program(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    await fetch(dsn, "INSERT INTO answer_keys SELECT uid, decode(repeat('00', 16), 'hex') FROM programs")
    await log.commit(generation, [build_write(poll, 1, b"a"), build_write(poll, 1, b"b", shard=1)], [])
    assert await fetch(dsn, COUNT) == [(6,)]
    await fetch(dsn, DELETE_PROGRAM, "p")
    assert await fetch(dsn, COUNT) == [(0,)]


async def test_number_that_is_taken_writes_nothing(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    await log.commit(generation, [build_write(poll, 1, b"a")], [])
    with pytest.raises(asyncpg.UniqueViolationError):
        await log.commit(generation, [build_write(poll, 1, b"b")], [SenderWrite("d", 1, b"")])
    assert (await log.load([(poll, 0)]))[poll, 0].records == [b"a"]
    assert await log.find_senders(["d"]) == {}


@pytest.mark.parametrize(("number", "records"), [(3, b"b"), (2, b"")])
async def test_write_after_a_row_that_was_lost_writes_nothing(
    dsn: str, log: AnswerLog, generation: int, number: int, records: bytes
) -> None:
    (poll,) = await make_polls(dsn, "one")
    await log.commit(generation, [build_write(poll, 1, b"a")], [])
    with pytest.raises(RecordsLost):
        await log.commit(generation, [build_write(poll, number, records)], [SenderWrite("d", 1, b"")])
    assert (await log.load([(poll, 0)]))[poll, 0].records == [b"a"]
    assert await log.find_senders(["d"]) == {}


async def test_renewed_generation_tells_what_became_of_a_lost_commit(
    dsn: str, log: AnswerLog, generation: int
) -> None:
    (poll,) = await make_polls(dsn, "one")
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("SELECT FROM answer_polls FOR UPDATE")
        committing = asyncio.create_task(log.commit(generation, [build_write(poll, 1, b"a")], []))
        await until_waiting(dsn)
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'broker counter-0' AND wait_event_type = 'Lock'"
        )
        with pytest.raises(Unavailable):
            await committing
    target = log.next_generation(generation)
    assert await log.renew(generation, target) == target
    assert (await log.load([(poll, 0)]))[poll, 0].records == []
    with pytest.raises(Fenced):
        await log.commit(generation, [build_write(poll, 1, b"a")], [])
    assert await log.commit(target, [build_write(poll, 1, b"a")], []) == {poll}
    await holder.close()


# -- merging


async def fill(dsn: str, poll: int, numbers: range, level: int = 0) -> bytes:
    """Rows whose records are their numbers; returns all of them."""
    statement = "INSERT INTO answer_records SELECT $1, 0, n, $3, int4send(n) FROM unnest($2::integer[]) AS n"
    await fetch(dsn, statement, poll, list(numbers), level)
    return b"".join(number.to_bytes(4) for number in numbers)


async def test_rows_are_merged_from_the_64th_on(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    await fill(dsn, poll, range(1, 64))
    await log.merge(generation, poll, 0)
    assert len(await fetch(dsn, ROWS)) == 63
    await fill(dsn, poll, range(64, 65))
    await log.merge(generation, poll, 0)
    assert await fetch(dsn, ROWS) == [(1, 64)]


async def test_merging_keeps_bytes_and_order_over_levels(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    whole, most = b"", 0
    for first in range(1, 64 * 64 + 1, 64):
        whole += await fill(dsn, poll, range(first, first + 64))
        await log.merge(generation, poll, 0)
        most = max(most, len(await fetch(dsn, ROWS)))
    whole += await fill(dsn, poll, range(64 * 64 + 1, 64 * 64 + 6))
    await log.merge(generation, poll, 0)
    assert await fetch(dsn, ROWS) == [(2, 4096), *((0, 4096 + n) for n in range(1, 6))]
    assert most == 63
    stored = (await log.load([(poll, 0)]))[poll, 0]
    assert b"".join(stored.records) == whole
    assert (stored.newest, stored.loose) == (4101, 5)


async def test_other_shards_and_polls_are_not_merged(dsn: str, log: AnswerLog, generation: int) -> None:
    one, two = await make_polls(dsn, "one", "two")
    for poll in (one, two):
        await fill(dsn, poll, range(1, 65))
    await fetch(dsn, "INSERT INTO answer_records SELECT $1, 1, n, 0, 'a' FROM generate_series(1, 64) n", one)
    await log.merge(generation, one, 0)
    assert await fetch(
        dsn, "SELECT poll, shard, count(*) FROM answer_records GROUP BY 1, 2 ORDER BY 1, 2"
    ) == [(one, 0, 1), (one, 1, 64), (two, 0, 64)]


async def test_merge_takes_no_more_bytes_than_it_may(
    dsn: str, log: AnswerLog, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are too large to be merged move up alone, and order is kept."""
    monkeypatch.setattr(module, "_MERGED_BYTES", 40)
    (poll,) = await make_polls(dsn, "one")
    whole = b""
    for first in range(1, 1001, 100):
        whole += await fill(dsn, poll, range(first, first + 100))
        await log.merge(generation, poll, 0)
    rows = await fetch(dsn, "SELECT level, number, octet_length(records) FROM answer_records ORDER BY number")
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    assert {row[0] for row in rows} == {0, 1, 2}
    assert max(row[2] for row in rows) == 40
    assert b"".join((await log.load([(poll, 0)]))[poll, 0].records) == whole


async def test_rows_of_the_last_level_stay(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    await fill(dsn, poll, range(1, 101), level=3)
    await fill(dsn, poll, range(101, 165), level=2)
    await log.merge(generation, poll, 0)
    assert await fetch(dsn, ROWS) == [*((3, n) for n in range(1, 101)), (3, 164)]


async def test_older_generation_merges_nothing(dsn: str, log: AnswerLog, generation: int) -> None:
    (poll,) = await make_polls(dsn, "one")
    await fill(dsn, poll, range(1, 65))
    await log.acquire()
    with pytest.raises(Fenced):
        await log.merge(generation, poll, 0)
    assert len(await fetch(dsn, ROWS)) == 64
