import asyncio

import pytest

from broker.gateway.backfill import PAGE_ENTRIES, Backfill
from tests.gateway.ports import MemoryFeed, MemoryLogs

pytestmark = pytest.mark.anyio
TOPIC = "demo/program/final"


class Bench:
    def __init__(self, head: int, *, floor: int = 0, history_events: int = 10_000) -> None:
        self.logs = MemoryLogs()
        self.logs.open_log(TOPIC, "e1", head, True)
        self.feed = MemoryFeed(lambda _topic, _entries: None)
        self.feed.add(TOPIC, head)
        self.feed.floor = floor
        self.backfill = Backfill(self.logs, self.feed, history_events)

    @property
    def oldest(self) -> int:
        head = self.logs.head(TOPIC)
        assert head is not None
        return head[2] + 1


async def test_position_in_the_log_needs_nothing() -> None:
    bench = Bench(100)
    await bench.backfill.since(TOPIC, "e1", 100)
    assert bench.feed.asked == []


async def test_log_reaches_back_to_the_position() -> None:
    bench = Bench(5_200)
    await bench.backfill.since(TOPIC, "e1", 3_700)
    assert bench.oldest == 3_501
    assert max(limit for _, _, limit in bench.feed.asked) <= PAGE_ENTRIES


async def test_later_viewers_of_the_same_stretch_cost_nothing() -> None:
    bench = Bench(1_200)
    await bench.backfill.since(TOPIC, "e1", 1_100)
    calls = len(bench.feed.asked)
    await bench.backfill.since(TOPIC, "e1", 1_001)
    assert len(bench.feed.asked) == calls


async def test_viewers_at_once_share_the_calls() -> None:
    bench = Bench(400)
    await asyncio.gather(*(bench.backfill.since(TOPIC, "e1", seq) for seq in range(300, 400)))
    assert len(bench.feed.asked) == 1


@pytest.mark.parametrize(("seq", "calls"), [(99, 0), (100, 1)])
async def test_position_over_the_limit_is_not_fetched(seq: int, calls: int) -> None:
    bench = Bench(200, history_events=100)
    await bench.backfill.since(TOPIC, "e1", seq)
    assert len(bench.feed.asked) == calls


async def test_other_epoch_is_not_fetched() -> None:
    bench = Bench(200)
    await bench.backfill.since(TOPIC, "e0", 150)
    await bench.backfill.since(TOPIC, "e1", 201)
    assert bench.feed.asked == []


async def test_unknown_log_is_not_fetched() -> None:
    bench = Bench(200)
    await bench.backfill.since("demo/program/other", "e1", 1)
    await bench.backfill.last("demo/program/other", 1)
    assert bench.feed.asked == []


@pytest.mark.parametrize("floor", [0, 1, 37, 499, 500, 963, 1_000])
async def test_last_pushes_reach_to_what_is_left(floor: int) -> None:
    bench = Bench(1_000, floor=floor)
    await bench.backfill.last(TOPIC, 5_000)
    assert bench.oldest == floor + 1


async def test_what_is_lost_is_not_asked_for_again() -> None:
    bench = Bench(1_000, floor=700)
    await bench.backfill.last(TOPIC, 1_000)
    calls = len(bench.feed.asked)
    await bench.backfill.last(TOPIC, 900)
    await bench.backfill.since(TOPIC, "e1", 100)
    assert len(bench.feed.asked) == calls


async def test_log_that_keeps_no_more_ends_the_fetching() -> None:
    bench = Bench(5_000)
    bench.logs.limit = 600
    await bench.backfill.last(TOPIC, 5_000)
    assert len(bench.feed.asked) <= 15
    assert bench.oldest == 4_401
