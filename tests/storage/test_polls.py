"""`broker.storage.polls`: programs' keys, their polls, the events of contexts, and what was counted."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from broker.domain.programs import Access
from broker.storage.answer_log import PollWrite
from broker.storage.database import Database
from broker.storage.polls import PollCount, PollProgram, Polls, Room
from tests.owners.support import create_programs
from tests.storage.answers import build_write, fetch, open_counter, until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

EVENT = """
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata)
SELECT h.history, (SELECT count(*) + 1 FROM events), $2, now(), 0, 0, 'A#b', $3
FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.id = $1
"""


@pytest.fixture
def dsn(migrated_dsn: str) -> str:
    return migrated_dsn


@pytest.fixture
async def polls(dsn: str) -> AsyncIterator[Polls]:
    database = await Database.open(dsn, size=4, timeout_s=10)
    yield Polls(database)
    await database.close()


async def make_program(
    dsn: str, polls: Polls, name: str = "p", account: str = "demo", project: str | None = None
) -> int:
    """Its uid."""
    await create_programs(dsn, [name], account)
    statement = "UPDATE programs SET project_id = $1 WHERE account = $2 AND id = $3"
    await fetch(dsn, statement, project, account, name)
    program = await polls.find_program(account, name)
    assert program is not None
    return program.uid


async def make_event(dsn: str, program: str = "p", metadata: str = '{"title":"T"}') -> str:
    id_ = str(uuid.uuid4())
    await fetch(dsn, EVENT, program, id_, metadata)
    return id_


async def make_poll(polls: Polls, uid: int, measure: str = "m", context: str = "c") -> int:
    return (await polls.ensure(uid, [(measure, context)], 2, Room({}, 20, 100)))[measure, context].uid


# -- programs


async def test_program_has_what_a_door_needs_and_keeps_its_key(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls, project="own")
    statement = """UPDATE programs SET access = 'private', metadata = '{"freeContexts":true}'"""
    await fetch(dsn, statement)
    first = await polls.find_program("demo", "p")
    assert first is not None
    assert first == PollProgram(uid, "own", Access.PRIVATE, {"freeContexts": True}, first.key)
    assert len(first.key) == 16
    assert await polls.find_program("demo", "p") == first


async def test_program_without_project_and_metadata(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    program = await polls.find_program("demo", "p")
    assert program is not None
    assert program[:-1] == (uid, None, "public", {})


async def test_each_program_has_its_own_key(dsn: str, polls: Polls) -> None:
    for name in ("p", "q"):
        await make_program(dsn, polls, name)
    programs = [await polls.find_program("demo", name) for name in ("p", "q")]
    assert len({program.key for program in programs if program is not None}) == 2


async def test_all_who_ask_at_once_for_a_key_get_the_same(dsn: str, polls: Polls) -> None:
    await create_programs(dsn, ["p"])
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("SELECT FROM programs FOR UPDATE")
        asking = [asyncio.create_task(polls.find_program("demo", "p")) for _ in range(3)]
        while await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < 3:
            await holder.execute("SELECT pg_sleep(0.01)")
    found = await asyncio.gather(*asking)
    await holder.close()
    assert len({program.key for program in found if program is not None}) == 1
    assert len(await fetch(dsn, "SELECT FROM answer_keys")) == 1


async def test_unknown_program_and_one_of_another_account_are_not_found(dsn: str, polls: Polls) -> None:
    await make_program(dsn, polls, account="other")
    assert await polls.find_program("demo", "p") is None
    assert await polls.find_program("other", "q") is None


async def test_program_that_is_deleted_while_its_key_is_made_is_not_found(dsn: str, polls: Polls) -> None:
    await create_programs(dsn, ["p"])
    deleter = await asyncpg.connect(dsn)
    async with deleter.transaction():
        await deleter.execute("DELETE FROM programs")
        asking = asyncio.create_task(polls.find_program("demo", "p"))
        await until_waiting(dsn)
    await deleter.close()
    assert await asking is None


# -- contexts


async def test_contexts_are_the_events_of_the_current_history(dsn: str, polls: Polls) -> None:
    uid, other = await make_program(dsn, polls), await make_program(dsn, polls, "q")
    one, deleted, erased = [await make_event(dsn) for _ in range(3)]
    foreign = await make_event(dsn, "q", '{"a": 1}')
    await fetch(dsn, "UPDATE events SET deleted = true WHERE id = $1", deleted)
    await fetch(dsn, "UPDATE events SET history = nextval('histories') WHERE id = $1", erased)
    wanted = [one, deleted, erased, foreign, str(uuid.uuid4())]
    assert await polls.find_contexts(uid, wanted) == {one: b'{"title":"T"}'}
    assert await polls.find_contexts(other, wanted) == {foreign: b'{"a": 1}'}


async def test_context_that_is_not_the_id_as_written_is_no_event(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    event = await make_event(dsn)
    odd = ["", "free", event.upper(), event.replace("-", ""), f"{{{event}}}", event + "\n", event[:-1]]
    assert await polls.find_contexts(uid, odd) == {}
    assert (await polls.find_contexts(uid, [*odd, event])).keys() == {event}


# -- polls


async def test_polls_are_made_once_and_keep_their_shards(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    made = await polls.ensure(uid, [("m", "c"), ("m", "d"), ("m", "c")], 2, Room({}, 20, 10))
    assert {row.shards for row in made.values()} == {2}
    assert len({row.uid for row in made.values()}) == 2
    again = await polls.ensure(uid, [("m", "d"), ("n", "c"), ("m", "c")], 8, Room({}, 20, 10))
    assert again == made | {("n", "c"): again["n", "c"]}
    assert again["n", "c"].shards == 8
    assert await polls.ensure(uid, [], 2, Room({}, 20, 10)) == {}


async def test_program_has_at_most_so_many_polls(dsn: str, polls: Polls) -> None:
    uid, other = await make_program(dsn, polls), await make_program(dsn, polls, "q")
    wanted = [("m", str(number)) for number in range(4)]
    first = await polls.ensure(uid, wanted[:2], 1, Room({}, 20, 3))
    made = await polls.ensure(uid, wanted, 1, Room({}, 20, 3))
    assert list(made) == wanted[:3]
    assert first.items() <= made.items()
    assert await polls.ensure(uid, wanted[3:], 1, Room({}, 20, 2)) == {}
    assert len(await polls.ensure(uid, wanted, 1, Room({}, 20, 4))) == 4
    assert len(await polls.ensure(other, wanted, 1, Room({}, 20, 3))) == 3


async def test_all_who_ask_at_once_for_polls_get_the_same_and_keep_the_bound(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    wanted = [("m", str(number)) for number in range(6)]
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("SELECT FROM programs FOR UPDATE")
        asked = (wanted[:2], wanted[:2], wanted[2:])
        asking = [asyncio.create_task(polls.ensure(uid, keys, 2, Room({}, 20, 3))) for keys in asked]
        while await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < 3:
            await holder.execute("SELECT pg_sleep(0.01)")
    one, same, rest = await asyncio.gather(*asking)
    await holder.close()
    rows = await fetch(dsn, "SELECT uid FROM answer_polls")
    assert len(rows) == 3
    assert one == same
    assert {(row.uid,) for found in (one, rest) for row in found.values()} == set(rows)


async def test_program_that_is_gone_gets_no_polls(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    deleter = await asyncpg.connect(dsn)
    async with deleter.transaction():
        await deleter.execute("DELETE FROM programs")
        asking = asyncio.create_task(polls.ensure(uid, [("m", "c")], 2, Room({}, 20, 10)))
        await until_waiting(dsn)
    await deleter.close()
    assert await asking == {}
    assert await fetch(dsn, "SELECT FROM answer_polls") == []


# -- results


async def test_count_sums_over_shards(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls, project="own")
    poll = await make_poll(polls, uid)
    writes = [
        PollWrite(poll, 0, 0, b"", [1, 0, *range(98)], 10, 2, 3),
        PollWrite(poll, 1, 0, b"", [2], 20, 4, 1),
    ]
    async with open_counter(dsn) as (log, generation):
        await log.commit(generation, writes, [])
    (created,) = await fetch(
        dsn, "SELECT (extract(epoch FROM created_time) * 1000)::bigint FROM answer_polls"
    )
    totals = [3, 0, *range(98)]
    expected = PollCount(poll, "p", "own", "m", "c", created[0], totals, 30, 6, 4, False, None)
    assert await polls.count("demo", "m") == [expected]


async def test_poll_without_answers_counts_nothing(dsn: str, polls: Polls) -> None:
    poll = await make_poll(polls, await make_program(dsn, polls))
    (count,) = await polls.count("demo", "m")
    assert (count.uid, *count[6:]) == (poll, [], 0, 0, 0, False, None)


async def test_count_selects_by_measure_project_program_and_context(dsn: str, polls: Polls) -> None:
    made: dict[tuple[str, str, str], int] = {}
    for program, project in (("p", "own"), ("q", "own"), ("r", "else"), ("s", None)):
        uid = await make_program(dsn, polls, program, project=project)
        for measure, context in (("m", "c"), ("m", "d"), ("n", "c")):
            made[program, measure, context] = await make_poll(polls, uid, measure, context)

    async def uids(measure: str | None, **where: str) -> list[int]:
        return [count.uid for count in await polls.count("demo", measure, **where)]

    def those(programs: str, measures: str, contexts: str) -> list[int]:
        return [made[p, m, c] for p, m, c in made if p in programs and m in measures and c in contexts]

    assert await uids(None) == those("pqrs", "mn", "cd")
    assert await uids("m") == those("pqrs", "m", "cd")
    assert await uids("m", project_id="own") == those("pq", "m", "cd")
    assert await uids(None, project_id="own", program_id="q") == those("q", "mn", "cd")
    assert await uids("n", program_id="r") == those("r", "n", "c")
    assert await uids("m", project_id="own", context_id="d") == those("pq", "m", "d")
    assert await uids("m", project_id="else", program_id="p") == []
    assert await uids("unknown") == []


async def test_account_sees_only_its_own_polls(dsn: str, polls: Polls) -> None:
    mine = await make_poll(polls, await make_program(dsn, polls, account="demo"))
    theirs = await make_poll(polls, await make_program(dsn, polls, account="other"))
    for where in ({}, {"program_id": "p"}, {"context_id": "c"}):
        assert [count.uid for count in await polls.count("demo", "m", **where)] == [mine]
        assert [count.uid for count in await polls.count("other", None, **where)] == [theirs]
    assert await polls.count("third", "m") == []


async def test_count_has_the_event_of_the_context_while_it_is_there(dsn: str, polls: Polls) -> None:
    uid = await make_program(dsn, polls)
    await make_program(dsn, polls, "q")
    event, foreign = await make_event(dsn), await make_event(dsn, "q")
    for context in (event, foreign, event.upper(), "free"):
        await make_poll(polls, uid, context=context)

    async def events() -> list[bytes | None]:
        return [count.event for count in await polls.count("demo", "m")]

    assert await events() == [b'{"title":"T"}', None, None, None]
    await fetch(dsn, "UPDATE events SET deleted = true WHERE id = $1", event)
    assert await events() == [None] * 4
    await fetch(dsn, "UPDATE events SET deleted = false")
    await fetch(dsn, "UPDATE program_heads SET history = nextval('histories')")
    assert await events() == [None] * 4


async def test_nothing_is_counted_of_a_deleted_program(dsn: str, polls: Polls) -> None:
    poll = await make_poll(polls, await make_program(dsn, polls))
    async with open_counter(dsn) as (log, generation):
        await log.commit(generation, [build_write(poll, records=b"a")], [])
    before = await polls.find_program("demo", "p")
    await fetch(dsn, "DELETE FROM programs")
    assert await polls.count("demo", None) == []
    await create_programs(dsn, ["p"])
    after = await polls.find_program("demo", "p")
    assert await polls.count("demo", None) == []
    assert before is not None
    assert after is not None
    assert after.key != before.key
