"""The one way to run an operation: authorise, validate, run once a key, count.

Both doors call `invoke`; what comes out of it, result or error, they only render.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from broker.domain import permissions
from broker.domain.values import without_excess
from broker.errors import MAX_FAULTS, BrokerError, FieldFault, InternalError, InvalidRequest, field_path
from broker.operations import metrics
from broker.operations.context import Context
from broker.operations.registry import Json, Operation, Result
from broker.operations.rendering import result_json
from broker.owners.protocol import IdempotencyKey

MAX_KEY_CHARACTERS = 255

_log = logging.getLogger(__name__)
_Params = TypeVar("_Params", bound=BaseModel)


async def invoke(operation: Operation, context: Context, raw: Mapping[str, Any]) -> Result:
    """Run `operation` for the caller in `context` with untrusted params `raw`.

    Args:
        raw: params by wire name, values as parsed from JSON; `access_token` must be gone.

    Raises:
        BrokerError: every failure. What is nobody's fault but ours is logged with the request id and becomes
            `InternalError`, whose text says the id and nothing else.
    """
    clock = context.services.clock
    began_s = clock.monotonic_s()
    outcome = "cancelled"
    try:
        permissions.require_audience(operation.rule, context.principal)
        params = parse_params(operation, raw)
        context.rule = operation.rule
        if context.idempotency_key is None or not operation.idempotent_by_key:
            result = await operation.handler(context, params)
        else:
            result = await _run_with_key(operation, context, raw, params)
        outcome = "ok"
    except BrokerError as error:
        outcome = error.name
        if error.status >= 500:
            _log_failure(operation, context, error)
        raise
    except asyncio.CancelledError:
        raise
    except Exception as error:
        outcome = InternalError.name
        _log_failure(operation, context, error)
        raise InternalError(f"an internal error; its request id is {context.request_id}") from error
    finally:
        metrics.observe(operation.name, outcome, clock.monotonic_s() - began_s)
    return result


async def _run_with_key(
    operation: Operation, context: Context, raw: Mapping[str, Any], params: Any
) -> Result:
    context.key = _claim(operation, context, raw)
    if operation.keeps_own_key or context.key is None:
        return await operation.handler(context, params)
    return await _run_once(operation, context, context.key, params)


async def _run_once(operation: Operation, context: Context, key: IdempotencyKey, params: Any) -> Result:
    """Run the handler unless the key has a result; two at once with one key wait for each other."""
    services = context.services
    async with services.idempotency.once(
        context.principal.account, key.caller, key.key, key.request_hash, services.clock.now_ms()
    ) as turn:
        if turn.stored is None:
            result = await operation.handler(context, params)
            turn.keep(operation.route.status if operation.route else 200, result_json(result))
            return result
    return Json(turn.stored)


def _claim(operation: Operation, context: Context, raw: Mapping[str, Any]) -> IdempotencyKey | None:
    """The caller's key. Callers without a token share no name that a key could belong to: None."""
    key, subject = context.idempotency_key, context.principal.subject
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        raise InvalidRequest.of_field(
            "Idempotency-Key", f"must be 1 to {MAX_KEY_CHARACTERS} printable characters"
        )
    if subject is None:
        return None
    # What the models hide is left out: a hash of a password that is made for speed can be guessed.
    hidden = {info.alias or name for name, info in operation.params.model_fields.items() if not info.repr}
    said = {name: value for name, value in raw.items() if name not in hidden}
    content = orjson.dumps([operation.name, said], option=orjson.OPT_SORT_KEYS)
    return IdempotencyKey(subject, key, hashlib.sha256(content).digest())


def parse_params(operation: Operation, raw: Mapping[str, Any]) -> Any:
    """Validate `raw` against the operation's params model, by wire names only.

    Raises:
        InvalidRequest: as `validate` does.
    """
    return validate(operation.params, raw)


def validate(model: type[_Params], raw: Any, prefix: str = "") -> _Params:
    """The model made of untrusted JSON, by wire names only.

    What a refusal costs does not depend on how much is wrong: of lists the first element at fault is told, of
    fields that the model lacks the first few.

    Args:
        prefix: path of what is validated, such as `events[3]`.

    Raises:
        InvalidRequest: with one fault for every field that is wrong, up to a few; values are left out.
    """
    raw = without_excess(model, raw)
    try:
        made: _Params = model.__pydantic_validator__.validate_python(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _invalid_request(error, prefix) from None
    return made


def _invalid_request(error: ValidationError, prefix: str) -> InvalidRequest:
    """The broker's error for pydantic's."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    faults = [
        FieldFault(field_path(fault["loc"], prefix) or "body", _message(fault["type"], fault["msg"]))
        for fault in found[:MAX_FAULTS]
    ]
    return InvalidRequest(f"{faults[0].field}: {faults[0].message}", faults=faults)


def _message(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field of this request"
    if kind == "missing":
        return "is required"
    if kind == "is_instance_of":  # a `FreeObject` is the only such type
        return "must be an object"
    return text.removeprefix("Value error, ")


def _log_failure(operation: Operation, context: Context, error: Exception) -> None:
    """One line for operators; params are left out, for they may hold secrets."""
    fields = {
        "event": "operation_failed",
        "operation": operation.name,
        "requestId": context.request_id,
        "account": context.principal.account,
        "error": type(error).__name__,
    }
    if isinstance(error, BrokerError):
        fields["text"] = error.log_text or error.message
        _log.warning("%s", orjson.dumps(fields).decode())
    else:
        _log.error("%s", orjson.dumps(fields).decode(), exc_info=error)
