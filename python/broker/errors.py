"""Every error a caller can meet.

::

    BrokerError
    ├── InvalidRequest          400 invalid_request
    │   ├── UnsupportedGrantType    unsupported_grant_type
    │   └── InvalidClient           invalid_client
    ├── Unauthenticated         401 invalid_token
    │   └── BadCredentials          bad_credentials
    ├── InsufficientScope       403 insufficient_scope
    ├── NotFound                404 not_found
    ├── MethodNotAllowed        405 method_not_allowed
    ├── NotAcceptable           406 not_acceptable
    ├── Conflict                409 conflict
    ├── PreconditionFailed      412 precondition_failed
    ├── PayloadTooLarge         413 payload_too_large
    ├── UnsupportedMediaType    415 unsupported_media_type
    ├── SlowDown                429 slow_down
    ├── InternalError           500 internal_error
    ├── BadGateway              502 bad_gateway
    ├── Unavailable             503 unavailable
    │   ├── OutcomeUnknown          outcome_unknown
    │   └── UnderMaintenance        maintenance
    └── GatewayTimeout          504 gateway_timeout

Both doors render an error from its class and fields; neither looks at the text. The message is public:
it never carries a secret, an SQL text, a stack or an address of ours. What only operators may see goes
into `log_text`.

A reply does not grow with what is wrong: an error keeps `MAX_FAULTS` faults, and what it quotes of the
request is cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

MAX_FAULTS = 10  # whoever sends more mends them in rounds
MAX_FIELD_CHARACTERS = 256  # an id of the largest size, and the path to it
MAX_MESSAGE_CHARACTERS = 1_000
_CUT = "…"


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One field at fault: `field` is a path such as `events[3].event`, `message` says what is allowed."""

    field: str
    message: str

    def body(self) -> dict[str, str]:
        """The fault as it is told."""
        return {
            "field": shorten(self.field, MAX_FIELD_CHARACTERS),
            "message": shorten(self.message, MAX_MESSAGE_CHARACTERS),
        }


class BrokerError(Exception):
    """The root. `status` is the HTTP status and the JSON-RPC code, `name` the stable name of the error."""

    status: ClassVar[int] = 500
    name: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, status: int | None = None, name: str | None = None, retryable: bool | None = None
    ) -> None:
        """Take what a class says of itself in its first line; what it does not say it has from its parent."""
        told = {"status": status, "name": name, "retryable": retryable}
        for attribute, value in told.items():
            if value is not None:
                setattr(cls, attribute, value)

    def __init__(
        self,
        message: str,
        *,
        faults: Sequence[FieldFault] = (),
        retry_after_s: int | None = None,
        log_text: str | None = None,
    ) -> None:
        message = shorten(message, MAX_MESSAGE_CHARACTERS)
        super().__init__(message)
        self.message = message
        self.faults = tuple(faults[:MAX_FAULTS])
        self.retry_after_s = retry_after_s
        self.log_text = log_text

    @classmethod
    def of_faults(cls, faults: Sequence[FieldFault]) -> Self:
        """The error of one or more fields; its text is about the first."""
        return cls(f"{faults[0].field}: {faults[0].message}", faults=faults)

    @classmethod
    def of_field(cls, field: str, message: str) -> Self:
        """The error of one field."""
        return cls.of_faults([FieldFault(shorten(field, MAX_FIELD_CHARACTERS), message)])

    def body(self) -> dict[str, object]:
        """The JSON error body, the same on both doors."""
        body: dict[str, object] = {
            "error": self.name,
            "error_description": self.message,
            "status": self.status,
        }
        if self.faults:
            body["errors"] = [fault.body() for fault in self.faults]
        return body

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes with all their fields."""
        return _rebuild, (type(self), self.message, self.faults, self.retry_after_s, self.log_text)


def forget_frames(error: BaseException) -> None:
    """Let go of the causes of an error, and of the frames it went through, once it has been told.

    A frame that holds an error in a variable is held by it in turn, and so is all that the request sent.
    Garbage is collected seldom in replicas and gateways, and never where pydantic's `ValidationError` is part
    of such a circle: it does not tell the collector what it holds.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None


def shorten(text: str, characters: int) -> str:
    """The text, or as much of it as goes into `characters` with a mark of what is missing."""
    return text if len(text) <= characters else text[: characters - len(_CUT)] + _CUT


def field_path(place: Iterable[int | str], prefix: str = "") -> str:
    """The path of a field, such as `events[3].event`, cut to `MAX_FIELD_CHARACTERS`.

    Args:
        place: names of members and indexes of elements, outermost first; read only as far as it is told.
    """
    path = prefix
    for step in place:
        if len(path) > MAX_FIELD_CHARACTERS:
            break
        name = f"[{step}]" if isinstance(step, int) else shorten(step, MAX_FIELD_CHARACTERS)
        path += name if isinstance(step, int) or not path else f".{name}"
    return shorten(path, MAX_FIELD_CHARACTERS)


def _rebuild(
    kind: type[BrokerError],
    message: str,
    faults: tuple[FieldFault, ...],
    retry_after_s: int | None,
    log_text: str | None,
) -> BrokerError:
    return kind(message, faults=faults, retry_after_s=retry_after_s, log_text=log_text)


def error_class(name: str) -> type[BrokerError] | None:
    """The class whose stable name this is; None for one that this process does not know.

    What travels between processes as a name means one of these classes and nothing else.
    """
    kinds = [BrokerError]
    for kind in kinds:
        if kind.name == name and kind is not BrokerError:
            return kind
        kinds += kind.__subclasses__()
    return None


class InvalidRequest(BrokerError, status=400, name="invalid_request"):
    """The request is malformed, or a field or parameter is missing, unknown, mistyped or out of range."""


class UnsupportedGrantType(InvalidRequest, name="unsupported_grant_type"):
    """`POST /token` was asked for a grant that it does not know (RFC 6749, section 5.2)."""


class InvalidClient(InvalidRequest, name="invalid_client"):
    """`client_id` is missing or not one of the accepted ones."""


class Unauthenticated(BrokerError, status=401, name="invalid_token"):
    """The access token is missing, malformed, expired, revoked or of another account."""


class BadCredentials(Unauthenticated, name="bad_credentials"):
    """The user name is unknown or the password wrong; which of the two is not told."""


class InsufficientScope(BrokerError, status=403, name="insufficient_scope"):
    """The caller is known and may not do this."""


class NotFound(BrokerError, status=404, name="not_found"):
    """No such resource that the caller can see."""


class MethodNotAllowed(BrokerError, status=405, name="method_not_allowed"):
    """The path exists, the method does not. `allow` are those that do (RFC 9110, section 15.5.6)."""

    def __init__(self, message: str, allow: Iterable[str] = (), **fields: Any) -> None:
        super().__init__(message, **fields)
        self.allow = tuple(allow)

    def __reduce__(self) -> tuple[object, ...]:
        return *super().__reduce__(), {"allow": self.allow}


class NotAcceptable(BrokerError, status=406, name="not_acceptable"):
    """None of the media types in `Accept` can be made."""


class Conflict(BrokerError, status=409, name="conflict"):
    """The id is taken, the state does not allow the change, or an idempotency key came with another body."""


class PreconditionFailed(BrokerError, status=412, name="precondition_failed"):
    """`If-Match` names a state that is gone."""


class PayloadTooLarge(BrokerError, status=413, name="payload_too_large"):
    """Too many bytes or too many elements."""


class UnsupportedMediaType(BrokerError, status=415, name="unsupported_media_type"):
    """The body's `Content-Type` is not one that the operation reads."""


class SlowDown(BrokerError, status=429, name="slow_down", retryable=True):
    """Too many requests; `retry_after_s` says how long to wait."""


class InternalError(BrokerError):
    """A bug of ours. The public text carries the request id and nothing else."""


class BadGateway(BrokerError, status=502, name="bad_gateway"):
    """A server that we asked for the caller failed."""


class Unavailable(BrokerError, status=503, name="unavailable", retryable=True):
    """Overload, or something we need is down. Nothing was done; the call may be repeated.

    Whoever catches it catches `OutcomeUnknown` too, and must not answer that with a plain `Unavailable`.
    """


class OutcomeUnknown(Unavailable, name="outcome_unknown"):
    """The change may or may not have been made, wholly in either case.

    The same request with the same `Idempotency-Key` learns which; without a key only a look at the resource
    does.
    """


class UnderMaintenance(Unavailable, name="maintenance"):
    """The operator has switched maintenance on: nothing can be changed for now, and nothing was.

    The message is the operator's. Reading and following go on.
    """


class GatewayTimeout(BrokerError, status=504, name="gateway_timeout"):
    """A server that we asked for the caller did not answer in time."""
