"""The routes of application revisions."""

from broker.domain.revisions import LiveRevision, Revision
from broker.operations.registry import Operation, OperationHandler, Route, of_resource
from broker.resources import revisions

_AT = "/projects/{projectId}/application"
_PROJECT = {"projectId": "football"}
_ID = {"revisionId": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"}
_REVISION = _PROJECT | _ID
_NEW = _PROJECT | {"title": "Season 2026", "content": {"theme": "dark"}}
_LATEST = "The latest one is the one that was made last."


def _get(
    name: str,
    path: str,
    summary: str,
    handler: OperationHandler,
    example: dict[str, str],
    description: str = "",
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        result=Revision,
        handler=handler,
        route=Route("GET", f"{_AT}{path}", description=description),
        example=_PROJECT | example,
        has_etag=True,
    )


def _create(name: str, path: str, summary: str) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        result=Revision,
        handler=revisions.create,
        route=Route("POST", path, status=201, location=f"{_AT}/revisions/{{id}}"),
        example=_NEW,
        has_etag=True,
    )


OPERATIONS = of_resource(
    "Application revisions",
    _get(
        "getPublishedRevision", "", "Get the latest published revision", revisions.get_published, {}, _LATEST
    ),
    _get(
        "getRevisionByStatus",
        "/status/{status}",
        "Get the latest revision of a status",
        revisions.get_by_status,
        {"status": "draft"},
        _LATEST,
    ),
    _get(
        "getLatestRevision",
        "/version/latest",
        "Get the latest published revision, or the latest draft when none is published",
        revisions.get_latest,
        {},
        _LATEST,
    ),
    _get(
        "getRevisionByVersion",
        "/version/{version}",
        "Get a revision by its id or its version",
        revisions.get_by_version,
        {"version": "1"},
        "An id takes precedence over a version.",
    ),
    Operation(
        name="getLiveRevision",
        summary="Get the end-user view of a published revision",
        result=LiveRevision,
        handler=revisions.get_live,
        route=Route(
            "GET",
            f"{_AT}/live/{{version}}",
            description="By id or version; `latest` is the most recently created published revision. Data"
            " sources have only `id`, `name` and `type`. Members named like a credential are removed at any"
            " depth.",
        ),
        example=_PROJECT | {"version": "1"},
        has_etag=True,
    ),
    Operation(
        name="listRevisions",
        summary="List the revisions of a project, newest first",
        result=list[Revision],
        handler=revisions.list_revisions,
        is_list=True,
        route=Route("GET", f"{_AT}/revisions"),
        example=_PROJECT | {"status": "draft"},
    ),
    _create("createRevision", f"{_AT}/revisions", "Create a revision"),
    _create(
        "createProjectRevision", "/projects/{projectId}/revisions", "Create a revision, by a shorter path"
    ),
    _get("getRevision", "/revisions/{revisionId}", "Get a revision", revisions.get, _ID),
    Operation(
        name="updateRevision",
        summary="Change a revision",
        result=Revision,
        handler=revisions.update,
        route=Route(
            "PUT",
            f"{_AT}/revisions/{{revisionId}}",
            description="The content of a published revision cannot change, and it cannot become a draft.",
        ),
        honours_if_match=True,
        example=_REVISION | {"status": "published"},
        has_etag=True,
    ),
    Operation(
        name="patchRevision",
        summary="Patch a revision",
        result=Revision,
        handler=revisions.patch,
        route=Route(
            "PATCH",
            f"{_AT}/revisions/{{revisionId}}",
            description="A JSON Patch (RFC 6902) or JSON Merge Patch (RFC 7396) of `title`, `description`,"
            " `version`, `status` and `content`. Over WebSocket the patch is the param `patch`.",
            consumes=(revisions.JSON_PATCH, revisions.MERGE_PATCH),
            whole_body="patch",
        ),
        honours_if_match=True,
        example=_REVISION | {"patch": {"title": "Season 2027"}},
        has_etag=True,
    ),
)
