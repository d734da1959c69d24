"""A queue that is emptied batch by batch: `broker.concurrency.batch_queue`."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from broker.concurrency.batch_queue import Backlog, BatchLimits, BatchQueue

pytestmark = pytest.mark.anyio

LIMITS = BatchLimits(batch_size=10, queue_size=20, batch_items=3, queue_items=5)


class Door:
    """Holds each delivery until it is let go."""

    def __init__(self) -> None:
        self.delivered: list[list[str]] = []
        self.given_up: list[tuple[str, bool]] = []
        self.unwanted: set[str] = set()
        self.gate = asyncio.Event()
        self.queue: BatchQueue[str] = BatchQueue(
            "door", LIMITS, self.deliver, self.give_up, lambda item: item not in self.unwanted
        )

    async def deliver(self, batch: Sequence[str]) -> None:
        self.delivered.append(list(batch))
        await self.gate.wait()

    def give_up(self, item: str, is_under_way: bool) -> None:
        self.given_up.append((item, is_under_way))

    async def settle(self) -> None:
        self.gate.set()
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    yield door
    await door.queue.close()


async def test_what_arrives_during_a_delivery_goes_with_the_next(door: Door) -> None:
    door.queue.add("a", 1)
    await asyncio.sleep(0)
    for item in "bc":
        door.queue.add(item, 1)
    assert (len(door.queue), door.queue.size) == (2, 2)
    await door.settle()
    assert (door.delivered, door.queue.size) == ([["a"], ["b", "c"]], 0)


async def test_a_batch_is_bounded_by_items_and_by_size(door: Door) -> None:
    for item, size in zip("abcde", (1, 1, 1, 6, 5), strict=True):
        door.queue.add(item, size)
    await door.settle()
    assert door.delivered == [["a", "b", "c"], ["d"], ["e"]]


async def test_an_item_over_every_bound_goes_alone(door: Door) -> None:
    door.queue.add("a", 99)
    await door.settle()
    door.queue.add("b", 1)
    await door.settle()
    assert (door.delivered, door.given_up) == ([["a"], ["b"]], [])


async def test_a_full_queue_refuses(door: Door) -> None:
    for item in "abcde":
        door.queue.add(item, 1)
    door.queue.add("f", 1)
    assert door.given_up == [("f", False)]
    await door.settle()
    door.gate.clear()
    door.queue.add("g", 15)
    door.queue.add("h", 6)
    assert door.given_up[1:] == [("h", False)]


async def test_what_nobody_waits_for_is_left_out(door: Door) -> None:
    for item in "abc":
        door.queue.add(item, 1)
    door.unwanted |= {"a", "c"}
    await door.settle()
    assert door.delivered == [["b"]]


async def test_the_end_settles_everything(door: Door) -> None:
    door.queue.add("a", 1)
    await asyncio.sleep(0)
    door.queue.add("b", 1)
    await door.queue.close()
    await door.queue.close()
    door.queue.add("c", 1)
    assert door.given_up == [("a", True), ("b", False), ("c", False)]


async def test_the_end_settles_what_came_before_the_task_began(door: Door) -> None:
    door.queue.add("a", 1)
    await door.queue.close()
    assert door.given_up == [("a", False)]


def test_a_batch_ends_before_the_first_item_that_may_not_join() -> None:
    backlog: Backlog[str] = Backlog(LIMITS)
    for item in ("a", "b", "A", "c"):
        assert backlog.add(item, 1)
    seen: set[str] = set()

    def admits(item: str) -> bool:
        is_new = item.lower() not in seen
        seen.add(item.lower())
        return is_new

    assert backlog.take(admits) == ["a", "b"]
    assert backlog.take(lambda _: False) == ["A"], "the first of a batch goes whatever is said of it"
    assert (backlog.take(), backlog.take(), backlog.size) == (["c"], [], 0)


def test_what_is_taken_out_leaves_the_order_and_the_size_right() -> None:
    backlog: Backlog[str] = Backlog(LIMITS)
    for size, item in enumerate("abcd", start=1):
        assert backlog.add(item, size)
    assert backlog.take_out(lambda item: item in "bd") == ["b", "d"]
    assert (backlog.size, len(backlog), backlog.clear()) == (4, 2, ["a", "c"])
    assert (backlog.size, len(backlog)) == (0, 0)
