"""Programs: their fields, when they are live, and which of them a filter selects."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import orjson
from pydantic import Field, model_validator

from broker.clock import to_ms
from broker.domain.values import FreeObject, Id, Model, Name, Time, format_time


class Access(StrEnum):
    """Who may follow a program: anybody, or only holders of a token that may read it."""

    PUBLIC = "public"
    PRIVATE = "private"


class ProgramStatus(StrEnum):
    """Derived from the scheduled times; never stored."""

    SCHEDULED = "scheduled"
    LIVE = "live"
    ENDED = "ended"


class ProgramChange(StrEnum):
    """The kind of change in a notification of the channel `programs`."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    LIVE = "live"
    ENDED = "ended"


class Program(Model):
    """A stored program. `live` is derived at reading and belongs to `ProgramResource`."""

    id: Id
    name: Name
    scheduled_start_time: Time | None = None
    scheduled_end_time: Time | None = None
    project_id: Id | None = None
    access: Access = Field(default=Access.PUBLIC, strict=False)
    metadata: FreeObject | None = None
    created_time: Time
    updated_time: Time

    @model_validator(mode="after")
    def _end_is_not_before_start(self) -> Self:
        check_interval(self.scheduled_start_time, self.scheduled_end_time)
        return self

    def status(self, now_ms: int) -> ProgramStatus:
        """Where the program stands at `now_ms`; without both times it is scheduled.

        It is live from its start (inclusive) to its end (exclusive).
        """
        if self.scheduled_start_time is None or self.scheduled_end_time is None:
            return ProgramStatus.SCHEDULED
        if now_ms < to_ms(self.scheduled_start_time):
            return ProgramStatus.SCHEDULED
        return ProgramStatus.LIVE if now_ms < to_ms(self.scheduled_end_time) else ProgramStatus.ENDED


def turn_of(before: Program | None, after: Program, now_ms: int) -> ProgramChange | None:
    """Whether a program goes live or ends by being changed from `before`, or created, at `now_ms`."""
    was_live = before is not None and before.status(now_ms) is ProgramStatus.LIVE
    is_live = after.status(now_ms) is ProgramStatus.LIVE
    if was_live == is_live:
        return None
    return ProgramChange.LIVE if is_live else ProgramChange.ENDED


class ProgramResource(Program):
    """A program as it is answered."""

    live: bool

    @classmethod
    def of(cls, program: Program, now_ms: int) -> "ProgramResource":
        """The resource of `program` at `now_ms`."""
        live = program.status(now_ms) is ProgramStatus.LIVE
        return cls.model_construct(**dict(program), live=live)


def program_json(program: Program, now_ms: int) -> bytes:
    """The JSON of the `ProgramResource` of `program` at `now_ms`; for the hot path, by hand."""
    start, end = program.scheduled_start_time, program.scheduled_end_time
    return orjson.dumps(
        {
            "id": program.id,
            "name": program.name,
            "scheduledStartTime": None if start is None else format_time(start),
            "scheduledEndTime": None if end is None else format_time(end),
            "projectId": program.project_id,
            "access": program.access.value,
            "metadata": program.metadata,
            "createdTime": format_time(program.created_time),
            "updatedTime": format_time(program.updated_time),
            "live": program.status(now_ms) is ProgramStatus.LIVE,
        }
    )


FREE_CONTEXTS = "freeContexts"


def has_free_contexts(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a program's audience may answer in contexts that are no events of it."""
    return metadata is not None and metadata.get(FREE_CONTEXTS) is True


def check_interval(start: datetime | None, end: datetime | None) -> None:
    """Raise ValueError when the end lies before the start; equal or absent times are fine."""
    if start is not None and end is not None and end < start:
        raise ValueError("scheduledEndTime: must not be before scheduledStartTime")
