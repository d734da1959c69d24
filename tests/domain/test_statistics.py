"""Adding up in memory, and the boundaries of intervals."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.statistics import Figures, Interval, IntervalFigures, Subject, Tally, fill_series

DEMO, OTHER = Subject("demo"), Subject("demo", "final", "football")
NOON = datetime(2026, 7, 19, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("interval", "floor", "ceil"),
    [
        (Interval.MINUTE, NOON, NOON + timedelta(minutes=1)),
        (Interval.HOUR, NOON, NOON + timedelta(hours=1)),
        (Interval.DAY, NOON.replace(hour=0), NOON.replace(day=20, hour=0)),
    ],
)
def test_moments_are_rounded_to_intervals(interval: Interval, floor: datetime, ceil: datetime) -> None:
    moment = NOON + timedelta(milliseconds=1)
    assert (interval.floor(moment), interval.ceil(moment)) == (floor, ceil)
    assert interval.floor(floor) == interval.ceil(floor) == floor


def test_days_are_those_of_utc() -> None:
    moment = datetime(2026, 7, 20, 1, tzinfo=timezone(timedelta(hours=2)))
    assert Interval.DAY.floor(moment) == datetime(2026, 7, 19, tzinfo=UTC)


def test_counters_add_up_and_gauges_keep_the_highest() -> None:
    tally = Tally()
    for events, subscribers in ((1, 5), (2, 7), (3, 6)):
        tally.count(60_000, OTHER, events=events, deliveries=10)
        tally.observe(119_999, OTHER, subscribers=subscribers)
    ((minute_ms, subject, figures),) = tally.take(119_999)
    assert (minute_ms, subject) == (60_000, OTHER)
    assert figures == Figures(subscribers=7, events=6, deliveries=30)


def test_only_what_is_new_is_taken() -> None:
    tally = Tally()
    tally.observe(0, DEMO, connections=5)
    assert [amount.figures.connections for amount in tally.take(0)] == [5]
    tally.observe(30_000, DEMO, connections=5)
    assert tally.take(30_000) == []
    tally.observe(59_999, DEMO, connections=8)
    assert [amount.figures.connections for amount in tally.take(59_999)] == [3]


def test_a_new_minute_begins_anew() -> None:
    tally = Tally()
    tally.observe(59_999, DEMO, connections=5)
    tally.observe(60_000, DEMO, connections=2)
    assert [(amount.minute_ms, amount.figures.connections) for amount in tally.take(60_000)] == [
        (0, 5),
        (60_000, 2),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 200_000), st.sampled_from([DEMO, OTHER]), st.integers(0, 9), st.booleans()),
        max_size=60,
    )
)
def test_amounts_add_up_to_what_happened(steps: list[tuple[int, Subject, int, bool]]) -> None:
    tally, written = Tally(), defaultdict(Figures)
    events: defaultdict[tuple[int, Subject], int] = defaultdict(int)
    highest: defaultdict[tuple[int, Subject], int] = defaultdict(int)
    now_ms = 0
    for passed_ms, subject, figure, is_taken in [*steps, (0, DEMO, 0, True)]:
        now_ms += passed_ms // 10
        key = (now_ms - now_ms % 60_000, subject)
        tally.count(now_ms, subject, events=figure)
        tally.observe(now_ms, subject, subscribers=figure)
        events[key] += figure
        highest[key] = max(highest[key], figure)
        if is_taken:
            for minute_ms, of, figures in tally.take(now_ms):
                written[minute_ms, of].events += figures.events
                written[minute_ms, of].subscribers += figures.subscribers
    for key in events:
        assert (written[key].events, written[key].subscribers) == (events[key], highest[key])


def test_a_series_has_no_gap() -> None:
    known = [IntervalFigures(NOON + timedelta(minutes=1), Figures(events=3))]
    points = list(fill_series(NOON, NOON + timedelta(minutes=3), Interval.MINUTE, known))
    assert [point.figures.events for point in points] == [0, 3, 0]
    assert [point.time.minute for point in points] == [0, 1, 2]
    assert list(fill_series(NOON, NOON, Interval.MINUTE, known)) == []
