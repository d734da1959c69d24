"""Free-form objects of requests: compact JSON, within limits."""

from typing import Any

import orjson

from broker.domain.strict_json import require_depth, require_integers, require_written_depth
from broker.errors import FieldFault, PayloadTooLarge


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
    require_written_depth(text, field)
    if limit_bytes is not None and len(text) > limit_bytes:
        message = f"must not be over {limit_bytes} bytes as compact JSON"
        raise PayloadTooLarge(f"{field}: {message}", faults=[FieldFault(field, message)])
    return text


def _slowly(value: dict[str, Any], field: str) -> bytes:
    """Find what the encoder refused; its own limit on integers is one below ours, which is allowed."""
    require_depth(value, field)
    require_integers(value, field)
    return orjson.dumps(value)
