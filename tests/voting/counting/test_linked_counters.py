import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from broker.actors.link import LinkLost
from broker.clock import SystemClock
from broker.concurrency.batch_queue import BatchLimits
from broker.domain.idempotency import IdempotencyKey
from broker.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from broker.ids import IdSource
from broker.settings import Settings
from broker.storage.answer_log import AnswerLog
from broker.voting.counting import linked_counters
from broker.voting.counting.batches import CountKey, Group, VoteBatch
from broker.voting.counting.client import PackedEntry
from broker.voting.counting.counter import Counter
from broker.voting.counting.linked_counters import LinkedCounters
from tests.owners.support import create_programs
from tests.voting.counting.support import (
    SETTINGS,
    SLOT,
    make_polls,
    make_polls_of_another,
    open_counter,
    read_totals,
    seen,
    vote,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CLOCK = SystemClock()


class BadLink:
    """The way to a counter in this process; loses calls and answers by chance, and remembers the batches."""

    def __init__(self, counter: Counter, loss: float = 0.0) -> None:
        self.counter = counter
        self.loss = loss
        self.was_sent = True
        self.batches: list[VoteBatch] = []
        self._chance = random.Random(7)

    async def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        assert method == "submit"
        self.batches.append(arguments[0])
        if self._chance.random() < self.loss:
            raise LinkLost(method, was_sent=self.was_sent)
        reply = await self.counter.submit(*arguments)
        if self._chance.random() < self.loss:
            raise LinkLost(method)
        return reply

    def close(self) -> None:
        """Nothing is open."""


def client(*links: BadLink, settings: Settings = SETTINGS) -> LinkedCounters:
    return LinkedCounters(settings, CLOCK, IdSource(CLOCK), links)


def entry(poll: int, visitor: str, option: int, shards: int = 1) -> PackedEntry:
    record = vote(poll, visitor, option)
    return PackedEntry(poll, int.from_bytes(record[-8:], "little") % shards, False, record)


@pytest.fixture
async def poll(dsn: str) -> int:
    await create_programs(dsn, ["p"])
    (uid,) = await make_polls(dsn, 1)
    return uid


@pytest.fixture
async def counter(dsn: str) -> AsyncIterator[Counter]:
    async with open_counter(dsn) as counter:
        yield counter


async def test_outcomes_come_back_in_the_order_of_the_entries(dsn: str, counter: Counter, poll: int) -> None:
    (other,) = await make_polls_of_another(dsn)
    counters = client(BadLink(counter))
    entries = [entry(poll, "a", 0), entry(other, "a", 1), entry(poll, "a", 0), entry(poll, "b", 1)]
    shown = PackedEntry(other, 0, False, seen(other, "a"))
    assert await counters.submit([*entries, shown]) == [True, True, False, True, True]
    assert await counters.submit([]) == []
    assert await read_totals(dsn, poll) == [1, 1]
    assert await read_totals(dsn, other) == [0, 1]
    await counters.close()


async def test_packed_groups_are_counted_behind_what_came_before(
    dsn: str, counter: Counter, poll: int
) -> None:
    link = BadLink(counter)
    counters = client(link)
    groups = [
        Group(poll, 0, False, vote(poll, "a", 1) + vote(poll, "c", 1)),
        Group(poll + 99, 0, False, vote(poll + 99, "a", 1)),
        Group(poll, 0, True, vote(poll, "c", 0)),
    ]
    first, last, packed = await asyncio.gather(
        counters.submit([entry(poll, "a", 0)]),
        counters.submit([entry(poll, "b", 0)]),
        counters.count(0, lambda: groups),
    )
    assert (first, last, packed) == ([True], [True], [b"\0\1", None, b"\1"])
    assert len(link.batches) < 3
    assert await counters.count(0, list) == []
    assert await read_totals(dsn, poll) == [3, 0]
    await counters.close()
    with pytest.raises(Unavailable):
        await counters.count(0, lambda: groups[:1])


async def test_packed_groups_are_taken_when_their_batch_is_made(counter: Counter, poll: int) -> None:
    counters = client(BadLink(counter))
    kept = [Group(poll, 0, False, vote(poll, "a", 0))]
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(counters.submit([entry(poll, "b", 0)]))]
    await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(counters.count(0, lambda: [kept.pop() for _ in list(kept)])))
    await asyncio.sleep(0)
    assert kept, "they wait where they are while another batch is away"
    kept.append(Group(poll, 0, False, vote(poll, "c", 0)))
    assert await asyncio.gather(*tasks) == [[True], [b"\1", b"\1"]]
    await counters.close()


async def test_packed_groups_pass_no_entry_that_was_given_before(
    counter: Counter, poll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_counters, "_LIMITS", BatchLimits(batch_size=2, queue_size=100))
    counters = client(BadLink(counter))
    kept = [Group(poll, 0, True, vote(poll, "v3", 1))]

    def take() -> list[Group]:
        return [kept.pop() for _ in list(kept)]

    counting = [asyncio.ensure_future(counters.count(0, take))]
    voting = [asyncio.ensure_future(counters.submit([entry(poll, f"v{n}", 0)])) for n in range(5)]
    assert await counting[0] == []
    assert kept, "more entries wait before it than go into one batch"
    assert await asyncio.gather(*voting) == [[True]] * 5
    assert await counters.count(0, take) == [b"\1"]
    await counters.close()


async def test_callers_at_once_share_batches(counter: Counter, poll: int) -> None:
    link = BadLink(counter)
    counters = client(link)
    calls = [counters.submit([entry(poll, f"v{n}", 0)]) for n in range(200)]
    assert await asyncio.gather(*calls) == [[True]] * 200
    assert len(link.batches) < 10
    assert [batch.number for batch in link.batches] == list(range(1, len(link.batches) + 1))
    await counters.close()


async def test_lost_calls_and_answers_change_neither_counts_nor_outcomes(
    dsn: str, counter: Counter, poll: int
) -> None:
    link = BadLink(counter, loss=0.3)
    counters = client(link, settings=Settings(publish_timeout_s=60.0))

    async def call(caller: int) -> None:
        for n in range(10):
            entries = [entry(poll, f"{caller}-{n}", 0), PackedEntry(poll, 0, False, seen(poll, str(caller)))]
            assert await counters.submit(entries) == [True, True]

    await asyncio.gather(*(call(caller) for caller in range(5)))
    assert len(link.batches) > len({batch.number for batch in link.batches})
    assert await read_totals(dsn, poll) == [50]
    again = PackedEntry(poll, 0, False, seen(poll, "x"))
    assert await counters.submit([again]) == [True]
    await counters.close()


async def test_visitors_spread_over_counters_and_count_once(dsn: str, counter: Counter) -> None:
    await create_programs(dsn, ["q"])
    (spread,) = await make_polls(dsn, 1, shards=4, program_id="q")
    async with open_counter(dsn, slot="counter-1") as second:
        links = BadLink(counter), BadLink(second)
        counters = client(*links)
        entries = [entry(spread, f"v{n}", n % 2, shards=4) for n in range(400)]
        assert await counters.submit(entries) == [True] * 400
        assert await counters.submit(entries) == [False] * 400
        shards = [{group.shard for batch in link.batches for group in batch.groups} for link in links]
        assert shards == [{0, 2}, {1, 3}]
        await counters.close()
    assert await read_totals(dsn, spread) == [200, 200]


@pytest.mark.parametrize(("was_sent", "kind"), [(False, Unavailable), (True, OutcomeUnknown)])
async def test_counter_that_does_not_answer_in_time_may_have_counted_what_it_was_sent(
    counter: Counter, poll: int, was_sent: bool, kind: type[Unavailable]
) -> None:
    link = BadLink(counter, loss=1.0)
    link.was_sent = was_sent
    counters = client(link, settings=Settings(publish_timeout_s=0.3))
    with pytest.raises(Unavailable) as caught:
        await counters.submit([entry(poll, "a", 0)])
    assert type(caught.value) is kind
    await counters.close()
    with pytest.raises(Unavailable) as caught:
        await counters.submit([entry(poll, "a", 0)])
    assert type(caught.value) is Unavailable


async def test_entries_of_which_one_counter_has_counted_its_own_may_be_counted(
    counter: Counter, poll: int
) -> None:
    away = BadLink(counter, loss=1.0)
    away.was_sent = False
    counters = client(BadLink(counter), away, settings=Settings(publish_timeout_s=0.3))
    with pytest.raises(OutcomeUnknown):
        await counters.submit([entry(poll, f"v{n}", 0, shards=2) for n in range(20)])
    await counters.close()


async def test_deleted_poll_is_not_found(counter: Counter, poll: int) -> None:
    counters = client(BadLink(counter))
    with pytest.raises(NotFound):
        await counters.submit([entry(poll, "a", 0), entry(poll + 99, "a", 0)])
    await counters.close()


# -- idempotency keys


def asked_with(key: str, body: bytes = b"a") -> CountKey:
    return CountKey.of("demo", IdempotencyKey("caller", key, body * 32), 7)


def impression(poll: int, visitor: str, shards: int = 1) -> PackedEntry:
    record = seen(poll, visitor)
    return PackedEntry(poll, int.from_bytes(record[-8:], "little") % shards, False, record)


async def read_impressions(dsn: str, poll: int) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        query = "SELECT coalesce(sum(impressions), 0)::bigint FROM answer_tallies WHERE poll = $1"
        return int(await connection.fetchval(query, poll))
    finally:
        await connection.close()


async def test_request_with_a_key_counts_once_and_is_answered_as_the_first(
    dsn: str, counter: Counter, poll: int
) -> None:
    counters, others = client(BadLink(counter)), client(BadLink(counter))
    entries = [impression(poll, "a"), entry(poll, "a", 0)]
    assert await counters.submit(entries, asked_with("k")) == [True, True]
    assert await others.submit(entries, asked_with("k")) == [True, True]
    assert await others.submit(entries, asked_with("other")) == [True, False]
    assert await counters.submit([entry(poll, "a", 1)], asked_with("changed nothing")) == [False]
    with pytest.raises(Conflict):
        await counters.submit(entries, asked_with("k", b"b"))
    with pytest.raises(Conflict):
        await counters.submit(entries, asked_with("changed nothing", b"b"))
    assert await read_impressions(dsn, poll) == 2


async def test_key_is_known_to_the_next_counter(dsn: str, poll: int) -> None:
    entries = [impression(poll, "a")]
    for slot_again in range(2):
        async with open_counter(dsn) as counter:
            assert await client(BadLink(counter)).submit(entries, asked_with("k")) == [True], slot_again
    assert await read_impressions(dsn, poll) == 1


async def test_request_that_one_of_two_counters_has_counted_is_completed(dsn: str, counter: Counter) -> None:
    await create_programs(dsn, ["q"])
    (spread,) = await make_polls(dsn, 1, shards=2, program_id="q")
    entries = [impression(spread, f"v{n}", shards=2) for n in range(20)]
    async with open_counter(dsn, slot="counter-1") as second:
        away = BadLink(second, loss=1.0)
        away.was_sent = False
        counters = client(BadLink(counter), away, settings=Settings(publish_timeout_s=0.3))
        with pytest.raises(OutcomeUnknown):
            await counters.submit(entries, asked_with("k"))
        assert 0 < await read_impressions(dsn, spread) < 20
        away.loss = 0.0
        for _ in range(2):
            assert await counters.submit(entries, asked_with("k")) == [True] * 20
    assert await read_impressions(dsn, spread) == 20


async def test_lost_answers_of_requests_with_keys_count_nothing_twice(
    dsn: str, counter: Counter, poll: int
) -> None:
    link = BadLink(counter, loss=0.3)
    counters = client(link, settings=Settings(publish_timeout_s=60.0))

    async def ask(number: int) -> None:
        entries = [impression(poll, f"v{number}"), entry(poll, f"v{number}", 0)]
        assert await counters.submit(entries, asked_with(str(number))) == [True, True]

    await asyncio.gather(*(ask(number) for number in range(50)))
    assert len(link.batches) > 50
    assert (await read_impressions(dsn, poll), await read_totals(dsn, poll)) == (50, [50])


async def test_keys_are_kept_for_a_day(dsn: str, counter: Counter, poll: int) -> None:
    await client(BadLink(counter)).submit([impression(poll, "a")], asked_with("k"))
    log = AnswerLog(counter._database, SLOT)
    connection = await asyncpg.connect(dsn)
    left = []
    for age in ("23 hours", "24 hours"):
        await connection.execute(f"UPDATE answer_doors SET time = now() - interval '{age}'")
        await log.forget_senders(60.0)
        left.append(await connection.fetchval("SELECT count(*) FROM answer_doors WHERE door LIKE 'key %'"))
    await connection.close()
    assert left == [1, 0]
