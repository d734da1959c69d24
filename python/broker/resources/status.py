"""The status operations: version, server time, and the ping of a client."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

import broker
from broker._native import BUILT_S
from broker.clock import to_datetime
from broker.domain.values import Integer, Model, Time, format_time
from broker.operations.context import Context
from broker.operations.listing import NoParams
from broker.operations.registry import Effect, Operation, Route, of_resource


class Version(Model):
    """What runs: its version, and which build of it."""

    version: str
    build_number: str
    build_date: str


class ServerTimeParams(Model):
    """`requestTime` is the client's clock, milliseconds since 1970-01-01T00:00:00Z; it is echoed."""

    request_time: Integer | None = None


class ServerTime(Model):
    """The server's clock in milliseconds since 1970-01-01T00:00:00Z, and the client's as it was sent."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    server_time: int
    request_time: int | None = None


class FaceHealth(Model):
    """Face detection: the models, or why there are none; what computes on the node that replies."""

    models: str
    providers: list[str]


class MaintenanceState(Model):
    """That changes are refused: what callers are told, after how many seconds they try again, since when."""

    message: str
    retry_after: int
    since: Time


class Health(Model):
    """What `/readyz` says. `parts` are those that the broker needs, each `ok` or what is wrong with it.

    `maintenance` is null while changes are accepted.
    """

    status: Literal["ok", "unavailable"]
    parts: dict[str, str]
    images: str
    faces: FaceHealth
    maintenance: MaintenanceState | None


class Pong(Model):
    """The server's clock, milliseconds since 1970-01-01T00:00:00Z; snake case as clients know it."""

    current_time: Annotated[int, Field(alias="current_time")]


async def _get_version(_context: Context, _params: NoParams) -> Version:
    return build_version()


def build_version() -> Version:
    """The version of the running package. A build is named by the moment that its build stamped into it."""
    moment = to_datetime(BUILT_S * 1000)
    return Version(
        version=broker.__version__,
        build_number=f"{moment:%Y%m%d%H%M%S}",
        build_date=format_time(moment),
    )


async def _get_health(context: Context, _params: NoParams) -> Health:
    report = await context.services.health.report()
    return Health.model_validate(report.fields())


async def _ping(context: Context, _params: NoParams) -> Pong:
    await context.services.presence.note(context.principal)
    return Pong(current_time=context.services.clock.now_ms())


async def _servertime(context: Context, params: ServerTimeParams) -> dict[str, Any]:
    answer = {"serverTime": context.services.clock.now_ms()}
    if params.request_time is not None:
        answer["requestTime"] = params.request_time
    return answer


OPERATIONS = of_resource(
    "Status",
    Operation(
        name="getVersion",
        summary="Get the version, build number and build date of the server",
        handler=_get_version,
        route=Route("GET", "/version"),
    ),
    Operation(
        name="getHealth",
        summary="Check whether each part of the broker responds",
        handler=_get_health,
        route=Route(
            "GET",
            "/health",
            description="The checks of `/readyz`, for administrators: `database`, `owners` and `counters`"
            " (each answers and has its slot), `gateways`, and `tasks` that run all the time. A part that"
            " does not respond is named in `parts`, with 200. `images` and `faces` are of the node that"
            " replies; the broker needs neither. `maintenance` says since when changes are refused, and what"
            " callers are told. Requests at the same time share one run of the checks.",
        ),
    ),
    Operation(
        name="ping",
        summary="Report that the client is still online",
        handler=_ping,
        own_effect=Effect.NONE,
        route=Route(
            "POST",
            "/ping",
            form=True,
            description="Recommended once per minute while no events are sent. Marks a producer as online.",
        ),
    ),
    Operation(
        name="servertime",
        summary="Get the server's time, to correct a client's clock",
        result=ServerTime,
        handler=_servertime,
        own_effect=Effect.NONE,
        route=Route("POST", "/servertime"),
        example={"requestTime": 1767225600000},
    ),
)
