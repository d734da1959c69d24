"""`broker.images.faces.batcher`."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from broker.images.errors import FacesUnavailable
from broker.images.faces.batcher import FaceBatcher
from broker.images.faces.resampling import Pixels


class Held:
    """Doubles numbers, a batch each time that it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.leave = asyncio.Semaphore(0)
        self.begun = asyncio.Semaphore(0)

    async def run(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        self.begun.release()
        await self.leave.acquire()
        if 13 in items:
            raise RuntimeError("unlucky")
        return [2 * item for item in items]


async def submitted(batcher: FaceBatcher[int, int], *items: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(batcher.submit(item)) for item in items]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def let(held: Held, batches: int) -> None:
    for _ in range(batches):
        held.leave.release()


def test_what_waited_while_a_batch_ran_is_the_next_one() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=4, waiting=10)
        first = await submitted(batcher, 1)
        later = await submitted(batcher, 2, 3, 4, 5, 6)
        let(held, 3)
        assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10, 12]
        assert held.batches == [[1], [2, 3, 4, 5], [6]]

    asyncio.run(main())


def test_a_lone_item_waits_for_nobody() -> None:
    async def main() -> None:
        held = Held()
        let(held, 2)
        batcher = FaceBatcher(held.run, largest=16, waiting=10)
        assert [await batcher.submit(1), await batcher.submit(2)] == [2, 4]
        assert held.batches == [[1], [2]]

    asyncio.run(main())


def test_more_than_may_wait_are_refused() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=4, waiting=2)
        tasks = await submitted(batcher, 1)
        tasks += await submitted(batcher, 2, 3)
        with pytest.raises(FacesUnavailable, match="too many"):
            await batcher.submit(4)
        let(held, 2)
        assert await asyncio.gather(*tasks) == [2, 4, 6]

    asyncio.run(main())


def test_an_item_that_is_cancelled_is_left_out() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=4, waiting=2)
        running = await submitted(batcher, 1)
        gone, stays = await submitted(batcher, 2, 3)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        more = await submitted(batcher, 4)  # its room is free again
        let(held, 2)
        assert await asyncio.gather(*running, stays, *more) == [2, 6, 8]
        assert held.batches == [[1], [3, 4]]

    asyncio.run(main())


def test_one_that_is_cancelled_while_it_runs_harms_no_other() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=4, waiting=8)
        await submitted(batcher, 1)
        gone, stays = await submitted(batcher, 2, 3)
        let(held, 1)
        for _ in range(2):
            await held.begun.acquire()
        gone.cancel()
        let(held, 1)
        assert await stays == 6

    asyncio.run(main())


def test_a_batch_that_fails_ends_itself_alone() -> None:
    async def main() -> None:
        held = Held()
        let(held, 3)
        batcher = FaceBatcher(held.run, largest=4, waiting=8)
        tasks = await submitted(batcher, 1)
        tasks += await submitted(batcher, 13, 2)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[0] == 2
        assert [str(result) for result in results[1:]] == ["unlucky", "unlucky"]
        assert await batcher.submit(4) == 8

    asyncio.run(main())


def test_closing_fails_what_runs_and_what_waits() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=1, waiting=8)
        tasks = await submitted(batcher, 1, 2, 3)
        await batcher.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [FacesUnavailable] * 3
        await batcher.close()

    asyncio.run(main())


def test_an_item_after_closing_is_refused() -> None:
    async def main() -> None:
        held = Held()
        batcher = FaceBatcher(held.run, largest=1, waiting=8)
        await batcher.close()
        with pytest.raises(FacesUnavailable, match="stops"):
            await batcher.submit(1)

    asyncio.run(main())


def test_images_that_wait_are_told_apart() -> None:
    """Equality of arrays is an array, so a waiting item is known by who waits for it."""

    async def main() -> None:
        leave = asyncio.Event()

        async def run(items: Sequence[Pixels]) -> Sequence[int]:
            await leave.wait()
            return [int(item[0, 0, 0]) for item in items]

        batcher = FaceBatcher(run, largest=1, waiting=8)
        tasks = [
            asyncio.create_task(batcher.submit(np.full((2, 2, 3), value, np.uint8))) for value in range(4)
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        leave.set()
        assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == [0, 1, 3]
        assert tasks[2].cancelled()

    asyncio.run(main())
