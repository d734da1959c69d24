"""Events: their names, their fields and the limits on them."""

import re
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from broker.domain.values import FreeObject, Integer, Model, Time, limited_by

MAX_EVENT_NAME_CHARACTERS = 200
_NAMES = 1_000  # remembered at a time
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*#[A-Za-z][A-Za-z0-9._-]*")


@lru_cache(_NAMES)
def _check_name(value: str) -> str:
    if len(value) > MAX_EVENT_NAME_CHARACTERS or not _NAME.fullmatch(value):
        raise ValueError(
            "must have the form Component#action; each part starts with a letter and goes on with"
            f" letters, digits, '.', '_' or '-'; at most {MAX_EVENT_NAME_CHARACTERS} characters"
        )
    return value


EventName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(json_schema_extra={"maxLength": MAX_EVENT_NAME_CHARACTERS, "pattern": f"^{_NAME.pattern}$"}),
]


class NewEvent(Model):
    """An event as a producer sends it. Absent times are filled in when it is accepted."""

    event: EventName
    timestamp: Integer | None = None
    timecode: Integer | None = None
    metadata: FreeObject | None = Field(default=None, json_schema_extra=limited_by("metadata_limit_bytes"))


class Event(Model):
    """A stored event, in the order of fields in which it is written.

    `seq` and `epoch` place it in the program's history; `timestamp` and `timecode` are milliseconds
    since 1970-01-01T00:00:00Z.
    """

    seq: int
    epoch: str
    id: str
    program_id: str
    created_time: Time
    timestamp: int
    timecode: int
    event: str
    metadata: dict[str, Any]
