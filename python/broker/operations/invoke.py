"""The one way to run an operation: authorise, validate, run once per idempotency key, count.

Both doors call `invoke` and only render its result or error.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from broker.domain import permissions
from broker.domain.callers import caller_of
from broker.domain.idempotency import IdempotencyKey, KeptResult, Repeated, check_key
from broker.domain.users import Principal
from broker.domain.values import without_excess
from broker.errors import (
    MAX_FAULTS,
    BadCredentials,
    BrokerError,
    FieldFault,
    InternalError,
    InvalidRequest,
    OutcomeUnknown,
    SlowDown,
    Unavailable,
    UnderMaintenance,
    field_path,
)
from broker.metrics.counts import LOGINS_FAILED, OPERATION_SECONDS, OPERATIONS
from broker.operations.context import Context
from broker.operations.etags import etag_of
from broker.operations.registry import Effect, Operation
from broker.operations.rendering import result_json
from broker.operations.results import Json, Result
from broker.tracing.contexts import trace_id_of

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
        # Check the audience, maintenance and the params, run the handler, then make the announcements that
        # it has left.
        permissions.require_audience(operation.rule, context.principal)
        if operation.effect is not Effect.NONE:
            context.services.maintenance.require_off()
        params = validate(operation.params, raw)
        context.rule = operation.rule
        if operation.admit is not None:
            operation.admit(context, params)
        if operation.is_list:
            result = await _run_in_turn(operation, context, params)
        elif context.idempotency_key is None or operation.effect is not Effect.KEYED:
            result = await operation.handler(context, params)
        else:
            result = await _run_with_key(operation, context, raw, params)
        for tell in context.told or ():
            await tell()
        outcome = "ok"
    except BrokerError as raised:
        # An expected failure: the caller gets it; one that is our fault is logged.
        error = _for_caller(operation, raised)
        outcome = error.name
        if isinstance(error, BadCredentials):
            LOGINS_FAILED.add()
        if error.status >= 500 and not isinstance(error, UnderMaintenance):  # nothing has failed
            _log_failure(operation, context, error)
        if error is not raised:
            raise error from raised
        raise
    except asyncio.CancelledError:
        raise
    except Exception as error:
        outcome = InternalError.name
        _log_failure(operation, context, error)
        raise InternalError(f"an internal error; its request id is {context.request_id}") from error
    finally:
        OPERATIONS.add(operation.name, outcome)
        OPERATION_SECONDS.observe(clock.monotonic_s() - began_s, operation.name)
    return result


def check_audience(operation: Operation, principal: Principal) -> None:
    """Refuse whom the operation refuses whatever it is about, before anything is made of the request.

    Raises:
        Unauthenticated, InsufficientScope: as `invoke` would; it is counted all the same.
    """
    try:
        permissions.require_audience(operation.rule, principal)
    except BrokerError as error:
        OPERATIONS.add(operation.name, error.name)
        OPERATION_SECONDS.observe(0.0, operation.name)
        raise


async def _run_in_turn(operation: Operation, context: Context, params: Any) -> Result:
    """Run a handler that reads a list."""
    lists, principal = context.services.lists, context.principal
    async with lists.held(principal, context.address):
        result = await operation.handler(context, params)
    return lists.paced(result, principal, context.address)


async def _run_with_key(
    operation: Operation, context: Context, raw: Mapping[str, Any], params: Any
) -> Result:
    """Run the handler unless the key has a result, which is the answer then.

    The key is looked at when the effect is stored, so that the first request of a key, nearly every one,
    costs no query. What failed may have failed because it was done before: then it is looked at too.
    """
    key = context.key = await _claim(operation, context, raw)
    try:
        if operation.is_owners:
            return await operation.handler(context, params)
        return await _run_once(operation, context, key, params)
    except Repeated as repeated:
        kept = repeated.result
    except SlowDown:
        raise  # there is no way around the limits of rates
    except BrokerError:
        found = await _find_kept(context)
        if found is None:
            raise
        kept = found
    return _repeat(operation, raw, kept)


async def _run_once(operation: Operation, context: Context, key: IdempotencyKey, params: Any) -> Result:
    """Run the handler, and commit its effect and the key together."""
    result: Result = None
    if operation.is_resumable:
        found = await context.services.idempotency.find(context.principal.account, key)
        if found is not None:
            raise Repeated(found)
        result = await operation.handler(context, params)
    try:
        async with context.services.idempotency.once(context.principal.account, key) as turn:
            if not operation.is_resumable:
                result = await operation.handler(context, params)
            kept = result if operation.kept is None else operation.kept(result)
            status = kept.status if isinstance(kept, Json) else None
            turn.keep(KeptResult(status or _status(operation), result_json(kept)))
    except Unavailable as error:
        if operation.is_resumable:  # it is done, and nothing says so yet
            again_s, text = error.retry_after_s, error.log_text
            raise OutcomeUnknown(error.message, retry_after_s=again_s, log_text=text) from error
        raise
    return result


async def _find_kept(context: Context) -> KeptResult | None:
    assert context.key is not None, "the caller has set it"
    try:
        return await context.services.idempotency.find(context.principal.account, context.key)
    except Unavailable:
        return None


def _repeat(operation: Operation, raw: Mapping[str, Any], kept: KeptResult) -> Result:
    """What the first request with a key was answered, with the headers that follow from it."""
    if not kept.body:
        return None
    headers = {"ETag": etag_of(kept.body)} if operation.has_etag else {}
    template = operation.route.location if operation.route else None
    if template is not None and kept.status == 201:
        with suppress(KeyError):  # a batch has no place of its own
            headers["Location"] = f"/api/v1{template.format_map({**raw, **orjson.loads(kept.body)})}"
    return Json(kept.body, headers, kept.status)


def _status(operation: Operation) -> int:
    return operation.route.status if operation.route else 200


def _for_caller(operation: Operation, error: BrokerError) -> BrokerError:
    """The error as the caller is told it: what changes nothing has not been done, whatever was lost."""
    if isinstance(error, OutcomeUnknown) and operation.effect is Effect.NONE:
        return Unavailable(error.message, retry_after_s=error.retry_after_s, log_text=error.log_text)
    return error


async def _claim(operation: Operation, context: Context, raw: Mapping[str, Any]) -> IdempotencyKey:
    """The caller's key, whichever door it came by and with which token."""
    key, principal = check_key(context.idempotency_key, "Idempotency-Key"), context.principal
    # No subject has a space in it.
    caller = principal.subject or f"address {caller_of(context.address)}"
    said = dict(raw)
    for again, name in operation.route.said_again if operation.route else ():
        value = said.pop(again, None)
        said.setdefault(name, value)
    for name in _hidden(operation.params) & said.keys():
        said[name] = await _slow_hash(context, caller, key, said[name])
    content = orjson.dumps([operation.name, said], option=orjson.OPT_SORT_KEYS)
    # A body that is streamed is not in `raw`: who reads it adds its hash.
    return IdempotencyKey(caller, key, hashlib.sha256(content).digest(), raw.get("events") is not None)


@cache  # there are as many as operations
def _hidden(model: type[BaseModel]) -> frozenset[str]:
    """The fields that are passwords, by wire name."""
    return frozenset(info.alias or name for name, info in model.model_fields.items() if not info.repr)


async def _slow_hash(context: Context, caller: str, key: str, password: object) -> str | None:
    """What stands for a password in the hash of its request: one that is made for speed can be guessed."""
    if not isinstance(password, str) or not password:
        return None
    salt = hashlib.sha256(orjson.dumps([context.principal.account, caller, key])).digest()[:16]
    return await context.services.auth.hash_password(password, salt, asker=context.asker)


def validate(model: type[_Params], raw: Any, prefix: str = "") -> _Params:
    """The model made of untrusted JSON, by wire names only.

    What a refusal costs does not depend on how much is wrong: of lists the first element at fault is told, of
    fields that the model lacks the first few.

    Args:
        prefix: path of what is validated, such as `events[3]`.

    Raises:
        InvalidRequest: with one fault for every field that is wrong, up to a few; values are left out.
    """
    if isinstance(raw, dict) and len(raw) > MAX_FAULTS:
        raw = without_excess(model, raw)
    try:
        made: _Params = model.__pydantic_validator__.validate_python(raw, by_alias=True, by_name=False)
        return made
    except ValidationError as error:
        refusal = _invalid_request(error, prefix)
    # Raised out here it does not hold pydantic's error, which holds frames that no collector of garbage sees.
    raise refusal


def _invalid_request(error: ValidationError, prefix: str) -> InvalidRequest:
    """The broker's error for pydantic's."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    faults = [
        FieldFault(field_path(fault["loc"], prefix) or "body", _message(fault["type"], fault["msg"]))
        for fault in found[:MAX_FAULTS]
    ]
    return InvalidRequest.of_faults(faults)


# pydantic's own texts name classes of ours, or Python's. A `FreeObject` is the only type of `is_instance_of`.
_NO_OBJECT = {"dict_type", "is_instance_of", "model_attributes_type", "model_type"}


def _message(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field of this request"
    if kind == "missing":
        return "is required"
    if kind in _NO_OBJECT:
        return "must be an object"
    return text.removeprefix("Value error, ")


def _log_failure(operation: Operation, context: Context, error: Exception) -> None:
    """One line for operators; params are left out, for they may hold secrets."""
    fields = {
        "operation": operation.name,
        "requestId": context.request_id,
        "account": context.principal.account,
        "error": type(error).__name__,
    }
    if context.trace is not None:
        fields["traceId"] = trace_id_of(context.trace)
    if isinstance(error, BrokerError):
        fields["text"] = error.log_text or error.message
        _log.warning("operation_failed", extra=fields)
    else:
        _log.error("operation_failed", extra=fields, exc_info=error)
