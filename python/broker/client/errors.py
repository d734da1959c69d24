"""Every error that the SDK raises.

::

    ClientError
    ├── ApiError                  the broker answered with an error: status, name, fields, request id
    │   ├── InvalidRequest            400
    │   ├── Unauthenticated           401
    │   │   └── BadCredentials            bad_credentials
    │   ├── InsufficientScope         403
    │   ├── NotFound                  404
    │   ├── Conflict                  409
    │   ├── PreconditionFailed        412
    │   ├── PayloadTooLarge           413
    │   ├── SlowDown                  429
    │   └── ServerError               5xx
    │       ├── Unavailable               503, also `maintenance`
    │       └── OutcomeUnknown            outcome_unknown
    ├── RpcError                  a JSON-RPC error that is no answer of an operation
    ├── ConnectionFailed          no answer of the broker within the deadline
    │   └── ConnectionLost            an open WebSocket ended
    ├── ProtocolError             the peer sent what no broker sends
    └── SubscriptionEnded         a subscription cannot go on
        ├── HistoryLost               what was missed can only be read by REST
        ├── ProgramDeleted
        └── Unsubscribed              the broker ended it: private now, or the token ended

Statuses that have no class of their own are an `ApiError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.client.cursor import Cursor


class ClientError(Exception):
    """The root of the SDK's errors."""


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One field at fault: a path such as `events[3].event`, and what is allowed there."""

    field: str
    message: str


class ApiError(ClientError):
    """The broker refused or failed a call.

    Attributes:
        status: the HTTP status; over WebSocket the one that HTTP would have answered.
        name: the stable name of the error, such as `invalid_request`.
        message: the broker's own text.
        fields: the fields at fault, where fields are.
        request_id: what to quote to the operator; empty over WebSocket.
        retry_after_s: how long the broker asks to wait, or None.
    """

    def __init__(
        self,
        status: int,
        name: str,
        message: str,
        *,
        fields: tuple[FieldFault, ...] = (),
        request_id: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message or name)
        self.status = status
        self.name = name
        self.message = message
        self.fields = fields
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.name}: {self.message}" if self.message else f"{self.status} {self.name}"


class InvalidRequest(ApiError):
    """A field or parameter is malformed, missing, unknown or out of range; see `fields`."""


class Unauthenticated(ApiError):
    """The access token is missing, ended or revoked."""


class BadCredentials(Unauthenticated):
    """The user name is unknown or the password wrong."""


class InsufficientScope(ApiError):
    """The caller may not do this."""


class NotFound(ApiError):
    """No such resource that the caller can see."""


class Conflict(ApiError):
    """The id is taken, or the state does not allow the change."""


class PreconditionFailed(ApiError):
    """The resource is no longer in the state that `if_match` named."""


class PayloadTooLarge(ApiError):
    """Too many bytes or too many elements."""


class SlowDown(ApiError):
    """Too many requests; `retry_after_s` says how long to wait."""


class ServerError(ApiError):
    """The broker, or something it depends on, failed."""


class Unavailable(ServerError):
    """Overload, a dependency is down, or `name` is `maintenance`; nothing was done."""


class OutcomeUnknown(ServerError):
    """A change may or may not have been made; the same call with the same `idempotency_key` learns which."""


class RpcError(ClientError):
    """A JSON-RPC error without a REST body, such as an unknown method (-32601)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"JSON-RPC error {code}: {message}")
        self.code = code


class ConnectionFailed(ClientError):
    """No answer of the broker came within the deadline: none at all, or one of something in front of it.

    A change may have been made; the same call with the same `idempotency_key` learns whether it was.
    """


class ConnectionLost(ConnectionFailed):
    """An open WebSocket ended; `code` is the close code, 1006 when the peer just went."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"the connection ended with {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class ProtocolError(ClientError):
    """The peer sent something that no broker sends."""


class SubscriptionEnded(ClientError):
    """A subscription cannot go on."""

    def __init__(self, program_id: str, text: str) -> None:
        super().__init__(f"{program_id}: {text}")
        self.program_id = program_id


class HistoryLost(SubscriptionEnded):
    """What was missed is over the history limit, or the history was replaced meanwhile.

    Read what was missed with `client.events.missed`, then subscribe from `cursor`: nothing lies between.

    Attributes:
        cursor: where the program stood when the loss was found; `epoch` and `seq` are its.
        seen: the position up to which the subscription had everything.
    """

    def __init__(self, program_id: str, cursor: Cursor, seen: Cursor) -> None:
        super().__init__(program_id, "events were missed and cannot be recovered; read them by REST")
        self.cursor = cursor
        self.seen = seen
        self.epoch = cursor.epoch
        self.seq = cursor.seq


class ProgramDeleted(SubscriptionEnded):
    """The program was deleted."""

    def __init__(self, program_id: str) -> None:
        super().__init__(program_id, "the program was deleted")


class Unsubscribed(SubscriptionEnded):
    """The broker ended the subscription; `reason` says why."""

    def __init__(self, program_id: str, reason: str) -> None:
        super().__init__(program_id, f"the broker ended the subscription: {reason}")
        self.reason = reason


_BY_NAME: dict[str, type[ApiError]] = {
    "bad_credentials": BadCredentials,
    "outcome_unknown": OutcomeUnknown,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: InsufficientScope,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: PayloadTooLarge,
    429: SlowDown,
    503: Unavailable,
}


def is_brokers(status: int, body: object) -> bool:
    """Whether the parsed body of an error answer is one that the broker makes."""
    return isinstance(body, Mapping) and isinstance(body.get("error"), str) and body.get("status") == status


def parse_api_error(
    status: int, body: object, *, request_id: str = "", retry_after: object = None
) -> ApiError:
    """The typed error of an error answer; a body that is no broker's (an upstream's page) is passed over.

    Args:
        body: the parsed JSON, or None where the answer was not JSON.
        retry_after: the header's text, or what JSON has; anything but a number of seconds counts as absent.
    """
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    name = _text(fields.get("error")) or f"http_{status}"
    kind = _BY_NAME.get(name) or _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    return kind(
        status,
        name,
        _text(fields.get("error_description")),
        fields=_faults(fields.get("errors")),
        request_id=request_id,
        retry_after_s=_seconds(retry_after),
    )


def parse_rpc_error(error: object) -> ClientError:
    """The typed error of a JSON-RPC error object: the REST error in `data`, or an `RpcError`."""
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), int):
        return ProtocolError("the broker sent an error without a code")
    data = error.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("status"), int):
        return parse_api_error(data["status"], data, retry_after=data.get("retryAfter"))
    if error["code"] >= 400:
        return parse_api_error(error["code"], {"error": error.get("message")})
    return RpcError(error["code"], _text(error.get("message")))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _faults(value: object) -> tuple[FieldFault, ...]:
    if not isinstance(value, list):
        return ()
    faults = [entry for entry in value if isinstance(entry, Mapping)]
    return tuple(FieldFault(_text(entry.get("field")), _text(entry.get("message"))) for entry in faults)


def _seconds(value: object) -> float | None:
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
