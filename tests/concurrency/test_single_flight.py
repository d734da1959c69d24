"""Single flight: `broker.concurrency.single_flight`."""

import asyncio

import pytest

from broker.concurrency.single_flight import SingleFlight
from broker.errors import NotFound, Unavailable

pytestmark = pytest.mark.anyio


async def test_work_for_one_key_is_done_once() -> None:
    single_flight: SingleFlight[str, int] = SingleFlight()
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        return runs

    assert await asyncio.gather(*(single_flight.run("a", work) for _ in range(5))) == [1] * 5
    assert await single_flight.run("a", work) == 2


async def test_failure_is_shared_and_not_kept() -> None:
    single_flight: SingleFlight[str, int] = SingleFlight()
    outcomes = [NotFound("there is no such topic"), None]

    async def work() -> int:
        await asyncio.sleep(0)
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return 7

    both = await asyncio.gather(
        single_flight.run("a", work), single_flight.run("a", work), return_exceptions=True
    )
    assert [type(each) for each in both] == [NotFound, NotFound]
    assert await single_flight.run("a", work) == 7


async def test_an_error_that_concerns_the_first_caller_is_not_shared() -> None:
    single_flight: SingleFlight[str, int] = SingleFlight()
    outcomes: list[Exception | None] = [Unavailable("this caller has no room"), None]

    async def work() -> int:
        await asyncio.sleep(0)
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return 7

    calls = (single_flight.run("a", work, personal=(Unavailable,)) for _ in range(3))
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (type(first), second, third) == (Unavailable, 7, 7)


async def test_cancelled_waiter_leaves_the_work_to_the_others() -> None:
    single_flight: SingleFlight[str, int] = SingleFlight()
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 1

    first = asyncio.create_task(single_flight.run("a", work))
    second = asyncio.create_task(single_flight.run("a", work))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await second == 1


async def test_keys_are_apart() -> None:
    single_flight: SingleFlight[str, str] = SingleFlight()

    async def name(key: str) -> str:
        return key

    assert await asyncio.gather(*(single_flight.run(key, lambda key=key: name(key)) for key in "ab")) == [
        "a",
        "b",
    ]


async def test_a_caller_whose_work_was_cancelled_by_the_close_is_cancelled() -> None:
    single_flight: SingleFlight[str, bool] = SingleFlight()
    caller = asyncio.create_task(single_flight.run("a", asyncio.Event().wait))
    await asyncio.sleep(0)
    await single_flight.close()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_settled_waits_for_the_end_whatever_it_is() -> None:
    single_flight: SingleFlight[str, int] = SingleFlight()
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        raise NotFound("there is no such topic")

    single_flight.begin("a", work)
    waiter = asyncio.create_task(single_flight.settled("a"))
    await asyncio.sleep(0)
    assert not waiter.done()
    gate.set()
    await waiter
    assert "a" not in single_flight


async def test_close_cancels_the_work_and_refuses_more() -> None:
    single_flight: SingleFlight[str, None] = SingleFlight()

    async def work() -> None:
        await asyncio.Event().wait()

    task = single_flight.begin("a", work)
    await single_flight.close()
    assert task.cancelled()
    with pytest.raises(Unavailable):
        single_flight.begin("b", work)
