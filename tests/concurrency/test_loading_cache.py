"""`broker.concurrency.loading_cache`."""

import asyncio

import pytest

from broker.concurrency.loading_cache import LoadingCache
from broker.errors import Unavailable
from tests.auth.services import StoppedClock

pytestmark = pytest.mark.anyio


class Looks:
    """Counts looks; each brings its number."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await self.gate.wait()
        return number


async def test_a_value_is_looked_up_again_when_it_is_old() -> None:
    clock, look = StoppedClock(), Looks()
    cache: LoadingCache[str, int] = LoadingCache(clock, 0.5, 10)
    assert [await cache.load("a", look), await cache.load("a", look)] == [1, 1]
    clock.ms += 499
    assert (await cache.load("a", look), cache.get("a")) == (1, 1)
    clock.ms += 1
    assert cache.get("a") is None
    assert await cache.load("a", look) == 2


async def test_a_thousand_readers_cost_one_look() -> None:
    clock, look = StoppedClock(), Looks()
    cache: LoadingCache[str, int] = LoadingCache(clock, 0.5, 10)
    look.gate.clear()
    readers = [asyncio.create_task(cache.load("a", look)) for _ in range(1_000)]
    await asyncio.sleep(0)
    look.gate.set()
    assert set(await asyncio.gather(*readers)) == {1}


async def test_a_value_is_as_old_as_its_look() -> None:
    clock, look = StoppedClock(), Looks()
    cache: LoadingCache[str, int] = LoadingCache(clock, 0.5, 10)
    look.gate.clear()
    reader = asyncio.create_task(cache.load("a", look))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.ms += 500
    look.gate.set()
    assert await reader == 1
    assert await cache.load("a", look) == 2


async def test_failures_and_forgotten_values_are_looked_up_again() -> None:
    look = Looks()
    cache: LoadingCache[str, int] = LoadingCache(StoppedClock(), 0.5, 10)

    async def fail() -> int:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        await cache.load("a", fail)
    assert await cache.load("a", look) == 1
    cache.pop("a")
    assert await cache.load("a", look) == 2


async def test_the_oldest_go_when_there_are_too_many() -> None:
    cache: LoadingCache[int, int] = LoadingCache(StoppedClock(), 0.5, 2)
    for number in range(3):
        cache.put(number, number)
    assert [cache.get(number) for number in range(3)] == [None, 1, 2]


async def test_closing_ends_what_is_under_way() -> None:
    look = Looks()
    look.gate.clear()
    cache: LoadingCache[str, int] = LoadingCache(StoppedClock(), 0.5, 2)
    reader = asyncio.create_task(cache.load("a", look))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await reader
