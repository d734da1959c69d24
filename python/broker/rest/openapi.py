"""The OpenAPI 3.1 document, made from the registry: nothing in it is written twice."""

from typing import Any

from pydantic import TypeAdapter

import broker
from broker.errors import (
    BrokerError,
    Conflict,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    PayloadTooLarge,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from broker.operations.registry import Operation, Registry
from broker.rest.routing import Endpoint, build_endpoint

_REFERENCE = "#/components/schemas/{model}"
_ALWAYS = (InvalidRequest, MethodNotAllowed, NotAcceptable, InternalError, Unavailable)
_WITH_BODY = (PayloadTooLarge, UnsupportedMediaType)
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "error_description", "status"],
    "properties": {
        "error": {"type": "string", "description": "Stable name of the error."},
        "error_description": {"type": "string", "description": "What is wrong, for people."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "errors": {
            "type": "array",
            "description": "The fields at fault, where fields are.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": (
        "A name for this request. Within 24 hours the same key with the same request answers the first"
        " result and does nothing again; with another request it is 409."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_MATCH_PARAMETER = {
    "name": "If-Match",
    "in": "header",
    "description": (
        "Change only what still has this `ETag`; otherwise 412. Over WebSocket it is the param `ifMatch`, and"
        " with `withEtag: true` the result has its tag as a member `etag`."
    ),
    "schema": {"type": "string"},
}
_DESCRIPTION = """\
Ordered, durable events from producers to any number of viewers. The account is the first label of the host.
The same operations, by the same names, are methods of the WebSocket interface (JSON-RPC 2.0)."""


def openapi_document(registry: Registry) -> dict[str, Any]:
    """The document of everything that `registry` serves over HTTP."""
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for operation in registry.operations:
        path = paths.setdefault(operation.route.path, {})
        path[operation.route.method.lower()] = _operation(build_endpoint(operation), schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "The broker", "version": broker.__version__, "description": _DESCRIPTION},
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "tags": [{"name": tag} for tag in dict.fromkeys(o.tag for o in registry.operations if o.tag)],
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "An access token of POST /token, or `access_token` in the body.",
                }
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    operation = endpoint.operation
    params = operation.params.model_json_schema(by_alias=True, ref_template=_REFERENCE)
    schemas.update(params.pop("$defs", {}))
    described = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _description(operation),
        "tags": [operation.tag] if operation.tag else [],
        "security": _security(operation),
        "parameters": _parameters(endpoint, params),
        "responses": _responses(operation, schemas),
    }
    if endpoint.has_body:
        body = _body(endpoint, params)
        if body:
            described["requestBody"] = body
    return described


def _description(operation: Operation) -> str:
    parts = [operation.route.description]
    if operation.audience is None:
        parts.append("Open to callers without a token.")
    else:
        parts.append(f"For the roles {', '.join(sorted(operation.audience))}.")
    names = ", ".join(f"`{name}`" for name in (operation.name, *operation.former_names))
    parts.append(f"WebSocket: {names}.")
    return " ".join(part for part in parts if part)


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    """A list with an empty entry means that the token may be left out."""
    return [{"bearer": []}] if operation.audience is not None else [{}, {"bearer": []}]


def _parameters(endpoint: Endpoint, params: dict[str, Any]) -> list[dict[str, Any]]:
    properties, required = params.get("properties", {}), params.get("required", [])
    example = endpoint.operation.example or {}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _bare(properties.get(name, {}))}
        for name in endpoint.names
    ]
    if endpoint.operation.route.is_proxy:
        schema = {"type": "object", "additionalProperties": {"type": "string"}}
        query = {"name": "query", "in": "query", "style": "form", "explode": True, "schema": schema}
        parameters.append(query)
    for name in endpoint.query:
        parameter = {"name": name, "in": "query", "required": name in required}
        parameters.append(parameter | {"schema": _bare(properties[name]), "explode": False})
    for parameter in parameters:
        if parameter["name"] in example:
            parameter["example"] = example[str(parameter["name"])]
    if endpoint.operation.idempotent_by_key:
        parameters.append(_KEY_PARAMETER)
    if endpoint.operation.honours_if_match:
        parameters.append(_MATCH_PARAMETER)
    return parameters


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema: it is absent or it is there, but it is never null."""
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(options) != 1:
        return schema
    rest: dict[str, Any] = {
        key: value for key, value in schema.items() if key != "anyOf" and value is not None
    }
    return {**rest, **options[0]}


def _body(endpoint: Endpoint, params: dict[str, Any]) -> dict[str, Any]:
    properties = {k: v for k, v in params.get("properties", {}).items() if k not in endpoint.names}
    required = [name for name in params.get("required", []) if name not in endpoint.names]
    required = [*endpoint.operation.route.repeated, *required]
    if not properties and not endpoint.operation.route.form:
        return {}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    whole = endpoint.operation.route.whole_body
    if whole is not None:
        schema = properties[whole]
    content: dict[str, Any] = {"schema": schema}
    example = {k: v for k, v in (endpoint.operation.example or {}).items() if k in properties}
    if example:
        content["example"] = example
    if whole in example:
        content["example"] = example[whole]
    types = list(endpoint.operation.route.consumes)
    if endpoint.operation.route.form:
        types.append("application/x-www-form-urlencoded")
    return {"required": bool(required), "content": dict.fromkeys(types, content)}


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary}
    if operation.result is not None:
        schema = TypeAdapter(operation.result).json_schema(
            mode="serialization", by_alias=True, ref_template=_REFERENCE
        )
        schemas.update(schema.pop("$defs", {}))
        success["content"] = {kind: {"schema": schema} for kind in operation.route.produces}
    if operation.route.location:
        success["headers"] = {"Location": {"schema": {"type": "string"}}}
    responses = {str(operation.route.status): success}
    for kind in sorted(set(_errors(operation)), key=lambda kind: (kind.status, kind.name)):
        text = (kind.__doc__ or kind.name).splitlines()[0]
        known = responses.setdefault(str(kind.status), _error(""))
        known["description"] = f"{known['description']} `{kind.name}`: {text}".strip()
    return responses


def _errors(operation: Operation) -> list[type[BrokerError]]:
    errors: list[type[BrokerError]] = [*_ALWAYS, Unauthenticated, *operation.errors]
    if operation.audience is not None:
        errors.append(InsufficientScope)
    if operation.route.method in ("POST", "PUT", "PATCH"):
        errors += _WITH_BODY
    if operation.idempotent_by_key:
        errors.append(Conflict)
    if operation.honours_if_match:
        errors.append(PreconditionFailed)
    return errors


def _error(description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": description, "content": content}
