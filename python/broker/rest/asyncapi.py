"""The AsyncAPI 3 document of the gateways: WebSockets and event streams with their limits.

It is made from what serves: the registry of operations, the tables of notifications, close codes and refused
handshakes, and the settings. Where AsyncAPI has no field for something, a field that begins with `x-` has it.
"""

from dataclasses import fields
from typing import Any

import broker
from broker.operations.jsonrpc import (
    MAX_BATCH,
    MAX_DEPTH,
    MAX_ID_BYTES,
    MAX_MESSAGE_S,
    MAX_RECOVERED_BYTES,
    MAX_RECOVERED_EVENTS,
    MAX_RESULT_BYTES,
    MAX_UNANSWERED,
    MAX_VALUES,
    TOKEN_WARNING_S,
)
from broker.operations.known_gateways import url_template
from broker.operations.registry import Operation, Registry
from broker.resources.notifications import CLOSES, NOTIFICATIONS, REFUSALS
from broker.rest.asyncapi_messages import FOLLOWS, Messages, key_of
from broker.rest.asyncapi_stream import (
    ACCESS_TOKEN,
    AUTHORIZATION,
    ORIGIN,
    STREAM,
    STREAM_LIMITS,
    STREAM_OPERATION,
    build_stream,
    describe_opening,
)
from broker.rest.asyncapi_tables import close_rows, refusal_rows
from broker.rest.openapi_replies import ERROR_SCHEMA, describe_audience
from broker.rest.openapi_schemas import Schemas, format_value
from broker.setting_rules import NODE_LABEL
from broker.settings import Settings, environment_name

CHANNEL = "socket"
_HERE = f"#/channels/{CHANNEL}"
_DESCRIPTION = """\
A WebSocket to a gateway carries JSON-RPC 2.0 in text frames. `GET /api/v1/connect` names a gateway. Every
operation of the HTTP interface is a method here, with the same name, params and errors; `subscribe`,
`unsubscribe`, `respond` and `impression` exist only here. A message may be a batch: an array of calls, whose
replies come in one array. The gateway sends notifications by itself.

Where WebSocket is blocked, a gateway sends a program as Server-Sent Events: the channel `stream`.

`docs/protocol.md` explains the protocol step by step for authors of clients."""
_CONNECTION = """\
One connection. Without a token it is anonymous and may follow public programs; `login` authenticates it, and
renews its token later. Replies may come in any order, each with the `id` of its call; calls of one method
take effect in the order in which they were sent. The gateway pings; any byte from the client counts as a
pong."""
# Fixed ones, for people: name, value, what happens at it.
_BOUNDS = (
    ("batch", MAX_BATCH, "requests in one message; a larger batch is -32600"),
    ("depth", MAX_DEPTH, "arrays and objects within each other; deeper is -32700"),
    ("values", MAX_VALUES, "values in one message; more is -32700"),
    ("id", MAX_ID_BYTES, "bytes of an id as JSON; a longer one is -32600"),
    ("unanswered", MAX_UNANSWERED, "calls without an answer; at it nothing is read until half are answered"),
    ("result", MAX_RESULT_BYTES, "bytes of one result; a larger one is 413, and REST streams it"),
    (
        "recovered",
        MAX_RECOVERED_EVENTS,
        "pushes in an answer to `subscribe`; others follow as notifications",
    ),
    ("recoveredBytes", MAX_RECOVERED_BYTES, "bytes of these"),
    ("message", MAX_MESSAGE_S, "seconds from a message's first byte to its last; then close 1008"),
    ("tokenWarning", TOKEN_WARNING_S, "seconds before a token's end at which `tokenExpiring` comes"),
)
# Of the settings those that a client of a gateway meets.
_LIMITS = (
    "ws_message_limit_bytes",
    "ws_ping_s",
    "ws_pong_s",
    "ws_alive_s",
    "ws_handshake_s",
    "ws_lag_bytes",
    "ws_lag_s",
    "ws_connections",
    "ws_connections_per_address",
    "ws_waiting_bytes",
    "ws_subscriptions",
    "ws_messages_per_s",
    "ws_messages_burst",
    "responses_rate_per_connection",
    "responses_burst_per_connection",
    "history_events",
    "history_hours",
    "history_bytes",
    "drain_s",
)
_TEXTS = {entry.name: entry.metadata["text"] for entry in fields(Settings)}


def asyncapi_document(registry: Registry, settings: Settings) -> dict[str, Any]:
    """The document of everything that a gateway serves within the limits of `settings`."""
    schemas = Schemas(settings)
    schemas.named["Error"] = ERROR_SCHEMA
    messages = Messages(schemas)
    operations: dict[str, dict[str, Any]] = {}
    # The operations: subscriptions, notifications, refusals, calls, and the event stream.
    for method, follow in FOLLOWS.items():
        operations[method] = _call(*messages.add_follow(method), follow.summary, "", "WebSocket")
    for told in NOTIFICATIONS:
        operations[f"notify.{told.method}"] = {
            "action": "send",
            "channel": {"$ref": _HERE},
            "summary": told.summary,
            "tags": [{"name": "Notifications"}],
            "messages": [_reference(messages.add_notification(told))],
        }
    operations["refuse"] = {
        "action": "send",
        "channel": {"$ref": _HERE},
        "summary": "A message that is not a request of a known method.",
        "tags": [{"name": "WebSocket"}],
        "messages": [_reference(name) for name in messages.add_protocol_errors()],
    }
    for operation in registry.operations:
        described = _call(*messages.add_operation(operation), *_told_of(operation, schemas))
        operations[key_of(operation.name)] = described
    stream = build_stream(schemas)
    operations[STREAM_OPERATION] = describe_opening(stream)
    # The document around them. Building it has filled `schemas` and `messages`.
    gateway, events = _servers(settings)
    return {
        "asyncapi": "3.0.0",
        "id": "urn:onair-broker:gateway",
        "info": {
            "title": "The broker: WebSocket and Server-Sent Events",
            "version": broker.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
            "tags": _tags(operations),
        },
        "defaultContentType": "application/json",
        "servers": {"gateway": gateway, "stream": events},
        "channels": {
            CHANNEL: _channel(messages, settings),
            STREAM: stream | {"x-limits": _limits(settings, STREAM_LIMITS)},
        },
        "operations": operations,
        "components": {
            "schemas": dict(sorted(schemas.named.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An access token or an API token: in the header `Authorization` or in the"
                    " query as `access_token`; the method `login` gives one later.",
                }
            },
        },
    }


def _told_of(operation: Operation, schemas: Schemas) -> tuple[str, str, str]:
    """Summary, description and tag."""
    parts = [] if operation.route is None else [schemas.fill(operation.route.description)]
    parts.append(describe_audience(operation))
    if operation.former_names:
        parts.append(f"Former names: {', '.join(f'`{name}`' for name in operation.former_names)}.")
    return operation.summary, " ".join(part for part in parts if part), operation.tag


def _call(name: str, answers: list[str], summary: str, description: str, tag: str) -> dict[str, Any]:
    return {
        "action": "receive",
        "channel": {"$ref": _HERE},
        "summary": summary,
        **({"description": description} if description else {}),
        "tags": [{"name": tag}],
        "messages": [_reference(name)],
        "reply": {"channel": {"$ref": _HERE}, "messages": [_reference(answer) for answer in answers]},
    }


def _reference(message: str) -> dict[str, str]:
    return {"$ref": f"{_HERE}/messages/{message}"}


def _tags(operations: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    return [{"name": name} for name in dict.fromkeys(o["tags"][0]["name"] for o in operations.values())]


def _servers(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where gateways are, for WebSockets and for event streams, which are beside them.

    The account's label and, on a cluster, the node's are variables of the host.
    """
    protocol, _, rest = url_template(settings).partition("://")
    host, _, path = rest.partition("/")
    host = host.replace(NODE_LABEL, "{node}")
    variables: dict[str, Any] = {}
    if "{account}" in host:
        text = "The account's label followed by a dot; the default account needs none."
        variables["account"] = {"default": f"{settings.default_account}.", "description": text}
    if "{node}" in host:
        variables["node"] = {"description": "The gateway's node, as in the URLs of `GET /connect`."}
    place = {"host": host, "pathname": f"/{path.rpartition('/')[0]}"}
    rest_of_it = {
        **({"variables": variables} if variables else {}),
        "security": [{"$ref": "#/components/securitySchemes/bearer"}],
    }
    gateway = place | {
        "protocol": protocol,
        "description": "A gateway, at the URL that `GET /api/v1/connect` returns.",
    }
    events = place | {
        "protocol": "https" if protocol == "wss" else "http",
        "description": "The same gateway, at the `streamUrl` that `GET /api/v1/connect?programId=…` returns.",
    }
    return gateway | rest_of_it, events | rest_of_it


def _channel(messages: Messages, settings: Settings) -> dict[str, Any]:
    return {
        "address": "/" + url_template(settings).rpartition("/")[2],
        "title": "A connection",
        "description": _CONNECTION,
        "servers": [{"$ref": "#/servers/gateway"}],
        "messages": messages.named,
        "bindings": {"ws": _handshake()},
        "x-refusals": refusal_rows(REFUSALS),
        "x-close-codes": close_rows(CLOSES),
        "x-limits": [
            *({"name": name, "value": value, "description": text} for name, value, text in _BOUNDS),
            *_limits(settings, _LIMITS),
        ],
    }


def _limits(settings: Settings, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": environment_name(name),
            "value": getattr(settings, name),
            "description": f"{_TEXTS[name]} Now {format_value(getattr(settings, name))}.",
        }
        for name in names
    ]


def _handshake() -> dict[str, Any]:
    """The WebSocket binding: what a handshake may carry beside what RFC 6455 asks for."""
    batch = {
        "type": "string",
        "enum": ["true", "false"],
        "description": "With `true`, notifications within 8 ms of each other arrive as one JSON array.",
    }
    alive = {
        "type": "string",
        "enum": ["true", "false"],
        "description": "With `true`, `alive` arrives whenever nothing else did for `BROKER_WS_ALIVE_S`.",
    }
    query = {"access_token": ACCESS_TOKEN, "batch": batch, "alive": alive}
    headers = {
        "Authorization": AUTHORIZATION,
        "Origin": ORIGIN,
        "Sec-WebSocket-Extensions": {
            "type": "string",
            "description": "`permessage-deflate` is agreed on; what many are sent is deflated once for all.",
        },
    }
    return {
        "method": "GET",
        "query": {"type": "object", "properties": query},
        "headers": {"type": "object", "properties": headers},
        "bindingVersion": "0.1.0",
    }
