"""The calls on statistics, reached as `client.statistics`."""

from datetime import datetime

from broker.client import query
from broker.client.engine import Group
from broker.client.models import Program
from broker.client.query import TimeLike
from broker.client.wire import Model


class TopProgram(Model, frozen=True):
    """A program with its subscribers now and its events of the last hour."""

    program_id: str
    subscribers: int
    events: int


class OnlineProducer(Model, frozen=True):
    """A user who pinged or published within the last two minutes."""

    user_id: str
    username: str
    last_seen: datetime


class Dashboard(Model, frozen=True):
    """How it is now; rates are those of the last 60 seconds."""

    connections: int
    subscribers: int
    programs_live: int
    events_per_minute: int
    responses_per_minute: int
    deliveries_per_second: float
    top_programs: tuple[TopProgram, ...]
    producers_online: tuple[OnlineProducer, ...]


class StatisticsPoint(Model, frozen=True):
    """One interval from `time` on: the highest of connections and subscribers, the sums of the rest."""

    time: datetime
    connections: int
    subscribers: int
    events: int
    deliveries: int
    responses: int
    impressions: int


class ImagesPoint(Model, frozen=True):
    """What became of the account's images in one interval from `time` on.

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


class Statistics(Group):
    """Statistics of what the caller may see. Every method may raise NotFound: the statistics are off."""

    async def get_dashboard(self) -> Dashboard:
        """How many viewers there are now, and what is going on."""
        return await self._get("/statistics/dashboard", Dashboard)

    async def get_series(
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
        parameters = _range(from_time, to_time, interval)
        parameters |= {"programId": program_id, "projectId": project_id}
        return (await self._get("/statistics/filtered", _Series, parameters)).series

    async def get_images(
        self,
        *,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        interval: str = "minute",
    ) -> tuple[ImagesPoint, ...]:
        """What the account's images took, by intervals as `get_series` has them. Raises InvalidRequest."""
        parameters = _range(from_time, to_time, interval)
        return (await self._get("/statistics/images", _ImagesSeries, parameters)).series

    async def list_live_programs(self) -> tuple[Program, ...]:
        """The programs that are live now, the latest started first."""
        return await self._get("/statistics/livePrograms", tuple[Program, ...])


def _range(from_time: TimeLike | None, to_time: TimeLike | None, interval: str) -> dict[str, str | None]:
    return {"from": query.time_text(from_time), "to": query.time_text(to_time), "interval": interval}


class _Series(Model, frozen=True):
    series: tuple[StatisticsPoint, ...]


class _ImagesSeries(Model, frozen=True):
    series: tuple[ImagesPoint, ...]
