"""The messages of the AsyncAPI document: calls, their results and errors, and notifications.

Each payload is a whole JSON-RPC 2.0 message, so that what was received can be validated as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.domain.idempotency import MAX_KEY_CHARACTERS
from broker.domain.values import Model
from broker.errors import (
    BrokerError,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    UnsupportedMediaType,
)
from broker.operations.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    MAX_ID_BYTES,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from broker.operations.registry import Effect, Operation
from broker.resources.following import (
    ChannelSubscribed,
    Subscribed,
    SubscribeParams,
    TargetParams,
    Unsubscribed,
)
from broker.resources.notifications import Notification
from broker.rest.openapi_replies import error_example, errors_of
from broker.rest.openapi_schemas import Schema, Schemas, example_value, without_null
from broker.rest.result_examples import EPOCH, NOTIFICATION_EXAMPLES, examples_of
from broker.rest.streams import ERRORS as STREAM_ERRORS

_VERSION: Schema = {"const": "2.0"}
_ID: Schema = {
    "type": ["string", "number", "null"],
    "description": f"The caller's own, at most {MAX_ID_BYTES} bytes as JSON; it comes back with the answer. A"
    " call without one is not answered.",
}
_CORRELATION = {"location": "$message.payload#/id"}
_TOKEN: Schema = {
    "type": "string",
    "description": "Authenticates this call; with `subscribe` and `login` it authenticates the connection.",
}
_KEY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY_CHARACTERS,
    "description": "Within 24 hours the same key with the same call answers the first result and does nothing"
    " again; over HTTP it is `Idempotency-Key`.",
}
_MATCH: Schema = {
    "type": "string",
    "description": "Make the change only if the resource still has this tag; over HTTP it is `If-Match`.",
}
_WITH_ETAG: Schema = {
    "type": "boolean",
    "description": "Whether the result contains its tag as the member `etag`.",
}
_WITH_CURSOR: Schema = {
    "type": "boolean",
    "description": "Whether the result is `{items, cursor}`, for lists in pages.",
}
# The reply of a data source's server.
_FORWARDED: Schema = {
    "type": "object",
    "required": ["status", "contentType", "body"],
    "properties": {
        "status": {"type": "integer"},
        "contentType": {"type": "string"},
        "body": {"description": "JSON if possible, otherwise text, otherwise base64."},
        "encoding": {"const": "base64"},
    },
    "additionalProperties": False,
}
_FORWARDED_EXAMPLE = {"status": 200, "contentType": "application/json", "body": {"standings": []}}
_ONE_TARGET = [{"required": ["programId"]}, {"required": ["channel"]}]
# Here are no paths, methods and media types.
_OF_HTTP = {MethodNotAllowed, NotAcceptable, UnsupportedMediaType}
# A subscription is refused as an event stream is.
_FOLLOW_ERRORS = sorted(set(STREAM_ERRORS) - _OF_HTTP, key=lambda kind: kind.__name__)
PROTOCOL_ERRORS = (
    (PARSE_ERROR, "Parse error", "The message is not JSON, is nested too deeply or has too many values."),
    (
        INVALID_REQUEST,
        "Invalid Request",
        "The message is not a request of JSON-RPC 2.0, or the batch is too large.",
    ),
    (METHOD_NOT_FOUND, "Method not found", "There is no such method."),
)


@dataclass(frozen=True, slots=True)
class _Follow:
    """One of the two methods that no operation is behind."""

    summary: str
    params: type[Model]
    results: tuple[type[Model], ...]
    example: Mapping[str, Any]
    result_example: Mapping[str, Any]


FOLLOWS: Mapping[str, _Follow] = {
    "subscribe": _Follow(
        "Follow a program or a channel, from a position or from now on",
        SubscribeParams,
        (Subscribed, ChannelSubscribed),
        {"programId": "final-2026", "since": {"epoch": EPOCH, "seq": 41}},
        {"programId": "final-2026", "epoch": EPOCH, "seq": 41, "recovered": True, "events": []},
    ),
    "unsubscribe": _Follow(
        "Stop following a program or a channel",
        TargetParams,
        (Unsubscribed,),
        {"programId": "final-2026"},
        {"programId": "final-2026"},
    ),
}


class Messages:
    """Makes messages, and gathers them by the name that each has in the document's channel."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self.named: dict[str, dict[str, Any]] = {}

    def add_operation(self, operation: Operation) -> tuple[str, list[str]]:
        """Add what calls an operation and what may answer it; returns the names of both."""
        keeps_absent = operation.route is not None and operation.route.method == "PUT"
        params = self._schemas.of_params(operation.params, keeps_absent=keeps_absent)
        params["properties"] = params.get("properties", {}) | _common_params(operation)
        call = self._add_call(
            (operation.name, *operation.former_names),
            operation.summary,
            params,
            _params_example(operation, params),
        )
        example = _FORWARDED_EXAMPLE if _is_forwarded(operation) else _example_of(operation)
        return call, self._add_answers(
            operation.name, self._result_of(operation), example, errors_over_socket(operation)
        )

    def add_follow(self, method: str) -> tuple[str, list[str]]:
        """Add `subscribe` or `unsubscribe`, as `add_operation` adds an operation."""
        follow = FOLLOWS[method]
        params = self._schemas.of_params(follow.params, keeps_absent=False)
        params["properties"]["access_token"] = _TOKEN
        params["oneOf"] = _ONE_TARGET
        options = [self._schemas.of_result(result) for result in follow.results]
        result = options[0] if len(options) == 1 else {"anyOf": options}
        call = self._add_call((method,), follow.summary, params, follow.example)
        return call, self._add_answers(method, result, follow.result_example, _FOLLOW_ERRORS)

    def add_notification(self, told: Notification) -> str:
        """Add a notification; returns its name, which is its method."""
        params = self._schemas.of_result(told.params)
        fields = {"jsonrpc": _VERSION, "method": {"const": told.method}, "params": params}
        example = {"jsonrpc": "2.0", "method": told.method, "params": NOTIFICATION_EXAMPLES[told.method]}
        self._add(told.method, told.method, told.summary, _object(fields), example)
        self.named[told.method] |= {"x-of": list(told.of) or ["connection"], "x-has-position": told.has_place}
        return told.method

    def add_protocol_errors(self) -> list[str]:
        """Add the errors that JSON-RPC 2.0 has beside those of operations; returns their names."""
        names = []
        for code, message, meaning in PROTOCOL_ERRORS:
            names.append("error." + message.title().replace(" ", ""))
            fields: dict[str, Schema] = {"code": {"const": code}, "message": {"const": message}}
            error = _object(fields, data={"$ref": "#/components/schemas/Error"})
            self._add_error(names[-1], meaning, error, {"code": code, "message": message})
        return names

    def _add_call(
        self, methods: Sequence[str], summary: str, params: Schema, example: Mapping[str, Any]
    ) -> str:
        name = key_of(methods[0])
        fields = {
            "jsonrpc": _VERSION,
            "method": {"const": methods[0]} if len(methods) == 1 else {"enum": list(methods)},
        }
        is_optional = not params.get("required") and "oneOf" not in params
        optional = {"id": _ID} | ({"params": params} if is_optional else {})
        payload = _object(fields | ({} if is_optional else {"params": params}), **optional)
        call = {"jsonrpc": "2.0", "id": 1, "method": methods[0]} | ({"params": example} if example else {})
        self._add(name, methods[0], summary, payload, call, answers=True)
        return name

    def _add_answers(
        self, method: str, result: Schema, example: Any, errors: Sequence[type[BrokerError]]
    ) -> list[str]:
        name = f"{key_of(method)}.result"
        payload = _object({"jsonrpc": _VERSION, "id": _ID, "result": result})
        answer = {"jsonrpc": "2.0", "id": 1, "result": example}
        self._add(name, f"Result of {method}", f"What {method} answers.", payload, answer, answers=True)
        return [name, *map(self._error_of, errors)]

    def _error_of(self, kind: type[BrokerError]) -> str:
        """The name of the message that tells an error; the message is added where it is new."""
        name = f"error.{key_of(kind.name)}"
        if name not in self.named:
            code = INVALID_PARAMS if kind is InvalidRequest else kind.status
            told = {"error": {"const": kind.name}, "status": {"const": kind.status}}
            body: Schema = {
                "allOf": [{"$ref": "#/components/schemas/Error"}],
                "type": "object",
                "properties": told | {"retryAfter": _RETRY_AFTER},
            }
            error = _object({"code": {"const": code}, "message": {"const": kind.name}, "data": body})
            meaning = (kind.__doc__ or kind.name).splitlines()[0]
            example = {"code": code, "message": kind.name, "data": error_example(kind)}
            self._add_error(name, meaning, error, example)
        return name

    def _add_error(self, name: str, meaning: str, error: Schema, example: Mapping[str, Any]) -> None:
        payload = _object({"jsonrpc": _VERSION, "id": _ID, "error": error})
        whole = {"jsonrpc": "2.0", "id": 1, "error": example}
        self._add(name, f"{example['code']} {example['message']}", meaning, payload, whole, answers=True)

    def _add(
        self,
        name: str,
        title: str,
        summary: str,
        payload: Schema,
        example: Mapping[str, Any],
        *,
        answers: bool = False,
    ) -> None:
        message = {"name": name, "title": title, "summary": summary, "contentType": "application/json"}
        correlation = {"correlationId": _CORRELATION} if answers else {}
        self.named[name] = message | correlation | {"payload": payload, "examples": [{"payload": example}]}

    def _result_of(self, operation: Operation) -> Schema:
        if _is_forwarded(operation):
            return _FORWARDED
        if operation.result is None:
            return {"type": "null"}
        schema = self._schemas.of_result(operation.result)
        if operation.has_etag:
            # What `withEtag` adds stands inside the resource, which has no other members than its own.
            resource = self._schemas.named[schema["$ref"].rpartition("/")[2]]
            tag = {"etag": {"type": "string", "description": "Present if `withEtag` was set."}}
            return resource | {"properties": resource["properties"] | tag}
        if operation.has_cursor:
            cursor = {
                "type": ["string", "null"],
                "description": "Cursor of the next page; null after the last one.",
            }
            return {"anyOf": [schema, _object({"items": schema, "cursor": cursor})]}
        return schema


_RETRY_AFTER: Schema = {
    "type": "integer",
    "minimum": 1,
    "description": "Seconds to wait before a retry; over HTTP it is `Retry-After`.",
}


def key_of(method: str) -> str:
    """A method or an error as a name of which a reference can be made."""
    return method.replace("/", ".").replace(" ", "_")


def errors_over_socket(operation: Operation) -> list[type[BrokerError]]:
    """What an operation may answer over WebSocket, ordered by name."""
    return [kind for kind in errors_of(operation) if kind not in _OF_HTTP]


def _common_params(operation: Operation) -> dict[str, Schema]:
    """The params that do not depend on what the operation does."""
    common = {"access_token": _TOKEN}
    if operation.effect is Effect.KEYED:
        common["idempotencyKey"] = _KEY
    if operation.honours_if_match:
        common["ifMatch"] = _MATCH
    if operation.has_etag:
        common["withEtag"] = _WITH_ETAG
    if operation.has_cursor:
        common["withCursor"] = _WITH_CURSOR
    return common


def _is_forwarded(operation: Operation) -> bool:
    return operation.route is not None and operation.route.is_proxy


def _params_example(operation: Operation, params: Schema) -> dict[str, Any]:
    """The example of the params, with lists where a query has them with commas."""
    properties = params["properties"]
    example = operation.example or {}
    return {name: example_value(without_null(properties[name]), value) for name, value in example.items()}


def _example_of(operation: Operation) -> Any:
    if operation.result is None:
        return None
    found = examples_of(operation.result)
    return found["example"] if "example" in found else next(iter(found["examples"].values()))["value"]


def _object(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object that has these members and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": dict(required) | optional,
        "additionalProperties": False,
    }
