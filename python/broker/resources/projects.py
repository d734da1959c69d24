"""Projects: create, read, change, delete and list them, with their users and programs.

Only admins make, change and delete projects. Those who belong to a project read it; for all others it is not
there. Belonging to a project is a matter of the user's `projectIds`.
"""

import asyncio
from contextlib import suppress
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.audit import Actor
from broker.domain.programs import ProgramResource
from broker.domain.projects import DescriptionText, Project
from broker.domain.users import User
from broker.domain.values import FreeObject, Id, Model, Name
from broker.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from broker.operations.context import Context
from broker.operations.etags import etag_of, require_match, tagged
from broker.operations.listing import NoParams
from broker.operations.metadata import compact
from broker.operations.program_access import check_project_ids
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Json, Stream
from broker.owners.commands import DeleteProgram

_DELETED_AT_ONCE = 16  # programs: each is a command to its owner
_PAGE_PROGRAMS = 500
_EXAMPLE = {"id": "football", "name": "Football", "description": "All matches of the season", "metadata": {}}


class ProjectParams(Model):
    """Names a project."""

    project_id: Id


class CreateProjectParams(Model):
    """A new project."""

    id: Id | None = Field(default=None, description="Generated when absent.")
    name: Name
    description: DescriptionText | None = None
    metadata: FreeObject | None = None


class UpdateProjectParams(Model):
    """What to change. Absent fields are kept; null clears `description` and `metadata`.

    The fields that the server sets are taken, so that a project that was read can be sent back, and ignored.
    """

    project_id: Id
    id: Id | None = Field(default=None, description="The project's id, which cannot change.")
    name: Name = ""
    description: DescriptionText | None = None
    metadata: FreeObject | None = None
    created_time: object = Field(default=None, description="Ignored.")
    updated_time: object = Field(default=None, description="Ignored.")


class DeleteProjectParams(ProjectParams):
    """Which project, and whether its programs go with it."""

    cascade: bool | None = Field(default=None, description="Delete the project's programs too.")


async def _list_projects(context: Context, _params: NoParams) -> list[Project]:
    principal = context.principal
    ids = permissions.shown_projects(context.rule, principal)
    return await context.services.projects.list(principal.account, None if ids is None else sorted(ids))


async def _create_project(context: Context, params: CreateProjectParams) -> Json:
    services = context.services
    check_project_ids("id", params.id)
    compact(params.metadata, "metadata")
    now = to_datetime(services.clock.now_ms())
    project = Project.model_construct(
        id=params.id or services.ids.uuid7(),
        name=params.name,
        description=params.description,
        metadata=params.metadata or {},
        created_time=now,
        updated_time=now,
    )
    result = to_json(project, by_alias=True)
    await services.projects.create(context.principal.account, project, Actor.of(context.principal))
    return tagged(result)


async def _get_project(context: Context, params: ProjectParams) -> Json:
    permissions.require_project(context.rule, context.principal, params.project_id)
    return _resource(await context.services.projects.get(context.principal.account, params.project_id))


async def _update_project(context: Context, params: UpdateProjectParams) -> Json:
    permissions.require_project(context.rule, context.principal, params.project_id)
    if params.id not in (None, params.project_id):
        raise InvalidRequest.of_field("id", "must be the project's id as in the path; it cannot change")
    compact(params.metadata, "metadata")
    now = to_datetime(context.services.clock.now_ms())

    def change(before: Project) -> Project:
        require_match(context.if_match, etag_of(to_json(before, by_alias=True)))
        fields = params.model_fields_set & {"name", "description", "metadata"}
        changes: dict[str, Any] = {name: getattr(params, name) for name in fields}
        if "metadata" in changes:
            changes["metadata"] = params.metadata or {}
        return before.model_copy(update=changes | {"updated_time": now})

    projects, account, by = context.services.projects, context.principal.account, Actor.of(context.principal)
    return _resource(await projects.change(account, params.project_id, change, by))


async def _delete_project(context: Context, params: DeleteProjectParams) -> None:
    permissions.require_project(context.rule, context.principal, params.project_id)
    services, account = context.services, context.principal.account
    await services.projects.require(account, params.project_id)
    by = Actor.of(context.principal)
    if not params.cascade:
        if not await services.projects.delete(account, params.project_id, by):
            raise Conflict("the project has programs; delete them, or ask for cascade=true")
        return
    try:
        while await _delete_programs(context, params.project_id):
            continue
        # A program that was made meanwhile is deleted by the next turn.
        while not await services.projects.delete(account, params.project_id, by):
            await _delete_programs(context, params.project_id)
    except OutcomeUnknown:
        raise
    except Unavailable as error:
        text = "some of the project may be deleted; repeat the request to go on"
        raise OutcomeUnknown(text, retry_after_s=error.retry_after_s, log_text=error.log_text) from error


async def _delete_programs(context: Context, project_id: str) -> bool:
    """Delete a page of the project's programs; false when there was none. Broken off, it can be repeated."""
    services, account = context.services, context.principal.account
    ids = await services.projects.program_ids(account, project_id, _PAGE_PROGRAMS)
    for start in range(0, len(ids), _DELETED_AT_ONCE):
        some = (
            _delete_program(context, project_id, program_id)
            for program_id in ids[start : start + _DELETED_AT_ONCE]
        )
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
    return bool(ids)


async def _delete_program(context: Context, project_id: str, program_id: str) -> None:
    services, account = context.services, context.principal.account
    with suppress(NotFound):  # another request was faster, or has moved it to another project
        by = Actor.of(context.principal)
        await services.owners.submit(
            DeleteProgram(services.ids.uuid7(), account, program_id, by, of_project=project_id)
        )
    services.programs.forget(account, program_id)


async def _list_project_users(context: Context, params: ProjectParams) -> list[User]:
    permissions.require_project(context.rule, context.principal, params.project_id)
    services, account = context.services, context.principal.account
    await services.projects.require(account, params.project_id)
    return await services.users.list_members(account, params.project_id)


async def _list_project_programs(context: Context, params: ProjectParams) -> Stream:
    permissions.require_project(context.rule, context.principal, params.project_id)
    services, account = context.services, context.principal.account
    await services.projects.require(account, params.project_id)
    now_ms = services.clock.now_ms()
    pages = services.projects.programs(account, params.project_id)
    return Stream.of_pages(pages, lambda program: ProgramResource.of(program, now_ms))


def _resource(project: Project) -> Json:
    return tagged(to_json(project, by_alias=True))


_ONE = {"projectId": "football"}

OPERATIONS = of_resource(
    "Projects",
    Operation(
        name="listProjects",
        summary="List the projects that the caller belongs to, or all for admins",
        handler=_list_projects,
        is_list=True,
        route=Route("GET", "/projects"),
    ),
    Operation(
        name="createProject",
        summary="Create a project",
        result=Project,
        handler=_create_project,
        route=Route("POST", "/projects", status=201, location="/projects/{id}"),
        example=_EXAMPLE,
        has_etag=True,
    ),
    Operation(
        name="getProject",
        summary="Get a project",
        result=Project,
        handler=_get_project,
        route=Route("GET", "/projects/{projectId}"),
        example=_ONE,
        has_etag=True,
    ),
    Operation(
        name="updateProject",
        summary="Change a project",
        result=Project,
        handler=_update_project,
        route=Route("PUT", "/projects/{projectId}"),
        honours_if_match=True,
        example=_ONE | {"name": "Football 2026"},
        has_etag=True,
    ),
    Operation(
        name="deleteProject",
        summary="Delete a project with its revisions and stored values",
        handler=_delete_project,
        route=Route(
            "DELETE",
            "/projects/{projectId}",
            status=204,
            description="The users of the project lose their membership. Deleting a project that has programs"
            " is 409 without `cascade`.",
        ),
        example={"projectId": "season-2025", "cascade": True},
    ),
    Operation(
        name="listProjectUsers",
        summary="List the users who belong to a project, by name",
        handler=_list_project_users,
        is_list=True,
        route=Route("GET", "/projects/{projectId}/users"),
        example=_ONE,
    ),
    Operation(
        name="listProjectPrograms",
        summary="List all programs of a project, newest first",
        result=list[ProgramResource],
        handler=_list_project_programs,
        is_list=True,
        route=Route("GET", "/projects/{projectId}/programs"),
        example=_ONE,
    ),
)
