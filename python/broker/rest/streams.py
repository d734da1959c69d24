"""The part of the HTTP port in event streams: the redirect to a gateway, and the documentation.

Gateways serve event streams, on their own port. A client that knows the API's address alone is sent to one of
them, as `GET /connect` would choose it. It is no operation: over a WebSocket there is nothing to be sent to.

What is checked here is the account, a token, which is refused where it is bad, and that there is a gateway.
The gateway decides the rest, so a token and a position go with the request as they are. Mind that browsers
and curl leave a token in a header behind on the way to another port; a client that has one asks `/connect`
itself.
"""

from typing import Any

from broker.errors import (
    InsufficientScope,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    SlowDown,
    Unauthenticated,
    Unavailable,
)
from broker.operations.services import Services
from broker.rest.headers import RawHeader
from broker.rest.routing import split_path

PATH = "/programs/{programId}/events/stream"
METHODS = "GET, OPTIONS"  # as a gateway has them: a stream has no end, and so no HEAD worth asking for
RETRY_AFTER_S = 2  # a gateway that starts is known within its first heartbeat

ERRORS = (
    InvalidRequest,
    Unauthenticated,
    InsufficientScope,
    NotFound,
    MethodNotAllowed,
    SlowDown,
    InternalError,
    Unavailable,
)
"""What a gateway or this port may answer."""

_END = b"/events/stream"
PREFLIGHT: tuple[RawHeader, ...] = (
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"Authorization, Cache-Control, Last-Event-ID, X-Request-Id"),
    (b"access-control-max-age", b"7200"),
)


def find_program(path: bytes) -> str | None:
    """The program whose stream a raw path names; None of any other path.

    Raises:
        InvalidRequest: it is not percent-encoded UTF-8.
    """
    if not path.endswith(_END):
        return None
    segments = split_path(path)
    if segments[:3] != ["api", "v1", "programs"] or len(segments) != 6 or not segments[3]:
        return None
    return segments[3]


async def find_location(services: Services, account: str, program_id: str, query: bytes) -> str | None:
    """The URL of the stream at a gateway, with the request's query; None when none takes connections."""
    _, url = await services.known_gateways.advise(account, program_id)
    return f"{url}?{query.decode('latin-1')}" if url and query else url


_DESCRIPTION = """\
The notifications of `subscribe` over a WebSocket, for where none gets through: `event:` is the method,
`data:` the params, `id:` the position. Gateways serve it, at the `streamUrl` that `GET /connect` answers;
this port redirects there, without a token that came in a header. The first event is `subscribed`; what was
missed comes after it. When the gateway ends the stream, the last one is `closed`, with the code and reason
that close a WebSocket."""
_TEXT = {"type": "string"}
_POSITION = "`EPOCH:SEQ` or `EPOCH:SEQ:ID`, as the `id:` lines of the stream have it"
_EVENTS = """\
retry: 3127
id: 0198b2c4-6f00-7a11-8b22-9c33ad44be55:1:0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f
event: subscribed
data: {"programId":"final-2026","epoch":"0198b2c4-6f00-7a11-8b22-9c33ad44be55","seq":1,\
"id":"0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f","recovered":true}

"""


def describe_stream(errors: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI path item of the stream.

    Args:
        errors: status → response object, of what gateways and this port refuse requests with.
    """
    return {
        "get": {
            "operationId": "streamProgramEvents",
            "summary": "Follow a program's events as Server-Sent Events",
            "description": _DESCRIPTION,
            "tags": ["WebSocket"],
            "security": [{}, {"bearer": []}],
            "parameters": [
                _parameter("programId", "path", "The program.", _TEXT, "final-2026"),
                _parameter("since", "query", f"Go on after this position: {_POSITION}.", _TEXT, "e:41"),
                _parameter(
                    "history",
                    "query",
                    "Begin with so many of the last pushes instead.",
                    {"type": "integer", "minimum": 0},
                    10,
                ),
                _parameter(
                    "access_token", "query", "A token, for clients that cannot set headers.", _TEXT, "eyJ..."
                ),
                _parameter(
                    "Last-Event-ID",
                    "header",
                    f"Go on after this position, whatever the query says: {_POSITION}.",
                    _TEXT,
                    "e:41",
                ),
            ],
            "responses": {
                "200": {
                    "description": "The stream, from a gateway. It does not end by itself.",
                    "content": {"text/event-stream": {"schema": _TEXT, "example": _EVENTS}},
                },
                "307": {
                    "description": "The stream is there; from this port.",
                    "headers": {
                        "Location": {
                            "description": "The stream's URL at a gateway.",
                            "required": True,
                            "schema": {"type": "string", "format": "uri"},
                        }
                    },
                },
                **errors,
            },
        }
    }


def _parameter(
    name: str, place: str, description: str, schema: dict[str, Any], example: object
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema,
        "example": example,
    }
