import asyncio

import pytest

from broker.auth.single_flight import SingleFlight

pytestmark = pytest.mark.anyio


class Work:
    """Work that ends when told to, and counts how often it was started."""

    def __init__(self) -> None:
        self.started = 0
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        self.started += 1
        await self.gate.wait()
        return self.started


async def test_callers_at_the_same_time_share_one_result() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    callers = [asyncio.create_task(flights.run("key", work)) for _ in range(5)]
    await asyncio.sleep(0)
    work.gate.set()
    assert list(await asyncio.gather(*callers)) == [1] * 5
    assert await flights.run("key", work) == 2


async def test_keys_are_apart() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    work.gate.set()
    assert sorted(await asyncio.gather(flights.run("a", work), flights.run("b", work))) == [1, 2]


async def test_cancelled_caller_leaves_the_work_to_the_others() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    first, second = (asyncio.create_task(flights.run("key", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.gate.set()
    assert await second == 1


async def test_error_reaches_every_caller_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    failures = 0

    async def fail() -> int:
        nonlocal failures
        failures += 1
        raise KeyError(failures)

    results = await asyncio.gather(*(flights.run("key", fail) for _ in range(3)), return_exceptions=True)
    assert [repr(result) for result in results] == ["KeyError(1)"] * 3
    with pytest.raises(KeyError, match="2"):
        await flights.run("key", fail)


async def test_close_ends_what_is_running() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    caller = asyncio.create_task(flights.run("key", Work()))
    await asyncio.sleep(0)
    await flights.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
