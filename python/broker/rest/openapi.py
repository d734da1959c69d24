"""The OpenAPI 3.1 document, generated from the registry and the settings."""

import re
from collections.abc import Sequence
from typing import Any

import broker
from broker.operations.registry import Effect, Operation, Registry
from broker.rest import streams
from broker.rest.openapi_replies import ERROR_SCHEMA, HEADERS, describe_audience, failures, replies
from broker.rest.openapi_schemas import Schema, Schemas, example_value, format_value, without_null
from broker.rest.request import FORM_TYPE
from broker.rest.routing import Endpoint, build_endpoint
from broker.settings import Settings

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": (
        "A name for this request. Within 24 hours the same key with the same request of the same caller"
        " answers the first result and does nothing again; with another request it is 409. Callers without a"
        " token are told apart by their address. Over WebSocket it is the param `idempotencyKey`."
    ),
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        # Printable Latin-1, which is all that a header has, and no space at its ends, which HTTP cuts off.
        "pattern": "^[!-~¡-¬®-ÿ]([ -~¡-¬®-ÿ]*[!-~¡-¬®-ÿ])?$",
    },
    "example": "score-2-1",
}
_MATCH_PARAMETER = {
    "name": "If-Match",
    "in": "header",
    "description": (
        "Change only what still has this `ETag`; otherwise 412. Over WebSocket it is the param `ifMatch`, and"
        " with `withEtag: true` the result has its tag as a member `etag`."
    ),
    "schema": {"type": "string"},
    "example": "*",
}
_NONE_MATCH_PARAMETER = {
    "name": "If-None-Match",
    "in": "header",
    "description": "Return 304 without a body if the resource still has this `ETag`.",
    "schema": {"type": "string"},
    "example": HEADERS["ETag"]["example"],
}
_DESCRIPTION = """\
Ordered, durable events from producers to any number of viewers. The first label of the host is the account.
Every operation is also a method of the WebSocket interface (JSON-RPC 2.0), by the same name; `subscribe`,
`respond` and `impression` exist only there. A token in the param `access_token` authenticates a single call.

Every path also takes `OPTIONS`, and `HEAD` where it takes `GET`; other methods get 405 with `Allow`. Unknown
fields and parameters are refused. The limits are those of this server's settings; a request may take
{http_timeout_s} s.

This document is `GET /api/v1/openapi.json`. The following pages are at the root of the host and need no
token: `/docs`, `/healthz` (the process is alive) and `/.well-known/jwks.json` (public keys of access tokens).
`/readyz` (everything that the server needs is available) and `/metrics` (Prometheus) are on the operators'
port."""


def openapi_document(registry: Registry, settings: Settings) -> dict[str, Any]:
    """The document of everything that `registry` serves over HTTP within the limits of `settings`."""
    schemas = Schemas(settings)
    schemas.named["Error"] = ERROR_SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    for operation in registry.routed:
        endpoint = build_endpoint(operation)
        path = paths.setdefault(endpoint.route.path, {})
        path[endpoint.route.method.lower()] = _Description(endpoint, registry, settings, schemas).whole()
    paths[streams.PATH] = streams.describe_stream(failures(streams.ERRORS, schemas))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The broker",
            "version": broker.__version__,
            "description": schemas.fill(_DESCRIPTION),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "tags": [{"name": tag} for tag in dict.fromkeys(o.tag for o in registry.routed if o.tag)],
        "components": {
            "schemas": dict(sorted(schemas.named.items())),
            "responses": dict(sorted(schemas.failures.items())),
            "headers": HEADERS,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An access token of POST /token, or an API token as it is; either may be"
                    " `access_token` in the body instead. After too many unknown API tokens from one address,"
                    " those of it that have not been seen yet are 429 for a while.",
                }
            },
        },
    }


class _Description:
    """One operation of the document."""

    def __init__(self, endpoint: Endpoint, registry: Registry, settings: Settings, schemas: Schemas) -> None:
        self._operation = operation = endpoint.operation
        self._endpoint = endpoint
        self._route = endpoint.route
        self._registry = registry
        self._settings = settings
        self._schemas = schemas
        self._example = operation.example or {}
        self._params = schemas.of_params(operation.params, keeps_absent=endpoint.route.method == "PUT")

    def whole(self) -> dict[str, Any]:
        """The operation object."""
        operation = self._operation
        described: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.summary,
            "description": self._description(),
            "tags": [operation.tag],
            "security": _security(operation),
            "parameters": self._parameters(),
            "responses": replies(self._endpoint, self._schemas, is_shadowed=self._is_shadowed()),
        }
        links = self._links()
        if links:
            described["responses"][str(self._route.status)]["links"] = links
        body = self._body() if self._endpoint.has_body else None
        if body:
            described["requestBody"] = body
        return described

    def _description(self) -> str:
        operation = self._operation
        parts = [self._schemas.fill(self._route.description)]
        parts.append(describe_audience(operation))
        names = ", ".join(f"`{name}`" for name in (operation.name, *operation.former_names))
        parts.append(f"WebSocket: {names}.")
        return " ".join(part for part in parts if part)

    def _parameters(self) -> list[dict[str, Any]]:
        endpoint, properties = self._endpoint, self._params.get("properties", {})
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": without_null(properties[name])}
            for name in endpoint.names
        ]
        if self._route.is_proxy:
            schema: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
            parameters.append(
                {
                    "name": "query",
                    "in": "query",
                    "description": "Parameters to send to the data source in place of its own.",
                    "style": "form",
                    "explode": True,
                    "schema": schema,
                }
            )
        for name in () if endpoint.has_body else endpoint.query:
            schema = without_null(properties[name])
            if schema.get("type") == "array":
                schema = {"minItems": 1} | schema  # an empty text is a list of one empty text
            required = name in self._params.get("required", [])
            parameters.append(
                {"name": name, "in": "query", "required": required, "schema": schema, "explode": False}
            )
        for parameter in parameters:
            name = str(parameter["name"])
            if name in self._example:
                parameter["example"] = example_value(parameter["schema"], self._example[name])
        if self._operation.effect is Effect.KEYED:
            parameters.append(_KEY_PARAMETER)
        if self._operation.honours_if_match:
            parameters.append(_MATCH_PARAMETER)
        if self._route.method == "GET" and self._operation.has_etag:
            parameters.append(_NONE_MATCH_PARAMETER)
        return parameters

    def _body(self) -> dict[str, Any]:
        route = self._route
        schema = self._body_schema()
        if not schema["properties"] and not route.form:
            return {}
        types = [*route.consumes, *([FORM_TYPE] if route.form else [])]
        example = {k: v for k, v in self._example.items() if k in schema["properties"]}
        if route.whole_body is None:
            content = {kind: {"schema": schema, "example": example} for kind in types}
            if route.form:
                content[FORM_TYPE] = {"schema": _form_schema(schema), "example": example}
            is_required = not schema.keys().isdisjoint({"required", "oneOf", "anyOf"})
        else:
            whole, example = schema["properties"][route.whole_body], example[route.whole_body]
            content = {kind: _alternative(whole, kind, example) for kind in types}
            is_required = route.whole_body in schema.get("required", [])
        limit = self._operation.limit or (
            self._settings.import_limit_bytes if route.streams_body else self._settings.body_limit_bytes
        )
        text = f"At most {format_value(limit)} bytes."
        return {"description": text, "required": is_required, "content": content}

    def _body_schema(self) -> Schema:
        names = set(self._endpoint.names) - set(self._route.echoed)
        schema: Schema = {
            "type": "object",
            "properties": {k: v for k, v in self._params.get("properties", {}).items() if k not in names},
            "additionalProperties": False,
        }
        for name in self._route.echoed:
            schema["properties"][name] = {"anyOf": [schema["properties"][name], {"type": "null"}]}
        required = [name for name in self._params.get("required", []) if name not in self._endpoint.names]
        required = [*self._route.repeated, *required]
        if required:
            schema["required"] = required
        for alternatives in ("oneOf", "anyOf"):
            if alternatives in self._params:
                schema[alternatives] = self._params[alternatives]
        return schema

    def _is_shadowed(self) -> bool:
        """Whether a value of a placeholder makes the path another one that lacks the method.

        So `PUT /programs/filter` is 405, although `filter` could be the id in `PUT /programs/{programId}`.
        """
        own = self._route.path.split("/")
        methods: dict[str, set[str]] = {}
        for other in self._registry.routed:
            if other.route is not None:
                methods.setdefault(other.route.path, set()).add(other.route.method)
        return any(
            path != self._route.path and self._route.method not in known and _covers(own, path.split("/"))
            for path, known in methods.items()
        )

    def _links(self) -> dict[str, Any]:
        """What can be done with a created resource: the operations at its `Location` and below."""
        location = self._route.location
        if location is None or self._route.locates_itself:
            return {}
        fields = _PLACEHOLDER.findall(location)
        links: dict[str, Any] = {}
        for other in self._registry.routed:
            assert other.route is not None, "`routed` has those with a route"
            path = other.route.path
            names = _PLACEHOLDER.findall(path)
            if len(names) == len(fields) and _shape(path).startswith(_shape(location)):
                values = {name: f"$response.body#/{field}" for name, field in zip(names, fields, strict=True)}
                links[other.name.replace("/", ".")] = {"operationId": other.name, "parameters": values}
        return links


def _form_schema(schema: Schema) -> Schema:
    """The schema of a form, where nothing is null: what is absent is left out or empty."""
    return schema | {"properties": {k: without_null(v) for k, v in schema["properties"].items()}}


def _alternative(schema: Schema, media_type: str, example: Any) -> dict[str, Any]:
    """The content of a media type: the schema's alternative that is for it alone, or the whole schema."""
    for option in schema.get("anyOf", []):
        if option.get("x-media-type") == media_type:
            return {"schema": option, "example": option["examples"][0]}
    return {"schema": schema, "example": example}


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    """A list with an empty entry means that the token may be left out."""
    return [{"bearer": []}] if operation.audience is not None else [{}, {"bearer": []}]


def _covers(template: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path has literals where the template has placeholders; it is served before the template."""
    if len(template) != len(path) or list(template) == list(path):
        return False
    pairs = list(zip(template, path, strict=True))
    return all(own == other or own.startswith("{") for own, other in pairs) and any(
        own.startswith("{") and not other.startswith("{") for own, other in pairs
    )


def _shape(path: str) -> str:
    """A path without the names of its placeholders."""
    return _PLACEHOLDER.sub("{}", path)
