"""The calls on statistics, reached as `client.statistics`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.client import query
from broker.client.engine import Call, Engine
from broker.client.models import Program, _Reading, parse_time
from broker.client.query import TimeLike


@dataclass(frozen=True, slots=True)
class TopProgram:
    """A program with its subscribers now and its events of the last hour."""

    program_id: str
    subscribers: int
    events: int


@dataclass(frozen=True, slots=True)
class OnlineProducer:
    """A user who pinged or published within the last two minutes."""

    user_id: str
    username: str
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class Dashboard:
    """How it is now; rates are those of the last 60 seconds."""

    connections: int
    subscribers: int
    programs_live: int
    events_per_minute: int
    responses_per_minute: int
    deliveries_per_second: float
    top_programs: tuple[TopProgram, ...]
    producers_online: tuple[OnlineProducer, ...]

    @classmethod
    def parse(cls, raw: Any) -> "Dashboard":
        """Read the wire's object."""
        with _Reading("dashboard"):
            top = (
                TopProgram(each["programId"], each["subscribers"], each["events"])
                for each in raw["topPrograms"]
            )
            online = (
                OnlineProducer(each["userId"], each["username"], parse_time(each["lastSeen"]))
                for each in raw["producersOnline"]
            )
            return cls(
                connections=raw["connections"],
                subscribers=raw["subscribers"],
                programs_live=raw["programsLive"],
                events_per_minute=raw["eventsPerMinute"],
                responses_per_minute=raw["responsesPerMinute"],
                deliveries_per_second=raw["deliveriesPerSecond"],
                top_programs=tuple(top),
                producers_online=tuple(online),
            )


@dataclass(frozen=True, slots=True)
class StatisticsPoint:
    """One interval from `time` on: the highest of connections and subscribers, the sums of the rest."""

    time: datetime
    connections: int
    subscribers: int
    events: int
    deliveries: int
    responses: int
    impressions: int

    @classmethod
    def parse(cls, raw: Any) -> "StatisticsPoint":
        """Read the wire's object."""
        with _Reading("point of a series"):
            return cls(
                time=parse_time(raw["time"]),
                connections=raw["connections"],
                subscribers=raw["subscribers"],
                events=raw["events"],
                deliveries=raw["deliveries"],
                responses=raw["responses"],
                impressions=raw["impressions"],
            )


@dataclass(frozen=True, slots=True)
class ImagesPoint:
    """What became of the account's pictures in one interval from `time` on.

    Attributes:
        images: requests, of which a cache answered `hits` and `errors` got an error.
        fetches: of sources; `face_searches` of them were looked at for faces.
    """

    time: datetime
    images: int
    hits: int
    errors: int
    fetches: int
    sent_bytes: int
    face_searches: int

    @classmethod
    def parse(cls, raw: Any) -> "ImagesPoint":
        """Read the wire's object."""
        with _Reading("point of a series"):
            return cls(
                time=parse_time(raw["time"]),
                images=raw["images"],
                hits=raw["hits"],
                errors=raw["errors"],
                fetches=raw["fetches"],
                sent_bytes=raw["sentBytes"],
                face_searches=raw["faceSearches"],
            )


class Statistics:
    """Statistics of what the caller may see. Every method may raise NotFound: the statistics are off."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def dashboard(self) -> Dashboard:
        """How many viewers there are now, and what is going on."""
        return await self._engine.send(Call("GET", "/statistics/dashboard", Dashboard.parse))

    async def series(
        self,
        *,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        interval: str = "minute",
        program_id: str | None = None,
        project_id: str | None = None,
    ) -> tuple[StatisticsPoint, ...]:
        """Every `minute`, `hour` or `day` of the range, ascending; without one the last 60.

        Raises:
            InvalidRequest: the range has over 1,500 points.
            NotFound: there is no such program or project for the caller.
        """
        parameters = {
            "from": query.time_text(from_time),
            "to": query.time_text(to_time),
            "interval": interval,
            "programId": program_id,
            "projectId": project_id,
        }
        return await self._engine.send(Call("GET", "/statistics/filtered", _points, query=parameters))

    async def images(
        self,
        *,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        interval: str = "minute",
    ) -> tuple[ImagesPoint, ...]:
        """What the account's pictures took, by intervals as `series` has them. Raises InvalidRequest."""
        parameters = {
            "from": query.time_text(from_time),
            "to": query.time_text(to_time),
            "interval": interval,
        }
        return await self._engine.send(Call("GET", "/statistics/images", _image_points, query=parameters))

    async def live_programs(self) -> tuple[Program, ...]:
        """The programs that are live now, the latest started first."""
        return await self._engine.send(Call("GET", "/statistics/livePrograms", _programs))


def _points(raw: Any) -> tuple[StatisticsPoint, ...]:
    with _Reading("series"):
        return tuple(map(StatisticsPoint.parse, raw["series"]))


def _image_points(raw: Any) -> tuple[ImagesPoint, ...]:
    with _Reading("series"):
        return tuple(map(ImagesPoint.parse, raw["series"]))


def _programs(raw: Any) -> tuple[Program, ...]:
    with _Reading("list of programs"):
        return tuple(map(Program.parse, raw))
