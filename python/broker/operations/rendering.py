"""Results as JSON, the same bytes on both doors."""

from pydantic_core import to_json

from broker.operations.registry import Json, Reply, Result, Stream


def result_json(result: Result) -> bytes:
    """The finished UTF-8 of a result; `b""` of None. A `Stream` is the door's own to send or to join."""
    assert not isinstance(result, Stream), "the door sends streams itself"
    if isinstance(result, Json):
        return result.body
    value = result.value if isinstance(result, Reply) else result
    return b"" if value is None else to_json(value, by_alias=True)
