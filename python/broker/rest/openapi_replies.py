"""The responses of an operation in the OpenAPI document: successes, errors, and their headers."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from broker.domain.permission_table import Verdict
from broker.errors import (
    BrokerError,
    Conflict,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    PreconditionFailed,
    SlowDown,
    Unauthenticated,
    Unavailable,
    UnderMaintenance,
    UnsupportedMediaType,
)
from broker.operations.registry import Effect, Operation
from broker.resources.event_lists import NDJSON
from broker.rest.openapi_schemas import Schema, Schemas
from broker.rest.request import JSON_TYPE
from broker.rest.result_examples import EVENT, examples_of
from broker.rest.routing import Endpoint

ERROR_SCHEMA: Schema = {
    "type": "object",
    "description": "The form of every error.",
    "required": ["error", "error_description", "status"],
    "properties": {
        "error": {"type": "string", "description": "Stable name of the error."},
        "error_description": {"type": "string", "description": "A description of the error for people."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "errors": {
            "type": "array",
            "description": "The invalid fields, if any.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
HEADERS: dict[str, Schema] = {
    "Allow": {
        "description": "The methods that the path supports.",
        "required": True,
        "schema": {"type": "string"},
        "example": "GET, HEAD, OPTIONS",
    },
    "Cache-Control": {
        "description": "Whether and for how long caches may reuse the response.",
        "required": True,
        "schema": {"type": "string"},
        "example": "no-store",
    },
    "Content-Disposition": {
        "description": "The name of the download.",
        "required": True,
        "schema": {"type": "string"},
        "example": 'attachment; filename="final-2026-events.json"',
    },
    "ETag": {
        "description": "Identifies this state of the resource, for `If-Match` and `If-None-Match`.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[^"]+"$'},
        "example": '"5d41402abc4b2a76"',
    },
    "Link": {
        "description": "With `rel=next`, the URL of the next page (RFC 8288); absent after the last one.",
        "schema": {"type": "string"},
        "example": '</api/v1/programs/final-2026/events?limit=100&cursor=Li4u>; rel="next"',
    },
    "Location": {
        "description": "URL of the created resource.",
        "schema": {"type": "string", "pattern": "^/api/v1/"},
        "example": "/api/v1/programs/final-2026",
    },
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
        "example": 3,
    },
    "WWW-Authenticate": {
        "description": "How to authenticate.",
        "required": True,
        "schema": {"type": "string"},
        "example": "Bearer",
    },
    "X-Upstream-Status": {
        "description": "The upstream's status; marks a response of the upstream, not of the broker.",
        "required": True,
        "schema": {"type": "integer", "minimum": 200, "maximum": 599},
        "example": 200,
    },
    "X-Request-Id": {
        "description": "The id of the request: the caller's, of 1 to 128 printable characters, or a generated"
        " one.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
        "example": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f",
    },
}

_ALWAYS = ("Cache-Control", "X-Request-Id")
# One event a line, each the JSON of an `Event`.
_LINES = {"schema": {"type": "string"}, "example": f"{orjson.dumps(EVENT).decode()}\n"}
_HEADERS_OF: Mapping[type[BrokerError], str] = {
    MethodNotAllowed: "Allow",
    SlowDown: "Retry-After",
    Unauthenticated: "WWW-Authenticate",
    Unavailable: "Retry-After",
}
# The account may be unknown, the token bad or one of too many and a body unwelcome, whatever the operation.
_ERRORS = (
    InvalidRequest,
    Unauthenticated,
    NotFound,
    PayloadTooLarge,
    UnsupportedMediaType,
    SlowDown,
    InternalError,
    Unavailable,
)


def replies(endpoint: Endpoint, schemas: Schemas, *, is_shadowed: bool) -> dict[str, Any]:
    """The `responses` of an operation; schemas of its errors are added to the named ones.

    Args:
        is_shadowed: whether a path that this one's template covers is another's, which lacks the method.
    """
    operation, route = endpoint.operation, endpoint.route
    found = {str(route.status): _success(endpoint, schemas, operation.summary, creates=True)}
    for status, text in route.also.items():
        found[str(status)] = _success(endpoint, schemas, text, creates=False)
    if route.method == "GET" and operation.has_etag:
        found["304"] = {
            "description": "The caller has the current state, according to its `If-None-Match`.",
            "headers": _headers(*_ALWAYS, "ETag"),
        }
    errors = errors_of(operation)
    if is_shadowed and MethodNotAllowed not in errors:
        errors.append(MethodNotAllowed)
    found |= failures(errors, schemas)
    if route.is_proxy:
        found["default"] = _success(endpoint, schemas, "Any other response of the upstream.", creates=False)
    return found


def failures(errors: Iterable[type[BrokerError]], schemas: Schemas) -> dict[str, Any]:
    """Status → response, for each status of these errors; their schemas are added to the named ones."""
    ordered = sorted(errors, key=lambda kind: kind.name)
    return {
        str(status): _failure([kind for kind in ordered if kind.status == status], schemas)
        for status in sorted({kind.status for kind in ordered})
    }


def errors_of(operation: Operation) -> list[type[BrokerError]]:
    """What the operation may answer, ordered by name."""
    errors: set[type[BrokerError]] = {*_ERRORS, *operation.errors}
    if operation.route is None or not operation.route.is_proxy:
        errors.add(NotAcceptable)
    if any(Verdict.E403 in row for row in operation.rule.rows.values()):
        errors.add(InsufficientScope)
    if operation.effect is Effect.KEYED:
        errors.add(Conflict)
    if operation.effect is not Effect.NONE:
        errors |= {OutcomeUnknown, UnderMaintenance}
    if operation.honours_if_match:
        errors.add(PreconditionFailed)
    return sorted(errors, key=lambda kind: kind.name)


def describe_audience(operation: Operation) -> str:
    """Who may call the operation, as a sentence of its description."""
    if operation.audience is None:
        return "Open to callers without a token."
    return f"For the roles {', '.join(sorted(operation.audience))}."


def error_example(kind: type[BrokerError]) -> dict[str, Any]:
    """The body of an error."""
    faults = [{"field": "name", "message": "is required"}] if kind is InvalidRequest else []
    text = "name: is required" if faults else _text(kind)
    return {"error": kind.name, "error_description": text, "status": kind.status} | (
        {"errors": faults} if faults else {}
    )


def _success(endpoint: Endpoint, schemas: Schemas, text: str, *, creates: bool) -> dict[str, Any]:
    operation, route = endpoint.operation, endpoint.route
    tag = ("ETag",) if operation.has_etag else ()
    headers = _headers(*_ALWAYS, *tag, *(name for name in route.headers if name != "Location" or creates))
    if route.location and creates:
        headers["Location"] = HEADERS["Location"] | {"required": not route.locates_itself}
    success: dict[str, Any] = {"description": text, "headers": headers}
    if route.is_proxy:
        return success | {"content": {"*/*": {"example": {"standings": []}}}}
    if operation.result is not None:
        content = {"schema": schemas.of_result(operation.result)} | examples_of(operation.result)
        success["content"] = {kind: _LINES if kind == NDJSON else content for kind in route.produces}
    return success


def _failure(kinds: list[type[BrokerError]], schemas: Schemas) -> dict[str, Any]:
    """A reference to the reply that tells one of these errors, which all have one status."""
    names = [f"{kind.__name__.removesuffix('Error')}Error" for kind in kinds]
    for name, kind in zip(names, kinds, strict=True):
        schemas.named[name] = {
            "description": _text(kind),
            "allOf": [{"$ref": "#/components/schemas/Error"}],
            "type": "object",
            "properties": {"error": {"const": kind.name}, "status": {"const": kind.status}},
        }
    options = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    special = [name for parent, name in _HEADERS_OF.items() if any(issubclass(one, parent) for one in kinds)]
    reply = "Or".join(names)
    schemas.failures[reply] = {
        "description": " ".join(f"`{kind.name}`: {_text(kind)}" for kind in kinds),
        "headers": _headers(*_ALWAYS, *special),
        "content": {
            JSON_TYPE: {
                "schema": options[0] if len(options) == 1 else {"oneOf": options},
                "examples": {kind.name: {"value": error_example(kind)} for kind in kinds},
            }
        },
    }
    return {"$ref": f"#/components/responses/{reply}"}


def _text(kind: type[BrokerError]) -> str:
    return (kind.__doc__ or kind.name).splitlines()[0]


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
