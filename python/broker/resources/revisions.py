"""Application revisions: create, find, change and patch them, and their end-user view."""

from collections.abc import Callable
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema, to_json

from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.audit import Actor
from broker.domain.data_sources import require_methods
from broker.domain.patches import (
    MAX_OPERATIONS,
    apply_json_patch,
    apply_merge_patch,
    json_patch_schema,
)
from broker.domain.projects import DescriptionText
from broker.domain.revisions import (
    MAX_VERSION_CHARACTERS,
    WRITABLE,
    Revision,
    RevisionFields,
    RevisionStatus,
    StatusField,
    VersionField,
    require_change,
)
from broker.domain.values import STORABLE, FreeObject, Id, Model, Name, check_storable, limited_by
from broker.errors import InvalidRequest, NotFound
from broker.operations.context import Context
from broker.operations.etags import etag_of, require_match, tagged
from broker.operations.invoke import validate
from broker.operations.metadata import compact
from broker.operations.results import Json, Stream

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
_SOURCES = "dataSources"

VersionName = Annotated[
    str, Field(min_length=1, max_length=MAX_VERSION_CHARACTERS), AfterValidator(check_storable), STORABLE
]


def _check_patch(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise ValueError("must be an array (JSON Patch) or an object (JSON Merge Patch)")
    return value


class RevisionPatch(Model):
    """What to change. Absent fields are kept; null clears `title`, `description` and `content`."""

    title: Name | None = None
    description: DescriptionText | None = None
    version: VersionField = ""
    status: StatusField = RevisionStatus.DRAFT
    content: FreeObject | None = Field(default=None, json_schema_extra=limited_by("body_limit_bytes"))


class _PatchSchema:
    """The JSON schema of a patch of either kind; `x-media-type` tells which."""

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        listed = {
            "type": "array",
            "items": json_patch_schema(WRITABLE),
            "maxItems": MAX_OPERATIONS,
            "description": "JSON Patch, RFC 6902.",
            "x-media-type": JSON_PATCH,
            "examples": [[{"op": "replace", "path": "/title", "value": "Season 2027"}]],
        }
        merged = handler(RevisionPatch.__pydantic_core_schema__) | {
            "x-media-type": MERGE_PATCH,
            "examples": [{"title": "Season 2027"}],
        }
        return {"anyOf": [listed, merged]}


PatchDocument = Annotated[Any, BeforeValidator(_check_patch), _PatchSchema()]


class ApplicationParams(Model):
    """Names a project."""

    project_id: Id


class StatusParams(ApplicationParams):
    """Which status."""

    status: StatusField


class VersionParams(ApplicationParams):
    """The id of a revision, or its version."""

    version: VersionName


class RevisionParams(ApplicationParams):
    """Names a revision."""

    revision_id: Id


class ListRevisionsParams(ApplicationParams):
    """Revisions of which status; of all without one."""

    status: StatusField | None = None


class CreateRevisionParams(ApplicationParams):
    """A new revision."""

    title: Name | None = None
    description: DescriptionText | None = None
    version: VersionField | None = Field(default=None, description="The next free number when absent.")
    status: StatusField | None = Field(default=None, description="`draft` when absent.")
    content: FreeObject | None = Field(default=None, json_schema_extra=limited_by("body_limit_bytes"))


class UpdateRevisionParams(RevisionPatch, RevisionParams):
    """What to change. Absent fields are kept; null clears `title`, `description` and `content`.

    The fields that the server sets are taken, so that a revision that was read can be sent back, and ignored.
    """

    id: Id | None = Field(default=None, description="The revision's id, which cannot change.")
    created_by: object = Field(default=None, description="Ignored.")
    updated_by: object = Field(default=None, description="Ignored.")
    created_time: object = Field(default=None, description="Ignored.")
    updated_time: object = Field(default=None, description="Ignored.")


class PatchRevisionParams(RevisionParams):
    """How to change a revision: `title`, `description`, `version`, `status` and `content`."""

    patch: PatchDocument


async def get_published(context: Context, params: ApplicationParams) -> Json:
    """The latest published revision."""
    return await _latest(context, params.project_id, RevisionStatus.PUBLISHED)


async def get_by_status(context: Context, params: StatusParams) -> Json:
    """The latest revision of a status."""
    return await _latest(context, params.project_id, params.status)


async def get_latest(context: Context, params: ApplicationParams) -> Json:
    """The latest published revision, else the latest draft."""
    return await _latest(context, params.project_id, RevisionStatus.PUBLISHED, RevisionStatus.DRAFT)


async def get_by_version(context: Context, params: VersionParams) -> Json:
    """The revision with an id or version."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    account, revisions = context.principal.account, context.services.revisions
    return _resource(await revisions.get_by_version(account, params.project_id, params.version))


async def get_live(context: Context, params: VersionParams) -> Json:
    """What end users see of a published revision."""
    account, revisions = context.principal.account, context.services.revisions
    body = await revisions.get_live(account, params.project_id, params.version)
    return Json(body, {"ETag": etag_of(body), "Cache-Control": "public, no-cache"})


async def list_revisions(context: Context, params: ListRevisionsParams) -> Stream:
    """All revisions, newest first."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    services, account = context.services, context.principal.account
    await services.projects.require(account, params.project_id)
    pages = services.revisions.pages(account, params.project_id, params.status)
    return Stream.of_pages(pages, lambda revision: revision)


async def create(context: Context, params: CreateRevisionParams) -> Json:
    """A new revision."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    _check_content(context, params.content)
    _check_sources(params.content or {})
    services, subject = context.services, context.subject
    now = to_datetime(services.clock.now_ms())
    revision = Revision.model_construct(
        id=services.ids.uuid7(),
        project_id=params.project_id,
        title=params.title,
        description=params.description,
        version=params.version or "",
        status=params.status or RevisionStatus.DRAFT,
        content=params.content or {},
        created_by=subject,
        updated_by=subject,
        created_time=now,
        updated_time=now,
    )
    by = Actor.of(context.principal)
    return _resource(await services.revisions.create(context.principal.account, revision, by))


async def get(context: Context, params: RevisionParams) -> Json:
    """One revision."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    account, revisions = context.principal.account, context.services.revisions
    return _resource(await revisions.get(account, params.project_id, params.revision_id))


async def update(context: Context, params: UpdateRevisionParams) -> Json:
    """Change a revision's fields."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    if params.id not in (None, params.revision_id):
        raise InvalidRequest.of_field("id", "must be the revision's id as in the path; it cannot change")
    _check_content(context, params.content)
    changes: dict[str, Any] = {name: getattr(params, name) for name in params.model_fields_set & WRITABLE}
    if "content" in changes:
        changes["content"] = params.content or {}
    return await _change(context, params, lambda before: before.model_copy(update=changes))


async def patch(context: Context, params: PatchRevisionParams) -> Json:
    """Patch a revision; the kind of patch is that of the media type, over WebSocket that of the JSON."""
    permissions.require_project(context.rule, context.principal, params.project_id)
    is_list = isinstance(params.patch, list)
    if context.body_type and is_list != (context.body_type == JSON_PATCH):
        kind = (
            "an array, as JSON Patch is"
            if context.body_type == JSON_PATCH
            else "an object, as a merge patch is"
        )
        raise InvalidRequest.of_field("patch", f"must be {kind}")

    def change(before: Revision) -> Revision:
        # Through JSON and back: times become text, and the patch gets a document of its own to work on.
        document = orjson.loads(to_json(before, by_alias=True))
        if is_list:
            limit_bytes = context.services.settings.body_limit_bytes
            document = apply_json_patch(document, params.patch, WRITABLE, limit_bytes)
        else:
            document = apply_merge_patch(document, params.patch, WRITABLE)
        fields = _parse_fields({name: value for name, value in document.items() if name in WRITABLE})
        _check_content(context, fields.content)
        return before.model_copy(update=dict(fields))

    return await _change(context, params, change)


async def _latest(context: Context, project_id: str, *statuses: RevisionStatus) -> Json:
    """The latest revision of the first status that has one."""
    permissions.require_project(context.rule, context.principal, project_id)
    for status in statuses:
        found = await context.services.revisions.find_latest(context.principal.account, project_id, status)
        if found is not None:
            return _resource(found)
    raise NotFound(f"the project {project_id} has no such revision")


async def _change(context: Context, params: RevisionParams, change: Callable[[Revision], Revision]) -> Json:
    now = to_datetime(context.services.clock.now_ms())

    def guarded(before: Revision) -> Revision:
        require_match(context.if_match, etag_of(to_json(before, by_alias=True)))
        after = change(before)
        require_change(before, after)
        # What was stored before there was this check can be changed elsewhere.
        if after.content.get(_SOURCES) != before.content.get(_SOURCES):
            _check_sources(after.content)
        return after.model_copy(update={"updated_by": context.principal.subject, "updated_time": now})

    account, by = context.principal.account, Actor.of(context.principal)
    changed = await context.services.revisions.change(
        account, params.project_id, params.revision_id, guarded, by
    )
    return _resource(changed)


def _parse_fields(fields: dict[str, Any]) -> RevisionFields:
    """The fields of a patched document; content that was removed is empty."""
    if fields.get("content") is None:
        fields.pop("content", None)
    return validate(RevisionFields, fields)


def _check_content(context: Context, content: dict[str, Any] | None) -> None:
    compact(content, "content", context.services.settings.body_limit_bytes)


def _check_sources(content: dict[str, Any]) -> None:
    require_methods(content.get(_SOURCES), f"content.{_SOURCES}")


def _resource(revision: Revision) -> Json:
    return tagged(to_json(revision, by_alias=True))
