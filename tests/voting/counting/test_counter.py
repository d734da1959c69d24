import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import asyncpg
import pytest

from broker.errors import InternalError, Unavailable
from broker.storage.answer_log import AnswerLog, PollWrite, SenderWrite
from broker.voting.counting.batches import SEALED, Group, VoteBatch, pack_outcomes, unpack_outcomes
from broker.voting.counting.counter import COUNTER_LIMITS, Counter
from tests.owners.support import create_programs, fetch
from tests.voting.counting.support import (
    batch,
    make_polls,
    make_polls_of_another,
    open_counter,
    read_totals,
    seen,
    session,
    vote,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def poll(dsn: str) -> int:
    await create_programs(dsn, ["p"])
    (uid,) = await make_polls(dsn, 1)
    return uid


def test_outcomes_are_packed_and_unpacked() -> None:
    outcomes = (b"\x01\x00", None, b"", b"\x01")
    assert unpack_outcomes(pack_outcomes(outcomes)) == outcomes


async def test_visitor_counts_once_and_it_is_stored_when_answered(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as counter:
        records = [vote(poll, "ann", 0), vote(poll, "bob", 1), vote(poll, "ann", 1)]
        assert await counter.submit(batch("d", 1, poll, records), 5) == (b"\x01\x01\x00",)
        assert await read_totals(dsn, poll) == [1, 1]
        assert await counter.submit(batch("d", 2, poll, [vote(poll, "bob", 0)]), 5) == (b"\x00",)
        assert await read_totals(dsn, poll) == [1, 1]


async def test_last_answer_stands_where_it_may_change(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 0)], change=True), 5)
        changed = batch("d", 2, poll, [vote(poll, "ann", 1, 2), vote(poll, "ann", 1, 2)], change=True)
        assert await counter.submit(changed, 5) == (b"\x01\x00",)
        assert await read_totals(dsn, poll) == [0, 1, 1]
    async with open_counter(dsn) as counter:
        again = batch("d", 3, poll, [vote(poll, "ann", 1, 2), vote(poll, "ann", 2)], change=True)
        assert await counter.submit(again, 5) == (b"\x00\x01",)
        assert await read_totals(dsn, poll) == [0, 0, 1]


async def test_next_counter_goes_on_where_the_last_one_ended(dsn: str, poll: int) -> None:
    records = [vote(poll, f"v{n}", n % 3) for n in range(100)]
    first = [*records[:60], seen(poll, "ann"), seen(poll, "ann"), session(poll, "s")]
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, first), 5)
    async with open_counter(dsn) as counter:
        second = [*records, seen(poll, "ann"), seen(poll, "bob"), session(poll, "s")]
        (outcomes,) = await outcomes_of(counter.submit(batch("e", 1, poll, second), 5))
        assert outcomes == bytes([0] * 60 + [1] * 40 + [1, 1, 0])
    assert await read_totals(dsn, poll) == [34, 33, 33]
    assert await read_impressions(dsn, poll) == (4, 2, 1)


async def test_batch_that_comes_again_is_answered_as_the_first_time(dsn: str, poll: int) -> None:
    sent = batch("d", 7, poll, [vote(poll, "ann", 0), seen(poll, "ann")])
    async with open_counter(dsn) as counter:
        assert await counter.submit(sent, 5) == (b"\x01\x01",)
        assert await counter.submit(sent, 5) == (b"\x01\x01",)
    async with open_counter(dsn) as counter:
        assert await counter.submit(sent, 5) == (b"\x01\x01",)
        older = await counter.submit(batch("d", 6, poll, [vote(poll, "bob", 0)]), 5)
        assert isinstance(older, Unavailable)
    assert await read_totals(dsn, poll) == [1]
    assert await read_impressions(dsn, poll) == (1, 1, 0)


async def test_batches_that_wait_are_committed_together(
    dsn: str, poll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    commit = AnswerLog.commit

    async def counted(
        self: AnswerLog, generation: int, writes: Sequence[PollWrite], senders: Sequence[SenderWrite]
    ) -> set[int]:
        sizes.append(len(senders))
        return await commit(self, generation, writes, senders)

    monkeypatch.setattr(AnswerLog, "commit", counted)
    async with open_counter(dsn) as counter:
        sent = [batch(f"d{n}", 1, poll, [vote(poll, f"v{n}", 0)]) for n in range(50)]
        await asyncio.gather(*(counter.submit(each, 5) for each in sent))
    assert sum(sizes) == 50
    assert len(sizes) < 5
    assert await read_totals(dsn, poll) == [50]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_commit_whose_answer_is_lost_counts_once(
    dsn: str, poll: int, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    commit, lost = AnswerLog.commit, []

    async def unlucky(
        self: AnswerLog, generation: int, writes: Sequence[PollWrite], senders: Sequence[SenderWrite]
    ) -> set[int]:
        if not lost:
            lost.append(True)
            if is_stored:
                await commit(self, generation, writes, senders)
            raise Unavailable("the connection is gone", retry_after_s=1)
        return await commit(self, generation, writes, senders)

    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 0), seen(poll, "ann")]), 5)
        monkeypatch.setattr(AnswerLog, "commit", unlucky)
        sent = batch("d", 2, poll, [vote(poll, "bob", 1), seen(poll, "ann"), vote(poll, "ann", 1)])
        assert await counter.submit(sent, 5) == (b"\x01\x01\x00",)
        assert lost
    assert await read_totals(dsn, poll) == [1, 1]
    assert await read_impressions(dsn, poll) == (2, 1, 0)


async def test_connections_cut_again_and_again_lose_and_double_nothing(dsn: str, poll: int) -> None:
    cutter, cut = await asyncpg.connect(dsn), asyncio.Event()
    rng = random.Random(3)

    async def vote_on(counter: Counter, sender: int) -> int:
        sent = 0
        while not cut.is_set():
            records = [vote(poll, f"{sender}-{sent}-{n}", n % 2) for n in range(5)]
            sent += 1
            (outcomes,) = await outcomes_of(counter.submit(batch(f"d{sender}", sent, poll, records), 30))
            assert outcomes == bytes([1] * 5)
        return sent

    async with open_counter(dsn) as counter:
        senders = [asyncio.create_task(vote_on(counter, sender)) for sender in range(8)]
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0.1, 0.4))  # time for some commits in between
            await cutter.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE '%counter-0%' AND datname = current_database()"
            )
        cut.set()
        sent = sum([await sender for sender in senders])
    await cutter.close()
    assert await read_totals(dsn, poll) == [3 * sent, 2 * sent]


async def test_tally_ahead_of_its_database_is_read_again(dsn: str, poll: int) -> None:
    """The database was restored to a moment before the last commits; who was lost may vote again."""
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 0)]), 5)
        before = await fetch(dsn, "SELECT * FROM answer_tallies")
        await counter.submit(batch("d", 2, poll, [vote(poll, "bob", 0), vote(poll, "eve", 1)]), 5)
        await fetch(dsn, "DELETE FROM answer_records WHERE number = 2")
        await fetch(dsn, "UPDATE answer_tallies SET totals = $1", before[0]["totals"])
        await fetch(dsn, "UPDATE answer_doors SET number = 1")
        await fetch(dsn, "UPDATE owner_slots SET generation = generation - 1")
        again = [vote(poll, "ann", 1), vote(poll, "bob", 0), vote(poll, "joe", 1)]
        assert await counter.submit(batch("d", 3, poll, again), 5) == (b"\x00\x01\x01",)
        assert await read_totals(dsn, poll) == [2, 1]
    async with open_counter(dsn) as counter:
        assert await counter.submit(batch("d", 4, poll, [vote(poll, "joe", 1)]), 5) == (b"\x00",)


@pytest.mark.parametrize("is_generation_lost", [True, False])
@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_repeated_vote_that_its_database_has_lost_counts_again(
    dsn: str, poll: int, is_alone: bool, is_generation_lost: bool
) -> None:
    """Nothing is written for such a poll, so no write tells that memory is ahead."""
    (other,) = await make_polls_of_another(dsn)
    again = Group(poll, 0, False, vote(poll, "bob", 0))
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 1)]), 5)
        assert await counter.submit(VoteBatch("d", 2, (again,)), 5) == (b"\x01",)
        assert await counter.submit(VoteBatch("d", 3, (again,)), 5) == (b"\x00",)
        await fetch(dsn, "DELETE FROM answer_records WHERE number = 2")
        await fetch(dsn, "UPDATE answer_tallies SET totals = '{0,1}'")
        if is_generation_lost:
            await fetch(dsn, "UPDATE owner_slots SET generation = generation - 1")
        groups = (again,) if is_alone else (again, Group(other, 0, False, vote(other, "eve", 0)))
        assert await counter.submit(VoteBatch("e", 1, groups), 5) == (b"\x01",) * len(groups)
        assert await read_totals(dsn, poll) == [1, 1]


@pytest.mark.parametrize("is_generation_lost", [True, False])
async def test_batch_that_its_database_has_lost_is_counted_when_it_comes_again(
    dsn: str, poll: int, is_generation_lost: bool
) -> None:
    """Its answer got lost, and another sender's batch has found out about the loss."""
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 1)]), 5)
        unanswered = batch("e", 1, poll, [vote(poll, "bob", 0)])
        assert await counter.submit(unanswered, 5) == (b"\x01",)
        await fetch(dsn, "DELETE FROM answer_records WHERE number = 2")
        await fetch(dsn, "UPDATE answer_tallies SET totals = '{0,1}'")
        await fetch(dsn, "DELETE FROM answer_doors WHERE door = 'e'")
        if is_generation_lost:
            await fetch(dsn, "UPDATE owner_slots SET generation = generation - 1")
        assert await counter.submit(batch("d", 2, poll, [vote(poll, "eve", 1)]), 5) == (b"\x01",)
        assert await counter.submit(unanswered, 5) == (b"\x01",)
        assert await read_totals(dsn, poll) == [1, 2]


async def test_older_counter_answers_no_repeated_vote(dsn: str, poll: int) -> None:
    """What it remembers may have changed since."""
    async with open_counter(dsn) as older:
        await older.submit(batch("d", 1, poll, [vote(poll, "ann", 0)]), 5)
        async with open_counter(dsn) as newer:
            changed = batch("e", 1, poll, [vote(poll, "ann", 1)], change=True)
            assert await newer.submit(changed, 5) == (b"\x01",)
            late = await older.submit(batch("e", 2, poll, [vote(poll, "ann", 0)], change=True), 5)
            assert isinstance(late, Unavailable)


async def test_what_an_older_counter_counted_after_a_lost_generation_is_read(dsn: str, poll: int) -> None:
    """A promoted standby knows the older counter alone, which hung, and wakes before the newer one asks."""
    (other,) = await make_polls_of_another(dsn)
    async with open_counter(dsn) as older:
        await older.submit(batch("d", 1, poll, [vote(poll, "ann", 0)], change=True), 5)
        before = await fetch(dsn, "SELECT generation FROM owner_slots")
        async with open_counter(dsn) as newer:
            again = batch("e", 1, poll, [vote(poll, "ann", 0)], change=True)
            assert await newer.submit(again, 5) == (b"\x00",)  # it knows the tally now
            await fetch(dsn, "UPDATE owner_slots SET generation = $1", before[0]["generation"])
            changed = batch("d", 2, poll, [vote(poll, "ann", 1), vote(poll, "bob", 1)], change=True)
            assert await older.submit(changed, 5) == (b"\x01\x01",)
            assert await newer.submit(batch("e", 2, other, [vote(other, "eve", 0)]), 5) == (b"\x01",)
            back = batch("e", 3, poll, [vote(poll, "ann", 0), vote(poll, "bob", 1)], change=True)
            assert await newer.submit(back, 5) == (b"\x01\x00",)
    assert await read_totals(dsn, poll) == [1, 1]


async def test_older_counter_is_shut_out_and_over(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as older:
        await older.submit(batch("d", 1, poll, [vote(poll, "ann", 0)]), 5)
        async with open_counter(dsn) as newer:
            late = await older.submit(batch("e", 1, poll, [vote(poll, "bob", 0)]), 5)
            assert isinstance(late, Unavailable)
            await asyncio.wait_for(older.ended(), 5)
            assert await newer.submit(batch("e", 1, poll, [vote(poll, "bob", 0)]), 5) == (b"\x01",)
    assert await read_totals(dsn, poll) == [2]


async def test_poll_that_is_gone_is_told_and_disturbs_no_other(dsn: str, poll: int) -> None:
    await create_programs(dsn, ["q"])
    (other,) = await make_polls(dsn, 1, program_id="q")
    groups = (Group(poll, 0, False, vote(poll, "a", 0)), Group(other, 0, False, vote(other, "a", 0)))
    async with open_counter(dsn) as counter:
        assert await counter.submit(VoteBatch("d", 1, groups), 5) == (b"\x01", b"\x01")
        connection = await asyncpg.connect(dsn)
        await connection.execute("DELETE FROM programs WHERE id = 'q'")
        await connection.close()
        groups = (Group(poll, 0, False, vote(poll, "b", 0)), Group(other, 0, False, vote(other, "b", 0)))
        assert await counter.submit(VoteBatch("d", 2, groups), 5) == (b"\x01", None)
        assert await counter.submit(VoteBatch("d", 3, groups), 5) == (b"\x00", None)
    assert await read_totals(dsn, poll) == [2]


async def test_sealed_poll_takes_no_vote_and_disturbs_no_other(dsn: str, poll: int) -> None:
    (other,) = await make_polls_of_another(dsn)
    connection = await asyncpg.connect(dsn)
    async with open_counter(dsn) as counter:
        await counter.submit(batch("d", 1, poll, [vote(poll, "ann", 0)]), 5)
        await connection.execute("UPDATE answer_polls SET sealed = true WHERE uid = $1", poll)
        groups = (
            Group(poll, 0, False, vote(poll, "bob", 0)),
            Group(other, 0, False, vote(other, "bob", 1)),
        )
        for _ in range(2):  # a repeat too
            assert await counter.submit(VoteBatch("d", 2, groups), 5) == (SEALED, b"\x01")
        await connection.execute("UPDATE answer_polls SET sealed = false WHERE uid = $1", poll)
        assert await counter.submit(batch("d", 3, poll, [vote(poll, "bob", 0)]), 5) == (b"\x01",)
    await connection.close()
    assert (await read_totals(dsn, poll), await read_totals(dsn, other)) == ([2], [0, 1])


async def test_malformed_batch_fails_alone(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as counter:
        good, bad = batch("d", 1, poll, [vote(poll, "a", 0)]), batch("e", 1, poll, [b"\xff\xff"])
        replies = await asyncio.gather(counter.submit(good, 5), counter.submit(bad, 5))
        assert replies[0] == (b"\x01",)
        assert isinstance(replies[1], InternalError)
        assert await counter.submit(batch("d", 2, poll, [vote(poll, "b", 0)]), 5) == (b"\x01",)
    assert await read_totals(dsn, poll) == [2]


async def test_small_rows_are_merged(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as counter:
        for number in range(1, 131):
            await counter.submit(batch("d", number, poll, [vote(poll, f"v{number}", 0)]), 5)
    assert await count_rows(dsn, poll) < 10
    async with open_counter(dsn) as counter:
        repeats = [vote(poll, f"v{number}", 0) for number in range(1, 132)]
        (outcomes,) = await outcomes_of(counter.submit(batch("e", 1, poll, repeats), 5))
        assert outcomes == bytes([0] * 130 + [1])


async def test_queue_that_is_full_refuses_at_once(dsn: str, poll: int) -> None:
    async with open_counter(dsn, limits=replace(COUNTER_LIMITS, queue_items=2)) as counter:
        sent = [batch(f"d{n}", 1, poll, [vote(poll, f"v{n}", 0)]) for n in range(4)]
        replies = await asyncio.gather(*(counter.submit(each, 5) for each in sent))
        assert [isinstance(reply, Unavailable) for reply in replies] == [False, False, True, True]
    assert await read_totals(dsn, poll) == [2]


async def test_drained_counter_answers_what_waits_and_takes_no_more(dsn: str, poll: int) -> None:
    async with open_counter(dsn) as counter:
        waiting = asyncio.create_task(counter.submit(batch("d", 1, poll, [vote(poll, "a", 0)]), 5))
        await asyncio.sleep(0)
        await counter.drain()
        assert await waiting == (b"\x01",)
        assert isinstance(await counter.submit(batch("e", 1, poll, [vote(poll, "b", 0)]), 5), Unavailable)


async def outcomes_of(call: object) -> tuple[bytes, ...]:
    reply = await call  # type: ignore[misc]
    assert isinstance(reply, tuple), reply
    return reply


async def count_rows(dsn: str, poll: int) -> int:
    connection = await asyncpg.connect(dsn)
    rows: int = await connection.fetchval("SELECT count(*) FROM answer_records WHERE poll = $1", poll)
    await connection.close()
    return rows


async def read_impressions(dsn: str, poll: int) -> tuple[int, int, int]:
    connection = await asyncpg.connect(dsn)
    row = await connection.fetchrow(
        "SELECT sum(impressions)::int, sum(visitors)::int, sum(sessions)::int FROM answer_tallies"
        " WHERE poll = $1",
        poll,
    )
    await connection.close()
    return tuple(row)
