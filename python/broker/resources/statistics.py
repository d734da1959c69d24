"""Statistics: the dashboard, series over time, and live programs.

Who reads them: admins the whole account; producers and users the programs of their projects and those
without a project. Connections belong to no program, so they are the account's in every answer. All of it is
404 while the statistics are off.
"""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.permission_table import Target
from broker.domain.programs import ProgramResource
from broker.domain.statistics import (
    MINUTE_MS,
    Figures,
    Interval,
    IntervalFigures,
    OnlineProducerResource,
    StatisticsScope,
    TopProgramResource,
    fill_series,
)
from broker.domain.values import Id, Model, Time
from broker.errors import InvalidRequest, NotFound
from broker.operations.context import Context
from broker.operations.listing import NoParams
from broker.operations.registry import Operation, Route, of_resource

MAX_POINTS = 1_500  # a day of minutes, two months of hours, four years of days
DEFAULT_POINTS = 60
MAX_LIVE_PROGRAMS = 1_000
# Processes write every 5 s: in the first seconds of a minute the one before is the present.
_FRESH_MS = 10_000


class SeriesParams(Model):
    """Which series. Without `to` it ends now, without `from` it has 60 points."""

    from_: Annotated[Time | None, Field(alias="from")] = None
    to: Time | None = None
    program_id: Id | None = None
    project_id: Id | None = None
    interval: Annotated[Interval, Field(strict=False)] | None = None


class SeriesPoint(Model):
    """One interval from `time` on: the highest of the gauges, and what was counted."""

    time: Time
    connections: int
    subscribers: int
    events: int
    deliveries: int
    responses: int
    impressions: int


class ImageSeriesParams(Model):
    """Which series. Without `to` it ends now, without `from` it has 60 points."""

    from_: Annotated[Time | None, Field(alias="from")] = None
    to: Time | None = None
    interval: Annotated[Interval, Field(strict=False)] | None = None


class ImageSeriesPoint(Model):
    """What became of images in one interval from `time` on."""

    time: Time
    images: Annotated[int, Field(description="Image requests.")]
    hits: Annotated[int, Field(description="Requests answered from a cache.")]
    errors: Annotated[int, Field(description="Requests that failed.")]
    fetches: Annotated[int, Field(description="Requests for source images.")]
    sent_bytes: Annotated[int, Field(description="Bytes of images sent.")]
    face_searches: Annotated[int, Field(description="Face detections.")]


class ImageSeries(Model):
    """The intervals of the range, ascending, without a gap."""

    series: list[ImageSeriesPoint]


class Series(Model):
    """The intervals of the range, ascending, without a gap."""

    series: list[SeriesPoint]


class Dashboard(Model):
    """How it is now. Rates are those of the last 60 seconds."""

    connections: int
    subscribers: int
    programs_live: int
    events_per_minute: int
    responses_per_minute: int
    deliveries_per_second: float
    top_programs: list[TopProgramResource]
    producers_online: list[OnlineProducerResource]


async def _get_dashboard(context: Context, _params: NoParams) -> Dashboard:
    _require_statistics(context)
    now_ms, principal = context.services.clock.now_ms(), context.principal
    minute_ms = now_ms - now_ms % MINUTE_MS
    recent_ms = minute_ms if now_ms - minute_ms >= _FRESH_MS else minute_ms - MINUTE_MS
    figures = await context.services.statistics.dashboard(
        principal.account, now_ms, recent_ms, _scope(context), principal.subject or ""
    )
    by_time = {point.time: point.figures for point in figures.minutes}
    recent = [each for time, each in by_time.items() if time >= to_datetime(recent_ms)]
    running = by_time.get(to_datetime(minute_ms), Figures())
    before = by_time.get(to_datetime(minute_ms - MINUTE_MS), Figures())
    weight = 1 - (now_ms - minute_ms) / MINUTE_MS  # of the minute before, in the last 60 seconds
    return Dashboard(
        connections=max((each.connections for each in recent), default=0),
        subscribers=max((each.subscribers for each in recent), default=0),
        programs_live=figures.programs_live,
        events_per_minute=round(running.events + weight * before.events),
        responses_per_minute=round(running.responses + weight * before.responses),
        deliveries_per_second=round((running.deliveries + weight * before.deliveries) / 60, 1),
        top_programs=figures.top,
        producers_online=figures.online,
    )


async def _get_series(context: Context, params: SeriesParams) -> Series:
    _require_statistics(context)
    interval = params.interval or Interval.MINUTE
    start, end = _range(params, interval, to_datetime(context.services.clock.now_ms()))
    scope = await _narrowed(context, params)
    account = context.principal.account
    known = await context.services.statistics.series(account, start, end, interval, scope)
    return Series(series=[_point(point) for point in fill_series(start, end, interval, known)])


async def _get_image_series(context: Context, params: ImageSeriesParams) -> ImageSeries:
    _require_statistics(context)
    interval = params.interval or Interval.MINUTE
    start, end = _range(params, interval, to_datetime(context.services.clock.now_ms()))
    account = context.principal.account
    known = await context.services.statistics.series(account, start, end, interval, StatisticsScope())
    return ImageSeries(series=[_image_point(point) for point in fill_series(start, end, interval, known)])


async def _get_live_programs(context: Context, _params: NoParams) -> list[ProgramResource]:
    _require_statistics(context)
    services, principal = context.services, context.principal
    now_ms = services.clock.now_ms()
    programs = await services.statistics.list_live(
        principal.account, now_ms, _scope(context), MAX_LIVE_PROGRAMS
    )
    return [ProgramResource.of(program, now_ms) for program in programs]


def _require_statistics(context: Context) -> None:
    if not context.services.settings.statistics:
        raise NotFound("the statistics are off (BROKER_STATISTICS)")


def _scope(context: Context) -> StatisticsScope:
    """What the caller may see: everything, or its projects and programs without one."""
    projects = permissions.shown_projects(context.rule, context.principal)
    return StatisticsScope() if projects is None else StatisticsScope(projects=projects | {""})


async def _narrowed(context: Context, params: SeriesParams) -> StatisticsScope:
    """The caller's scope, narrowed to the project and the program that it asks for. Raises NotFound."""
    rule, principal = context.rule, context.principal
    projects = _scope(context).projects
    if params.project_id is not None:
        permissions.require_project(rule, principal, params.project_id)
        projects = frozenset({params.project_id})
    if params.program_id is not None:
        program = await context.services.programs.find(principal.account, params.program_id)
        of = Target.UNKNOWN if program is None else permissions.belonging(principal, program.project_id)
        permissions.require(rule, principal, of, f"there is no program {params.program_id}")
    return StatisticsScope(projects=projects, program_id=params.program_id)


def _range(
    params: SeriesParams | ImageSeriesParams, interval: Interval, now: datetime
) -> tuple[datetime, datetime]:
    """The boundaries of the series: whole intervals around `from` and `to`. Raises InvalidRequest."""
    try:
        end = interval.ceil(params.to or now)
        start = end - DEFAULT_POINTS * interval.length
    except OverflowError:
        raise InvalidRequest.of_field("to", "is too far in the past or the future") from None
    if params.from_ is not None:
        if params.to is not None and params.to < params.from_:
            raise InvalidRequest.of_field("to", "must not be before from")
        start = interval.floor(params.from_)
    if start > end:
        raise InvalidRequest.of_field("from", "must not be in the future")
    points = (end - start) // interval.length
    if points > MAX_POINTS:
        raise InvalidRequest.of_field(
            "from", f"the range has {points} points of a {interval}; at most {MAX_POINTS} are allowed"
        )
    return start, end


def _point(point: IntervalFigures) -> SeriesPoint:
    counted = SeriesPoint.model_fields.keys() - {"time"}
    figures = {name: getattr(point.figures, name) for name in counted}
    return SeriesPoint.model_construct(time=point.time, **figures)


def _image_point(point: IntervalFigures) -> ImageSeriesPoint:
    figures = point.figures
    return ImageSeriesPoint.model_construct(
        time=point.time,
        images=figures.images,
        hits=figures.image_hits,
        errors=figures.image_errors,
        fetches=figures.image_fetches,
        sent_bytes=figures.image_bytes,
        face_searches=figures.image_searches,
    )


OPERATIONS = of_resource(
    "Statistics",
    Operation(
        name="getDashboard",
        summary="Get the current numbers of viewers and activity",
        handler=_get_dashboard,
        is_list=True,
        route=Route(
            "GET",
            "/statistics/dashboard",
            description="Admins see the whole account. Other users see the programs of their projects,"
            " programs without a project, and producers who share a project with them. `connections` always"
            " counts the whole account. The numbers may be a few seconds old.",
        ),
    ),
    Operation(
        name="filterStatistics",
        summary="Statistics over time",
        handler=_get_series,
        is_list=True,
        route=Route(
            "GET",
            "/statistics/filtered",
            description="Complete UTC intervals that cover `from` to `to`, at most 1,500 of them; zeros where"
            " there is no data. `connections`, which always counts the whole account, and"
            " `subscribers` are the maxima of the interval. Minutes are kept for"
            " {statistics_minute_days} days, hours for {statistics_hour_days} days and days for"
            " {statistics_day_days} days.",
        ),
        example={"from": "2026-07-19T18:00:00Z", "to": "2026-07-19T21:00:00Z", "interval": "minute"},
    ),
    Operation(
        name="filterImageStatistics",
        summary="Get the image usage of the account over time",
        handler=_get_image_series,
        is_list=True,
        route=Route(
            "GET",
            "/statistics/images",
            description="Intervals and retention are those of `/statistics/filtered`.",
        ),
        example={"from": "2026-07-19T18:00:00Z", "to": "2026-07-19T21:00:00Z", "interval": "hour"},
    ),
    Operation(
        name="admin/getLivePrograms",
        summary="List live programs, the latest started first",
        handler=_get_live_programs,
        is_list=True,
        route=Route(
            "GET",
            "/statistics/livePrograms",
            description="Programs whose statistics the caller may read, at most 1,000.",
        ),
    ),
)
