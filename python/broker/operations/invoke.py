"""The one way to run an operation: authorise, validate, run, count.

Both doors call `invoke`; what comes out of it, result or error, they only render.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from broker.domain import permissions
from broker.errors import FieldFault, InvalidRequest
from broker.operations.context import Context
from broker.operations.registry import Operation, Result


async def invoke(operation: Operation, context: Context, raw: Mapping[str, Any]) -> Result:
    """Run `operation` for the caller in `context` with untrusted params `raw`.

    Args:
        raw: params by wire name, values as parsed from JSON; `access_token` must be gone.

    Raises:
        BrokerError: every failure that is the caller's, or of something we depend on.
    """
    if operation.audience is not None:
        permissions.require_role(context.principal, operation.audience)
    return await operation.handler(context, parse_params(operation, raw))


def parse_params(operation: Operation, raw: Mapping[str, Any]) -> Any:
    """Validate `raw` against the operation's params model.

    Raises:
        InvalidRequest: with one fault for every field that is wrong.
    """
    try:
        return operation.params.model_validate(raw)
    except ValidationError as error:
        raise invalid_request(error) from None


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The broker's error for pydantic's, one fault a field, values left out."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        faults.append(FieldFault(_path(fault["loc"]), _message(fault["type"], fault["msg"])))
    return InvalidRequest(f"{faults[0].field}: {faults[0].message}", faults=faults)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


def _message(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field of this request"
    if kind == "missing":
        return "is required"
    return text.removeprefix("Value error, ")
