"""Free-form objects of requests: compact JSON, within limits."""

from collections.abc import Iterator
from typing import Any

import orjson

from broker.domain.values import MAX_INTEGER
from broker.errors import FieldFault, InvalidRequest, PayloadTooLarge


def compact(value: dict[str, Any] | None, field: str, limit_bytes: int | None = None) -> bytes:
    """The compact UTF-8 of a free-form object; `{}` when there is none.

    Args:
        field: path of the object, for the error.
        limit_bytes: the most it may have; None has no limit of its own.

    Raises:
        InvalidRequest: it is nested too deeply, or has an integer that not every JSON reader keeps exact.
        PayloadTooLarge: it is over the limit.
    """
    if not value:
        return b"{}"
    try:
        text = orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        text = _slowly(value, field)
    if limit_bytes is not None and len(text) > limit_bytes:
        message = f"must not be over {limit_bytes} bytes as compact JSON"
        raise PayloadTooLarge(f"{field}: {message}", faults=[FieldFault(field, message)])
    return text


def _slowly(value: dict[str, Any], field: str) -> bytes:
    """Find what the encoder refused; its own limit on integers is one below ours, which is allowed."""
    for path, number in _integers(value, field):
        if abs(number) > MAX_INTEGER:
            raise InvalidRequest.of_field(path, f"must be from {-MAX_INTEGER} to {MAX_INTEGER}")
    try:
        return orjson.dumps(value)
    except TypeError:  # it recurses, to a depth of 254
        raise InvalidRequest.of_field(field, "is nested too deeply") from None


def _integers(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Every integer with its path. A stack, not recursion: depth is the sender's choice."""
    stack = [(path, value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [(f"{path}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, int):
            yield path, value
