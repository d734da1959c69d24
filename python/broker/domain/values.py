"""The field types of all resources: base model, times, integers and identifiers.

Bodies are validated in pydantic's strict mode, so a number in quotes is refused; the types here say what
strict mode cannot. A rule about a kind of value stands here once and nowhere else.
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from broker.clock import to_datetime
from broker.errors import MAX_FAULTS

MAX_INTEGER = 2**53  # the largest magnitude that every JSON reader keeps exact (RFC 8259, section 6)
MAX_NAME_CHARACTERS = 1_000
_TIME = "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ"  # in half the time of `isoformat`
_FIRST_TIME = datetime(1, 1, 1, tzinfo=UTC)
_TIMES = 1_000  # remembered at a time
_SECONDS = 100
_IDS = 10_000
_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_ORDINAL = re.compile(r"([0-9]{4})-?([0-9]{3})(?=[Tt ]|\Z)")  # a date of ISO 8601 that `date` does not read
# Midnight as the end of a day (ISO 8601-1, 5.3.1.4), which Python reads from 3.13 on.
_END_OF_DAY = re.compile(r"(.{8,10}[T ])24((?::?00){0,2}(?:[.,]0+)?(?:[Z+-].*)?)")
_ACCOUNT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # also a DNS label (RFC 1035, section 2.3.1)
RESERVED_IDS = frozenset({"filter", ".", ".."})  # `filter` is a path of its own; dots vanish from URLs


class Model(BaseModel):
    """The base of every resource and params model: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        json_schema_serialization_defaults_required=True,  # a reply has all of its fields
    )

    @classmethod
    def read(cls, written: bytes | Mapping[str, Any]) -> Self:
        """What the product itself has written, as JSON or as its object.

        Fields that only a newer version knows are left out: it runs beside this one during an upgrade.

        Raises:
            ValidationError: it is no such model.
        """
        if isinstance(written, bytes):
            return cls.model_validate_json(written, extra="ignore")
        return cls.model_validate(written, extra="ignore")


def without_excess(model: type[BaseModel], raw: Any) -> Any:
    """What is to be validated, with no more fields that the model lacks than an error lists.

    The validator makes a fault of every such field, of which an attacker sends a hundred thousand.
    """
    if (
        not isinstance(raw, dict)
        or len(raw) <= MAX_FAULTS
        or len(raw) <= len(model.model_fields) + MAX_FAULTS
    ):
        return raw
    known = {info.alias or name for name, info in model.model_fields.items()}
    excess = islice((name for name in raw if name not in known), MAX_FAULTS)
    return {name: raw[name] for name in (*(known & raw.keys()), *excess)}


def bounded(model: type[BaseModel]) -> BeforeValidator:
    """For a list of models, or a model within another: `without_excess` of each."""
    most = len(model.model_fields) + MAX_FAULTS

    def bound(value: Any) -> Any:
        if not isinstance(value, list):
            return without_excess(model, value)
        for element in value:
            if type(element) is dict and len(element) > most:
                return [without_excess(model, each) for each in value]
        return value

    return BeforeValidator(bound)


@lru_cache(_TIMES)  # a program that is read a thousand times a second has the same two each time
def format_time(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and `Z`, as every datetime leaves us."""
    utc = moment.astimezone(UTC)
    return _TIME % (
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond // 1000,
    )  # fmt: skip


def format_ms(ms: int) -> str:
    """`format_time` of milliseconds since 1970-01-01T00:00:00Z; fast where many are of the same second."""
    second, rest = divmod(ms, 1000)
    return f"{_format_second(second)}{rest:03d}Z"


@lru_cache(_SECONDS)
def _format_second(second: int) -> str:
    return format_time(to_datetime(second * 1000))[:-4]


def parse_time(value: object) -> datetime:
    """Read an ISO 8601 date or datetime with any offset; without one it is UTC.

    Raises:
        ValueError: it is not such a text, or lies outside the years 1 to 9999 in UTC; or it is the very first
            moment of them, which asyncpg stores as `-infinity`, and clients in Go and .NET send for no time.
    """
    moment = _read_time(value)
    if moment == _FIRST_TIME:
        raise ValueError("must be later than 0001-01-01T00:00:00Z")
    return moment


def _read_time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if not isinstance(value, str):
        raise ValueError("must be an ISO 8601 date or datetime")
    try:
        if ordinal := _ORDINAL.match(value):
            year, number = map(int, ordinal.groups())
            day = date(year, 1, 1) + timedelta(days=number - 1)
            if not number or day.year != year:
                raise ValueError("must be a date that exists")
            value = day.isoformat() + value[ordinal.end() :]
        if len(value) == 10:
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        value = value.upper()  # RFC 3339, section 5.6: `t` and `z` may be in lower case.
        end = _END_OF_DAY.fullmatch(value)
        moment = datetime.fromisoformat(f"{end[1]}00{end[2]}" if end else value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC) + timedelta(days=1 if end else 0)
    except (ValueError, OverflowError):
        raise ValueError("must be an ISO 8601 date or datetime") from None


@lru_cache(_IDS)  # a call from the validator costs more than the check
def _check_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise ValueError("must be 1 to 128 characters of A-Z a-z 0-9 . _ ~ : -")
    if value in RESERVED_IDS:
        raise ValueError("is a reserved word")
    return value


def is_account_name(value: str) -> bool:
    """Whether `value` can be the name of an account: lowercase letters, digits and inner hyphens."""
    return _ACCOUNT.fullmatch(value) is not None


def check_storable(value: str) -> str:
    """The text, unless it has the one character that PostgreSQL can neither store nor compare.

    Raises:
        ValueError: it has.
    """
    if "\x00" in value:
        raise ValueError("must not contain U+0000")
    return value


# For `json_schema_extra`: the field may be absent, and its handler refuses null.
NEVER_NULL: dict[str, Any] = {"x-never-null": True}


def limited_by(setting: str) -> dict[str, Any]:
    """For `json_schema_extra`: the setting of the most elements or bytes, or of the texts that are taken."""
    return {"x-limited-by": setting}


Time = Annotated[
    datetime,
    BeforeValidator(parse_time),
    PlainSerializer(format_time, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time"}),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": form} for form in ("date-time", "date")]},
        mode="validation",
    ),
]
Integer = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Id = Annotated[
    str,
    AfterValidator(_check_id),
    Field(json_schema_extra={"pattern": f"^{_ID.pattern}$", "not": {"enum": sorted(RESERVED_IDS)}}),
]
STORABLE = Field(json_schema_extra={"pattern": "^[^\\u0000]*$"})  # what `check_storable` takes
Name = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS), AfterValidator(check_storable), STORABLE
]
FIRST_FAULT = Field(
    fail_fast=True
)  # for every list: the faults of its first element that is wrong are enough
FreeObject = InstanceOf[dict[str, Any]]  # taken as it is: nothing inside is ours to check, or to copy
