"""Request coalescing: `broker.concurrency.batching`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from broker.concurrency.batching import Batcher
from broker.errors import Unavailable

pytestmark = pytest.mark.anyio


class Work:
    """Answers each key with its double; holds every query until it is let go."""

    def __init__(self, *, is_held: bool = True) -> None:
        self.queries: list[list[int]] = []
        self.loans = 0
        self.gate = asyncio.Event()
        if not is_held:
            self.gate.set()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[int]:
        """The number of the loan."""
        self.loans += 1
        yield self.loans

    async def run(self, _loan: int, keys: Sequence[int]) -> dict[int, int]:
        self.queries.append(list(keys))
        await self.gate.wait()
        if 13 in keys:
            raise ValueError("unlucky")
        if 500 in keys:
            raise Unavailable("away", retry_after_s=1)
        return {key: 2 * key for key in keys if key}


@pytest.fixture
async def work() -> Work:
    return Work()


@pytest.fixture
async def batcher(work: Work) -> AsyncIterator[Batcher[int, int]]:
    batcher = Batcher(work.run, 3, work.lend)
    yield batcher
    await batcher.close()


async def begin(*calls: asyncio.Future[int | None]) -> None:
    """Until the calls wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_calls_that_come_while_a_query_runs_share_the_next(
    work: Work, batcher: Batcher[int, int]
) -> None:
    first = asyncio.create_task(batcher.ask(1))
    await begin(first)
    others = [asyncio.create_task(batcher.ask(key)) for key in (2, 3)]
    await begin(*others)
    assert work.queries == [[1]]
    work.gate.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6]
    assert work.queries == [[1], [2, 3]]


async def test_a_query_that_began_before_the_call_does_not_answer_it(
    work: Work, batcher: Batcher[int, int]
) -> None:
    """What was read before a change that the caller knows of must not come back as news."""
    first = asyncio.create_task(batcher.ask(1))
    await begin(first)
    again = asyncio.create_task(batcher.ask(1))
    await begin(again)
    work.gate.set()
    assert await asyncio.gather(first, again) == [2, 2]
    assert work.queries == [[1], [1]]


async def test_equal_keys_are_asked_for_once(work: Work, batcher: Batcher[int, int]) -> None:
    work.gate.set()
    assert await asyncio.gather(*(batcher.ask(7) for _ in range(5))) == [14] * 5
    assert work.queries == [[7]]


async def test_what_is_not_found_is_none(work: Work, batcher: Batcher[int, int]) -> None:
    work.gate.set()
    assert await asyncio.gather(batcher.ask(0), batcher.ask(1)) == [None, 2]


async def test_a_group_has_its_limit(work: Work, batcher: Batcher[int, int]) -> None:
    work.gate.set()
    assert await asyncio.gather(*map(batcher.ask, range(1, 8))) == [2, 4, 6, 8, 10, 12, 14]
    assert work.queries == [[1, 2, 3], [4, 5, 6], [7]]


async def test_groups_that_follow_each_other_share_a_loan_for_a_while(
    work: Work, batcher: Batcher[int, int]
) -> None:
    work.gate.set()
    assert await asyncio.gather(*map(batcher.ask, range(1, 13))) == list(range(2, 25, 2))
    assert (len(work.queries), work.loans) == (4, 1)
    assert await batcher.ask(1) == 2
    assert work.loans == 2  # who has nothing to ask holds nothing
    await asyncio.gather(*(batcher.ask(key) for key in range(1000, 1000 + 3 * 17)))
    assert (len(work.queries), work.loans) == (4 + 1 + 17, 2 + 2)


async def test_a_key_that_fails_fails_nobody_else(work: Work, batcher: Batcher[int, int]) -> None:
    work.gate.set()
    found = await asyncio.gather(*map(batcher.ask, (1, 13, 2)), return_exceptions=True)
    assert (found[0], found[2]) == (2, 4)
    assert isinstance(found[1], ValueError)


async def test_while_the_database_is_away_all_are_told(work: Work, batcher: Batcher[int, int]) -> None:
    work.gate.set()
    found = await asyncio.gather(*map(batcher.ask, (1, 500)), return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable, Unavailable]
    assert work.queries == [[1, 500]]
    assert await batcher.ask(1) == 2


async def test_a_caller_that_leaves_takes_nobody_along(work: Work, batcher: Batcher[int, int]) -> None:
    calls = [asyncio.create_task(batcher.ask(1)) for _ in range(2)]
    await begin(*calls)
    calls[0].cancel()
    await begin(*calls)
    work.gate.set()
    assert await calls[1] == 2
    assert calls[0].cancelled()


async def test_who_waits_at_the_end_is_told(work: Work, batcher: Batcher[int, int]) -> None:
    calls = [asyncio.create_task(batcher.ask(1))]
    await begin(*calls)
    calls.append(asyncio.create_task(batcher.ask(2)))
    await begin(*calls)
    await batcher.close()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        await batcher.ask(1)


async def test_too_many_calls_are_refused(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.concurrency.batching._WAITING", 2)
    batcher = Batcher(work.run, 3, work.lend)
    calls = [asyncio.create_task(batcher.ask(key)) for key in (1, 2)]
    await begin(*calls)
    with pytest.raises(Unavailable):
        await batcher.ask(3)
    work.gate.set()
    assert await asyncio.gather(*calls) == [2, 4]
    assert await batcher.ask(3) == 6
    await batcher.close()
