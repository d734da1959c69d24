"""Statistics: what is counted per minute, and how it is summed in memory before it is written. No I/O.

Two kinds of figures: *counters* (events, deliveries, responses, impressions, what becomes of images) add up
over time and over processes; *gauges* (connections, subscribers) are the highest that each process saw in the
minute, added up over processes. What is written is always an amount to add, so processes need not know of
each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from broker.domain.values import Model, Time

MINUTE_MS = 60_000


class Interval(StrEnum):
    """The length of one point of a series. Hours and days are those of UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return _LENGTHS[self]

    def floor(self, moment: datetime) -> datetime:
        """The beginning of the interval that `moment` lies in."""
        moment = moment.astimezone(UTC)
        return moment - (moment - datetime.min.replace(tzinfo=UTC)) % self.length

    def ceil(self, moment: datetime) -> datetime:
        """The end of the interval that `moment` lies in, or `moment` itself at a boundary.

        Raises:
            OverflowError: the end lies behind the year 9999.
        """
        floor = self.floor(moment)
        return floor if floor == moment else floor + self.length


_LENGTHS = {
    Interval.MINUTE: timedelta(minutes=1),
    Interval.HOUR: timedelta(hours=1),
    Interval.DAY: timedelta(days=1),
}


class Subject(NamedTuple):
    """What figures are of: one program with its project, or with "" for both the whole account."""

    account: str
    program_id: str = ""
    project_id: str = ""


@dataclass(slots=True)
class Figures:
    """The figures of one subject in one span of time, or an amount to add to them.

    Attributes:
        images: requests for images, of which `image_hits` were served from a cache and `image_errors` got
            an error; `image_fetches` of sources, `image_bytes` that were sent, `image_searches` for faces.
    """

    connections: int = 0
    subscribers: int = 0
    events: int = 0
    deliveries: int = 0
    responses: int = 0
    impressions: int = 0
    images: int = 0
    image_hits: int = 0
    image_fetches: int = 0
    image_bytes: int = 0
    image_searches: int = 0
    image_errors: int = 0

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in FIGURES)


FIGURES = tuple(each.name for each in fields(Figures))
"""By name; the first two are gauges."""


class ImagesUsed(NamedTuple):
    """What to add to an account's figures of images; see `Figures`."""

    images: int = 0
    hits: int = 0
    fetches: int = 0
    sent_bytes: int = 0
    searches: int = 0
    errors: int = 0


class Amount(NamedTuple):
    """What to add to a subject's minute; `minute_ms` is its beginning."""

    minute_ms: int
    subject: Subject
    figures: Figures


class Tally:
    """Adds up figures in memory until they are taken. Not for several threads."""

    def __init__(self) -> None:
        self._amounts: defaultdict[tuple[int, Subject], Figures] = defaultdict(Figures)
        self._highest: dict[tuple[int, Subject], _Gauges] = {}

    def count(
        self,
        now_ms: int,
        subject: Subject,
        *,
        events: int = 0,
        deliveries: int = 0,
        responses: int = 0,
        impressions: int = 0,
    ) -> None:
        """Add to the counters of the minute that `now_ms` lies in."""
        figures = self._amounts[_minute(now_ms), subject]
        figures.events += events
        figures.deliveries += deliveries
        figures.responses += responses
        figures.impressions += impressions

    def count_images(self, now_ms: int, account: str, used: "ImagesUsed") -> None:
        """Add what became of images, which belong to no program."""
        figures = self._amounts[_minute(now_ms), Subject(account)]
        figures.images += used.images
        figures.image_hits += used.hits
        figures.image_fetches += used.fetches
        figures.image_bytes += used.sent_bytes
        figures.image_searches += used.searches
        figures.image_errors += used.errors

    def observe(self, now_ms: int, subject: Subject, *, connections: int = 0, subscribers: int = 0) -> None:
        """Say how many there are; only what is above the minute's highest so far is an amount to add."""
        key = (_minute(now_ms), subject)
        highest = self._highest.setdefault(key, _Gauges())
        if connections > highest.connections:
            self._amounts[key].connections += connections - highest.connections
            highest.connections = connections
        if subscribers > highest.subscribers:
            self._amounts[key].subscribers += subscribers - highest.subscribers
            highest.subscribers = subscribers

    def take(self, now_ms: int) -> list[Amount]:
        """Everything added since the last call, by subject and minute; what is 0 is left out."""
        amounts, self._amounts = self._amounts, defaultdict(Figures)
        # A process with a clock that steps back observes an old minute again, at most.
        oldest_ms = _minute(now_ms) - MINUTE_MS
        self._highest = {key: value for key, value in self._highest.items() if key[0] >= oldest_ms}
        # One order for all processes: their transactions cannot wait for each other in a circle.
        keys = sorted((key for key, figures in amounts.items() if figures), key=lambda key: (key[1], key[0]))
        return [Amount(minute_ms, subject, amounts[minute_ms, subject]) for minute_ms, subject in keys]


@dataclass(slots=True)
class _Gauges:
    connections: int = 0
    subscribers: int = 0


class TopProgramResource(Model):
    """A program with its subscribers now and its events of the last hour."""

    program_id: str
    subscribers: int
    events: int


class OnlineProducerResource(Model):
    """Who pinged or published within the last two minutes."""

    user_id: str
    username: str
    last_seen: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsScope:
    """Which programs a series or a dashboard is about.

    Attributes:
        projects: programs of these only, "" standing for those without one; None is the whole account, the
            subscriptions to its channels included.
        program_id: one program only.
    """

    projects: frozenset[str] | None = None
    program_id: str | None = None


@dataclass(slots=True)
class IntervalFigures:
    """The figures of one interval of a series."""

    time: datetime
    figures: Figures = field(default_factory=Figures)


def fill_series(
    start: datetime, end: datetime, interval: Interval, known: Iterable[IntervalFigures]
) -> Iterator[IntervalFigures]:
    """Every interval from `start` (inclusive) to `end` (exclusive), ascending; zeros where nothing is known.

    Both lie on boundaries of the interval.
    """
    by_time = {point.time: point for point in known}
    while start < end:
        yield by_time.get(start) or IntervalFigures(start)
        start += interval.length


def _minute(now_ms: int) -> int:
    return now_ms - now_ms % MINUTE_MS
