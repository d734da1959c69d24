"""Programs: create, read, change, delete, list and filter them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from broker.clock import to_datetime, to_ms
from broker.domain import permissions
from broker.domain.audit import Actor
from broker.domain.programs import (
    Access,
    Program,
    ProgramResource,
    ProgramStatus,
    check_interval,
    program_json,
)
from broker.domain.values import FIRST_FAULT, FreeObject, Id, Model, Name, Time
from broker.errors import InvalidRequest
from broker.operations.context import Context
from broker.operations.listing import MAX_IDS, CommaList, ListParams, NoParams
from broker.operations.metadata import compact
from broker.operations.program_access import WITHOUT_PROJECT, allowed_program, check_project_ids
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Json, Stream
from broker.owners.commands import DeleteProgram, ProgramChanges, UpdateProgram
from broker.storage.programs import ProgramQuery

_EXAMPLE = {
    "id": "final-2026",
    "name": "The final",
    "scheduledStartTime": "2026-07-19T18:00:00Z",
    "scheduledEndTime": "2026-07-19T21:00:00Z",
}


class ProgramParams(Model):
    """Names a program."""

    program_id: Id


class CreateProgramParams(Model):
    """A new program. Absent times leave it scheduled; absent access is `public`."""

    id: Id
    name: Annotated[Name, Field(description="Title of the program.")]
    scheduled_start_time: Time | None = None
    scheduled_end_time: Time | None = None
    project_id: Id | None = None
    access: Annotated[Access, Field(strict=False)] | None = None
    metadata: FreeObject | None = None


class UpdateProgramParams(Model):
    """A program's new fields. The optional ones keep their value when absent and are cleared by null.

    The fields that the server sets are taken, so that a program that was read can be sent back, and ignored.
    """

    program_id: Id | None = None
    id: Annotated[Id | None, Field(description="The program's id, which cannot change.")] = None
    name: Name
    scheduled_start_time: Time | None
    scheduled_end_time: Time | None
    project_id: Id | None = None
    access: Annotated[Access, Field(strict=False)] | None = None
    metadata: FreeObject | None = None
    created_time: Annotated[object, Field(description="Ignored.")] = None
    updated_time: Annotated[object, Field(description="Ignored.")] = None
    live: Annotated[object, Field(description="Ignored.")] = None


class ProgramSort(StrEnum):
    """Fields of a program that it can be sorted by."""

    ID = "id"
    NAME = "name"
    SCHEDULED_START_TIME = "scheduledStartTime"
    SCHEDULED_END_TIME = "scheduledEndTime"
    PROJECT_ID = "projectId"
    ACCESS = "access"
    CREATED_TIME = "createdTime"
    UPDATED_TIME = "updatedTime"
    LIVE = "live"


class FilterProgramsParams(ListParams):
    """Which programs; without `sort` and `order` the newest come first."""

    sort: Annotated[ProgramSort, Field(strict=False)] | None = None
    ids: Annotated[list[Id], FIRST_FAULT, CommaList, Field(max_length=MAX_IDS)] | None = None
    status: (
        Annotated[
            list[Annotated[ProgramStatus, Field(strict=False)]], FIRST_FAULT, CommaList, Field(max_length=8)
        ]
        | None
    ) = None
    project_id: Id | None = None
    from_: Annotated[Time | None, Field(alias="from")] = None
    to: Time | None = None
    live: bool | None = None


class ProgramPage(Model):
    """One page of programs; `total` counts those on the other pages too."""

    items: list[ProgramResource]
    total: int
    limit: int
    skip: int


class LastUpdate(Model):
    """Where a program's history stands.

    `timestamp` is when the newest change was accepted, in milliseconds since 1970-01-01T00:00:00Z, or null
    before the first one; `seq` is the newest push's, 0 when `epoch` has none.
    """

    program_id: str
    timestamp: int | None
    seq: int
    epoch: str


async def _create_program(context: Context, params: CreateProgramParams) -> Json:
    permissions.require_into(context.rule, context.principal, params.project_id)
    check_project_ids("projectId", params.project_id)
    _check_times(params)
    compact(params.metadata, "metadata")
    services, account = context.services, context.principal.account
    now_ms = services.clock.now_ms()
    now = to_datetime(now_ms)
    program = Program.model_construct(
        **dict(params) | {"access": params.access or Access.PUBLIC, "created_time": now, "updated_time": now}
    )
    result = to_json(ProgramResource.of(program, now_ms), by_alias=True)
    was_there = await _is_there(context, params.project_id)
    await services.programs.create(account, program, services.ids.epoch(), project_was_there=was_there)
    context.after(lambda: services.owners.programs_changed(account))
    return Json(result, {"Location": f"/api/v1/programs/{program.id}"})


async def _get_program(context: Context, params: ProgramParams) -> Json:
    program = await allowed_program(context, params.program_id)
    return Json(program_json(program, context.services.clock.now_ms()))


async def _update_program(context: Context, params: UpdateProgramParams) -> ProgramResource:
    program_id = _updated_id(params)
    program = await allowed_program(context, program_id)
    _check_times(params)
    compact(params.metadata, "metadata")
    changes: ProgramChanges = {
        "name": params.name,
        "scheduled_start_time": params.scheduled_start_time,
        "scheduled_end_time": params.scheduled_end_time,
    }
    for name in params.model_fields_set & {"project_id", "access", "metadata"}:
        changes[name] = getattr(params, name)  # type: ignore[literal-required]  # of these three
    if "access" in changes:
        changes["access"] = params.access or Access.PUBLIC
    into = params.project_id if "project_id" in changes else program.project_id
    permissions.require_into(context.rule, context.principal, into)
    if into != program.project_id:  # one that is stored goes on
        check_project_ids("projectId", into)
    services, account = context.services, context.principal.account
    was_there = into != program.project_id and await _is_there(context, into)
    command = UpdateProgram(
        services.ids.uuid7(), account, program_id, changes, context.caller, context.key, was_there
    )
    stored = await services.owners.submit(command)
    services.programs.forget(account, program_id)
    return ProgramResource.of(stored, services.clock.now_ms())


async def _is_there(context: Context, project_id: str | None) -> bool:
    """Whether there is such a project now; one that goes before the program is in it is an error."""
    if project_id is None:
        return False
    return await context.services.projects.exists(context.principal.account, project_id)


def _updated_id(params: UpdateProgramParams) -> str:
    """The id that the params give in one place or two; over REST it must be in the body too."""
    if params.id is None and ("id" in params.model_fields_set or params.program_id is None):
        raise InvalidRequest.of_field("id", "is required")
    if params.id is None or params.program_id in (None, params.id):
        return str(params.id or params.program_id)
    raise InvalidRequest.of_field("id", "must be the program's id as in the path; it cannot change")


async def _delete_program(context: Context, params: ProgramParams) -> None:
    await allowed_program(context, params.program_id)
    by = Actor.of(context.principal)
    services, account, program_id = context.services, context.principal.account, params.program_id
    await services.owners.submit(
        DeleteProgram(services.ids.uuid7(), account, program_id, by, context.caller, key=context.key)
    )
    services.programs.forget(account, program_id)


async def _get_last_update(context: Context, params: ProgramParams) -> LastUpdate:
    await allowed_program(context, params.program_id)
    head = await context.services.programs.head(context.principal.account, params.program_id)
    timestamp = None if head.last_change is None else to_ms(head.last_change)
    return LastUpdate(program_id=params.program_id, timestamp=timestamp, seq=head.seq, epoch=head.epoch)


async def _get_producer_programs(context: Context, _params: NoParams) -> Stream:
    services, principal = context.services, context.principal
    now_ms = services.clock.now_ms()
    pages = services.programs.list_open(principal.account, _projects(context), now_ms)
    return Stream.of_pages(pages, lambda program: ProgramResource.of(program, now_ms))


async def _filter_programs(context: Context, params: FilterProgramsParams) -> ProgramPage:
    if params.from_ is not None and params.to is not None and params.to < params.from_:
        raise InvalidRequest.of_field("to", "must not be before from")
    without_project = params.project_id in WITHOUT_PROJECT
    projects = _projects(context)
    query = ProgramQuery(
        limit=params.limit,
        skip=params.skip,
        sort=params.sort or ProgramSort.CREATED_TIME,
        descending=params.order == "desc" if params.order or params.sort else True,
        projects=projects,
        search=params.search,
        ids=params.ids,
        statuses=params.status,
        project_id=None if without_project else params.project_id,
        without_project=without_project,
        start=params.from_,
        end=params.to,
        live=params.live,
    )
    now_ms = context.services.clock.now_ms()
    programs, total = await context.services.programs.filter(context.principal.account, query, now_ms)
    items = [ProgramResource.of(program, now_ms) for program in programs]
    return ProgramPage.model_construct(items=items, total=total, limit=params.limit, skip=params.skip)


def _projects(context: Context) -> list[str] | None:
    """The projects whose programs the caller may publish to, besides those without one; None is all."""
    projects = permissions.shown_projects(context.rule, context.principal)
    return None if projects is None else sorted(projects)


def _check_times(params: CreateProgramParams | UpdateProgramParams) -> None:
    try:
        check_interval(params.scheduled_start_time, params.scheduled_end_time)
    except ValueError:
        raise InvalidRequest.of_field("scheduledEndTime", "must not be before scheduledStartTime") from None


OPERATIONS = of_resource(
    "Programs",
    Operation(
        name="admin/createProgram",
        summary="Create a program",
        result=ProgramResource,
        handler=_create_program,
        route=Route("POST", "/programs", status=201, location="/programs/{id}"),
        example=_EXAMPLE,
    ),
    Operation(
        name="getProducerPrograms",
        summary="List programs that have not ended and that the caller may publish to, newest first",
        result=list[ProgramResource],
        handler=_get_producer_programs,
        is_list=True,
        route=Route("GET", "/programs"),
    ),
    Operation(
        name="filterPrograms",
        summary="Search the programs that the caller may publish to",
        handler=_filter_programs,
        is_list=True,
        route=Route(
            "GET",
            "/programs/filter",
            description="`search` matches ids and names. `from` and `to` select programs whose scheduled"
            " interval overlaps the range; a missing scheduled time is unbounded. `projectId=undefined`"
            " selects programs without a project.",
        ),
        example={"status": "live,scheduled", "limit": 20, "sort": "name"},
    ),
    Operation(
        name="getProgram",
        summary="Get a program",
        result=ProgramResource,
        handler=_get_program,
        route=Route("GET", "/programs/{programId}"),
        example={"programId": "final-2026"},
    ),
    Operation(
        name="updateProgram",
        summary="Update a program",
        handler=_update_program,
        route=Route("PUT", "/programs/{programId}", repeated=("id",)),
        former_names=("admin/updateProgram",),
        is_owners=True,
        example=_EXAMPLE | {"programId": "final-2026"},
    ),
    Operation(
        name="admin/deleteProgram",
        summary="Delete a program and all its events",
        handler=_delete_program,
        route=Route("DELETE", "/programs/{programId}", status=204),
        is_owners=True,
        example={"programId": "rehearsal"},
    ),
    Operation(
        name="getLastUpdate",
        summary="Get the time of the last change of a program and the position of its history",
        handler=_get_last_update,
        route=Route("GET", "/programs/{programId}/lastUpdate"),
        example={"programId": "final-2026"},
    ),
)
