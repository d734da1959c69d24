"""Conversion between JSON and values.

Fields that a newer broker adds are passed over; a field that is missing or of the wrong type is a
`ProtocolError`. Datetimes are aware and in UTC.
"""

from typing import Any, Self, TypeVar

import msgspec

from broker.client.errors import ProtocolError

T = TypeVar("T")

NOTHING = type(None)
"""The result of what answers nothing."""

encode = msgspec.json.encode


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """A frozen value with snake_case fields here and camelCase ones on the wire."""

    @classmethod
    def parse(cls, raw: object) -> Self:
        """Read parsed JSON, such as the result of `Socket.call`. Raises ProtocolError."""
        return convert(raw, cls)


def decode(content: bytes | bytearray, kind: type[T]) -> T:
    """Read JSON as a value of a type. Raises ProtocolError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise _fault(kind, error) from error


def parse(content: bytes | bytearray) -> Any:
    """Read JSON of any form. Raises ProtocolError."""
    return decode(content, Any)


def convert(raw: object, kind: type[T]) -> T:
    """Read parsed JSON as a value of a type. Raises ProtocolError."""
    try:
        return msgspec.convert(raw, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _fault(kind, error) from error


def _fault(kind: object, error: Exception) -> ProtocolError:
    name = "JSON" if kind is Any else getattr(kind, "__name__", str(kind))
    return ProtocolError(f"the broker sent an invalid {name}: {error}")
