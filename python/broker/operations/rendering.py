"""Results as JSON, the same bytes on both doors."""

import base64

import orjson
from pydantic_core import to_json

from broker.operations.results import Forwarded, Json, Reply, Result, Stream


def result_json(result: Result) -> bytes:
    """The finished UTF-8 of a result; `b""` of None. A `Stream` is the door's own to send or to join."""
    assert not isinstance(result, Stream), "the door sends streams itself"
    if isinstance(result, Json):
        return result.body
    if isinstance(result, Forwarded):
        return _forwarded_json(result)
    value = result.value if isinstance(result, Reply) else result
    return b"" if value is None else to_json(value, by_alias=True)


def _forwarded_json(reply: Forwarded) -> bytes:
    """Status, media type and body in one object: the body as JSON, else as text, else in base64."""
    value: dict[str, object] = {"status": reply.status, "contentType": reply.media_type}
    try:
        if "json" in reply.media_type.lower() and reply.body:
            # Parsed only to know that it is JSON: what cannot be held exactly is handed on as it is.
            orjson.loads(reply.body)
            return orjson.dumps(value)[:-1] + b',"body":' + reply.body + b"}"
    except orjson.JSONDecodeError:
        pass
    try:
        value["body"] = reply.body.decode()
    except UnicodeDecodeError:
        value |= {"body": base64.b64encode(reply.body).decode(), "encoding": "base64"}
    return orjson.dumps(value)
