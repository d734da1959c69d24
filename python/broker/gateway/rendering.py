"""Results and errors of operations in JSON-RPC 2.0."""

import orjson

from broker.errors import BrokerError, InvalidRequest, PayloadTooLarge
from broker.operations import rendering
from broker.operations.etags import etag_of
from broker.operations.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from broker.operations.results import Forwarded, Result, Stream


async def joined_json(result: Result, limit_bytes: int) -> bytes:
    """The JSON of an operation's result.

    Raises:
        PayloadTooLarge: a stream, or what is handed on, is over `limit_bytes`; REST has no such limit
            and the text says so.
    """
    if isinstance(result, Stream):
        return await _joined(result, limit_bytes)
    if isinstance(result, Forwarded) and len(result.body) > limit_bytes:
        raise _too_large(limit_bytes)
    return rendering.result_json(result) or b"null"


def tagged_json(result: bytes) -> bytes:
    """The JSON object of a result with its entity tag as a last member, `etag`.

    JSON-RPC 2.0, section 5, knows no place beside the result, so it is inside, for those who ask for it.
    """
    return result[:-1] + b',"etag":' + orjson.dumps(etag_of(result)) + b"}"


def paged_json(result: bytes, cursor: str | None) -> bytes:
    """The JSON array of a result as `{items, cursor}`; the cursor is null after the last page."""
    return b'{"items":' + result + b',"cursor":' + orjson.dumps(cursor) + b"}"


def error_json(error: BrokerError) -> bytes:
    """The JSON-RPC error object of `error`, with the body that REST would answer as its `data`.

    A fault in the params has the code that JSON-RPC 2.0, section 5.1, gives it; every other error has its
    HTTP status as its code.
    """
    is_params_fault = isinstance(error, InvalidRequest) and error.name == InvalidRequest.name
    body = error.body()
    if error.retry_after_s is not None:
        body["retryAfter"] = error.retry_after_s
    code = INVALID_PARAMS if is_params_fault else error.status
    return orjson.dumps({"code": code, "message": error.name, "data": body})


def unknown_method_json(method: str) -> bytes:
    """The error object of a method that is no operation."""
    text = f"there is no operation {method[:200]}"
    body = {"error": "not_found", "error_description": text, "status": 404}
    return orjson.dumps({"code": METHOD_NOT_FOUND, "message": "Method not found", "data": body})


def _too_large(limit_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the result is over {limit_bytes} bytes, the limit of one reply over WebSocket; read it over REST"
    )


async def _joined(stream: Stream, limit_bytes: int) -> bytes:
    parts, size = [], 0
    try:
        async for chunk in stream.chunks:
            size += len(chunk)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            parts.append(chunk)
    finally:
        await stream.close()
    joined = b"".join(parts)
    return joined if stream.media_type == "application/json" else orjson.dumps(joined.decode())
