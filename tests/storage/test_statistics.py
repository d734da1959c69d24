"""Statistics in PostgreSQL: adding, reading, condensing, forgetting."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.clock import to_ms
from broker.domain.statistics import (
    Amount,
    Figures,
    ImagesUsed,
    Interval,
    IntervalFigures,
    StatisticsScope,
    Subject,
)
from broker.errors import Unavailable
from broker.ids import IdSource
from broker.storage.database import Database
from broker.storage.statistics import Statistics
from broker.storage.statistics_recorder import HELD_MS, Recorder
from broker.storage.statistics_upkeep import Retention, StatisticsUpkeep
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

START = datetime(2026, 7, 18, tzinfo=UTC)
ALL, FINAL = StatisticsScope(), StatisticsScope(program_id="final")
FOOTBALL = StatisticsScope(projects=frozenset({"football"}))
ACCOUNT, PROGRAM = Subject("demo"), Subject("demo", "final", "football")


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


@pytest.fixture
def statistics(database: Database) -> Statistics:
    return Statistics(database)


def amount(after: timedelta, subject: Subject = ACCOUNT, **figures: int) -> Amount:
    return Amount(to_ms(START + after), subject, Figures(**figures))


async def fill(statistics: Statistics) -> None:
    """Two days and two hours, with something every half an hour."""
    amounts = []
    for number in range(100):
        after = number * timedelta(minutes=30)
        amounts.append(amount(after, connections=number, subscribers=number + 1, events=2, deliveries=3))
        amounts.append(amount(after, PROGRAM, subscribers=number % 7, events=1))
    await statistics.add("w", 1, amounts)


async def read(
    statistics: Statistics, interval: Interval, scope: StatisticsScope = ALL, days: int = 5
) -> list[IntervalFigures]:
    return await statistics.series("demo", START, START + timedelta(days=days), interval, scope)


async def test_a_batch_counts_once(statistics: Statistics) -> None:
    for _ in range(2):
        await statistics.add("w", 1, [amount(timedelta(), events=5)])
    assert [point.figures.events for point in await read(statistics, Interval.MINUTE)] == [5]


async def test_processes_and_batches_add_up(statistics: Statistics) -> None:
    await statistics.add("a", 1, [amount(timedelta(), connections=5, events=1)])
    await statistics.add("a", 2, [amount(timedelta(), connections=1)])
    await statistics.add("b", 1, [amount(timedelta(), connections=7, events=2)])
    (point,) = await read(statistics, Interval.MINUTE)
    assert (point.figures.connections, point.figures.events) == (13, 3)


async def test_an_account_that_is_unknown_costs_nothing_else(statistics: Statistics) -> None:
    unknown = Amount(to_ms(START), Subject("nobody"), Figures(events=1))
    await statistics.add("w", 1, [unknown, amount(timedelta(), events=1)])
    assert len(await read(statistics, Interval.MINUTE)) == 1


async def test_accounts_do_not_see_each_other(statistics: Statistics) -> None:
    await statistics.add("w", 1, [amount(timedelta(), events=1)])
    end = START + timedelta(days=1)
    assert await statistics.series("other", START, end, Interval.DAY, ALL) == []


async def test_scopes_see_their_programs(statistics: Statistics) -> None:
    await statistics.add(
        "w",
        1,
        [
            amount(timedelta(), connections=9, subscribers=9, events=9),
            amount(timedelta(), PROGRAM, subscribers=1, events=2),
            amount(timedelta(), Subject("demo", "second", "football"), subscribers=3, events=4),
            amount(timedelta(), Subject("demo", "third", ""), subscribers=5, events=6),
        ],
    )

    async def seen(scope: StatisticsScope) -> tuple[int, int, int]:
        (point,) = await read(statistics, Interval.HOUR, scope)
        return point.figures.connections, point.figures.subscribers, point.figures.events

    assert await seen(ALL) == (9, 9, 9)
    assert await seen(FOOTBALL) == (9, 4, 6)
    assert await seen(FINAL) == (9, 1, 2)
    assert await seen(StatisticsScope(projects=frozenset({"", "football"}))) == (9, 9, 12)
    assert await seen(StatisticsScope(projects=frozenset({"chess"}))) == (9, 0, 0)
    assert await seen(StatisticsScope(projects=frozenset({"chess"}), program_id="final")) == (9, 0, 0)


async def test_the_range_includes_its_start_and_not_its_end(statistics: Statistics) -> None:
    minute = timedelta(minutes=1)
    await statistics.add("w", 1, [amount(number * minute, events=1) for number in range(4)])
    points = await statistics.series("demo", START + minute, START + 3 * minute, Interval.MINUTE, ALL)
    assert [point.time for point in points] == [START + minute, START + 2 * minute]


@pytest.mark.parametrize("scope", [ALL, FOOTBALL, FINAL])
@pytest.mark.parametrize("after", [timedelta(hours=0.25), timedelta(hours=30), timedelta(days=4)])
async def test_condensing_changes_no_series(
    database: Database, statistics: Statistics, after: timedelta, scope: StatisticsScope
) -> None:
    await fill(statistics)
    before = [await read(statistics, interval, scope) for interval in Interval]
    upkeep = StatisticsUpkeep(database, Retention(7, 92, 1_100))
    for _ in range(2):
        await upkeep.condense(to_ms(START + after))
        assert [await read(statistics, interval, scope) for interval in Interval] == before


async def count_rows(database: Database) -> dict[str, int]:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT span, count(*) FROM statistics GROUP BY span")
    return {row[0]: row[1] for row in rows}


async def test_old_minutes_go_and_the_days_stay(database: Database, statistics: Statistics) -> None:
    await fill(statistics)
    before = await read(statistics, Interval.DAY)
    upkeep = StatisticsUpkeep(database, Retention(1, 2, 3))
    now_ms = to_ms(START + timedelta(days=2, hours=3))
    assert not await upkeep.purge(now_ms, 1_000)  # nothing is condensed yet
    assert await count_rows(database) == {"minute": 200}
    await upkeep.condense(now_ms)
    while await upkeep.purge(now_ms, 50):
        continue
    rows = await count_rows(database)
    assert rows["minute"] == 2 * (100 - 27 * 2)  # the first 27 hours are over a day old
    assert await read(statistics, Interval.DAY) == before
    while await upkeep.purge(to_ms(START + timedelta(days=30)), 50):
        continue
    assert set(await count_rows(database)) == {"hour"}  # of the day that is not condensed


async def test_a_recorder_writes_again_what_it_could_not(database: Database) -> None:
    clock = StoppedClock(to_ms(START))
    statistics = Failing(database)
    recorder = Recorder(statistics, clock, IdSource(clock))
    recorder.count_events("demo", "final", "football", 2)
    statistics.fails = "after"  # it was stored, and nobody knows
    with pytest.raises(Unavailable):
        await recorder.flush()
    recorder.count_events("demo", "final", "football", 3)
    statistics.fails = ""
    await recorder.close()
    for scope in (ALL, FOOTBALL, FINAL):
        assert [point.figures.events for point in await read(statistics, Interval.MINUTE, scope)] == [5]


@pytest.mark.parametrize(("waited_ms", "written"), [(HELD_MS - 1, [1, 1]), (HELD_MS, [1])])
async def test_what_waits_too_long_is_given_up(
    database: Database, waited_ms: int, written: list[int]
) -> None:
    clock = StoppedClock(to_ms(START))
    statistics = Failing(database)
    recorder = Recorder(statistics, clock, IdSource(clock))
    recorder.count_events("demo", "final", None, 1)
    statistics.fails = "before"
    with pytest.raises(Unavailable):
        await recorder.flush()
    clock.ms += waited_ms
    recorder.count_events("demo", "final", None, 1)
    statistics.fails = ""
    await recorder.close()
    assert [point.figures.events for point in await read(statistics, Interval.MINUTE)] == written


async def test_nothing_is_written_when_nothing_happened(database: Database) -> None:
    clock = StoppedClock(to_ms(START))
    recorder = Recorder(Failing(database, "before"), clock, IdSource(clock))
    await recorder.flush()
    await recorder.close()


class Failing(Statistics):
    """Statistics whose `add` fails, before or after it has had its effect."""

    def __init__(self, database: Database, fails: str = "") -> None:
        super().__init__(database)
        self.fails = fails

    async def add(self, *arguments: Any) -> None:
        if self.fails == "before":
            raise Unavailable("away", retry_after_s=1)
        await super().add(*arguments)
        if self.fails == "after":
            raise Unavailable("the answer was lost", retry_after_s=1)


async def test_images_add_up_and_are_condensed(database: Database, statistics: Statistics) -> None:
    clock = StoppedClock(to_ms(START))
    recorder = Recorder(statistics, clock, IdSource(clock))
    for _ in range(2):
        recorder.count_images("demo", ImagesUsed(images=3, hits=2, sent_bytes=1 << 40))
        recorder.count_images("demo", ImagesUsed(fetches=1, searches=1, errors=1))
        recorder.count_images("nobody", ImagesUsed(images=1))
        await recorder.flush()
        clock.ms += 60_000
    await StatisticsUpkeep(database, Retention(1, 2, 3)).condense(to_ms(START + timedelta(days=2)))
    for interval, lengths in ((Interval.MINUTE, 2), (Interval.HOUR, 1), (Interval.DAY, 1)):
        points = [point.figures for point in await read(statistics, interval)]
        assert len(points) == lengths
        assert sum(each.images for each in points) == 6
        assert sum(each.image_hits for each in points) == 4
        assert sum(each.image_bytes for each in points) == 2 << 40
        assert sum(each.image_fetches + each.image_searches + each.image_errors for each in points) == 6
