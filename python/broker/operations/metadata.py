"""Free-form objects of requests: compact JSON, within limits."""

from typing import Any

from broker.domain.strict_json import compact_json
from broker.errors import FieldFault, PayloadTooLarge


def compact(value: dict[str, Any] | None, field: str, limit_bytes: int | None = None) -> bytes:
    """The compact UTF-8 of a free-form object; `{}` when there is none.

    Args:
        field: path of the object, for the error.
        limit_bytes: the most it may have; None has no limit of its own.

    Raises:
        InvalidRequest: it is nested too deeply.
        PayloadTooLarge: it is over the limit.
    """
    if not value:
        return b"{}"
    text = compact_json(value, field)
    if limit_bytes is not None and len(text) > limit_bytes:
        message = f"must not be over {limit_bytes} bytes as compact JSON"
        raise PayloadTooLarge(f"{field}: {message}", faults=[FieldFault(field, message)])
    return text
