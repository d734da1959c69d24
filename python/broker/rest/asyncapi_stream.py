"""The channel of event streams in the AsyncAPI document.

A message is one event of `text/event-stream` (WHATWG HTML, section 9.2): its payload is what stands in
`data`, its headers are the other lines, `event`, `id` and `retry`. The request is a message too, which has
headers alone.
"""

from collections.abc import Iterable
from typing import Any

from broker.resources.notifications import (
    CLOSES,
    STREAM_ENDS,
    STREAM_NOTIFICATIONS,
    STREAM_REFUSALS,
    Close,
    Notification,
)
from broker.rest.asyncapi_tables import close_rows, refusal_rows
from broker.rest.openapi_schemas import Schema, Schemas
from broker.rest.result_examples import EPOCH, NOTIFICATION_EXAMPLES
from broker.rest.streams import PATH

STREAM = "stream"
STREAM_OPERATION = "streamProgramEvents"
STREAM_LIMITS = (
    "ws_handshake_s",
    "ws_ping_s",
    "ws_alive_s",
    "ws_lag_bytes",
    "ws_lag_s",
    "ws_connections",
    "ws_connections_per_address",
    "history_events",
    "history_hours",
    "history_bytes",
    "drain_s",
)
"""Of the settings those that a reader of a stream meets."""

_REQUEST = "request"
_HERE = f"#/channels/{STREAM}"
_DESCRIPTION = """\
The notifications of one program, as `subscribe` with its `programId` gives them over a WebSocket: in the same
order, with the same rights and limits. The first event is `subscribed`; what was missed comes after it; the
last is `closed`, unless the connection is lost. A comment comes at least every `BROKER_WS_PING_S`. Nothing is
to be sent after the request.

`docs/streams.md` explains it."""
ACCESS_TOKEN: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "A token, if the client cannot send the header.",
}
AUTHORIZATION: Schema = {
    "type": "string",
    "pattern": "^[Bb][Ee][Aa][Rr][Ee][Rr] .+",
    "description": "Takes precedence over the query.",
}
ORIGIN: Schema = {
    "type": "string",
    "description": "Must be allowed by the account, if the account restricts origins.",
}
_POSITION: Schema = {
    "type": "string",
    "pattern": "^[^:]{1,64}:[0-9]{1,16}(:.{1,64})?$",
    "description": "A position: `EPOCH:SEQ`, or `EPOCH:SEQ:ID` if the message there is known.",
}
_QUERY: dict[str, Schema] = {
    "since": _POSITION | {"description": "Continue after this position: `EPOCH:SEQ` or `EPOCH:SEQ:ID`."},
    "history": {
        "type": "integer",
        "minimum": 0,
        "description": "Start with the last N pushes; not together with `since`.",
    },
    "alive": {
        "type": "string",
        "enum": ["true", "false"],
        "description": "With `true`, `alive` arrives every `BROKER_WS_ALIVE_S`.",
    },
    "access_token": ACCESS_TOKEN,
}
_REQUEST_HEADERS: dict[str, Schema] = {
    "Authorization": AUTHORIZATION,
    "Last-Event-ID": {
        "anyOf": [_POSITION, {"const": ""}],
        "description": "Continue after this position; takes precedence over the query. An `EventSource` sends"
        " it.",
    },
    "Origin": ORIGIN,
}
_HEAD: dict[str, Schema] = {
    "Content-Type": {"const": "text/event-stream"},
    "Cache-Control": {"const": "no-store"},
    "Connection": {"const": "close", "description": "The stream ends with its connection."},
    "X-Accel-Buffering": {"const": "no"},
    "X-Content-Type-Options": {"const": "nosniff"},
    "X-Request-Id": {"type": "string"},
    "Access-Control-Allow-Origin": {
        "type": "string",
        "description": "`*`, or the request's `Origin` where the account names origins.",
    },
}
# Events that tell when to come back.
_WITH_RETRY = {"subscribed", "closed"}


def build_stream(schemas: Schemas) -> dict[str, Any]:
    """The channel, without its limits."""
    messages = {told.method: _event(told, schemas) for told in STREAM_NOTIFICATIONS}
    head = {"statusCode": 200, "headers": _object(_HEAD, _HEAD), "bindingVersion": "0.3.0"}
    messages["subscribed"]["bindings"] = {"http": head}
    closes = (*STREAM_ENDS, *(close for close in CLOSES if close.reasons))
    payload = messages["closed"]["payload"]
    messages["closed"]["payload"] = {"allOf": [payload, {"oneOf": [_ending(close) for close in closes]}]}
    return {
        "address": PATH,
        "title": "An event stream",
        "description": _DESCRIPTION,
        "servers": [{"$ref": "#/servers/stream"}],
        "parameters": {"programId": {"description": "The program.", "examples": ["final-2026"]}},
        "messages": {_REQUEST: _request(), **messages},
        "x-refusals": refusal_rows(STREAM_REFUSALS),
        "x-close-codes": [
            row | {"reasons": list(close.reasons)}
            for row, close in zip(close_rows(closes), closes, strict=True)
        ],
    }


def describe_opening(stream: dict[str, Any]) -> dict[str, Any]:
    """The operation that opens a stream, which is its reply."""
    return {
        "action": "receive",
        "channel": {"$ref": _HERE},
        "summary": "Follow a program as Server-Sent Events",
        "description": "A stream, from a position or from now on. Other parameters, and a body, are refused.",
        "tags": [{"name": "Server-Sent Events"}],
        "bindings": {
            "http": {
                "method": "GET",
                "query": _object(_QUERY) | {"additionalProperties": False},
                "bindingVersion": "0.3.0",
            }
        },
        "messages": [_reference(_REQUEST)],
        "reply": {
            "channel": {"$ref": _HERE},
            "messages": [_reference(name) for name in stream["messages"] if name != _REQUEST],
        },
    }


def _event(told: Notification, schemas: Schemas) -> dict[str, Any]:
    data = NOTIFICATION_EXAMPLES[told.method]
    lines: dict[str, Schema] = {"event": {"const": told.method}}
    example: dict[str, Any] = {"event": told.method}
    if told.has_place:
        lines["id"] = _POSITION
        example["id"] = ":".join(str(data[name]) for name in ("epoch", "seq", "id") if name in data)
    if told.method in _WITH_RETRY:
        lines["retry"] = {
            "type": "integer",
            "minimum": 0,
            "description": "Milliseconds to wait before another request, random for each stream.",
        }
        example["retry"] = data.get("afterMs", 3_127)
    # A push of an epoch that was replaced meanwhile has no `id`: there is no coming back to it.
    required = [name for name in lines if name != "id" or told.method == "subscribed"]
    return {
        "name": told.method,
        "title": told.method,
        "summary": told.summary,
        "contentType": "application/json",
        "headers": _object(lines, required) | {"additionalProperties": False},
        "payload": schemas.of_result(told.params),
        "examples": [{"headers": example, "payload": data}],
        "x-has-position": told.has_place,
    }


def _request() -> dict[str, Any]:
    return {
        "name": _REQUEST,
        "title": "The request",
        "summary": "Asks for a stream.",
        "headers": _object(_REQUEST_HEADERS),
        "examples": [{"headers": {"Last-Event-ID": f"{EPOCH}:41"}}],
    }


def _ending(close: Close) -> Schema:
    """Which reasons go with a code."""
    return {"properties": {"code": {"const": close.code}, "reason": {"enum": list(close.reasons)}}}


def _reference(message: str) -> dict[str, str]:
    return {"$ref": f"{_HERE}/messages/{message}"}


def _object(properties: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}
