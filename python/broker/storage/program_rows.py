"""How a row of `programs` becomes a `Program`, for those that write programs inside larger transactions."""

from collections.abc import Mapping
from typing import Any

import orjson

from broker.domain.programs import Access, Program

PROGRAM_COLUMNS = (
    "id, name, scheduled_start, scheduled_end, project_id, access, metadata::text AS metadata,"
    " created_time, updated_time"
)


def program_of(row: Mapping[str, Any]) -> Program:
    """The program of a row that has `PROGRAM_COLUMNS`; what is stored was validated before."""
    return Program.model_construct(
        id=row["id"],
        name=row["name"],
        scheduled_start_time=row["scheduled_start"],
        scheduled_end_time=row["scheduled_end"],
        project_id=row["project_id"],
        access=Access(row["access"]),
        metadata=None if row["metadata"] is None else orjson.loads(row["metadata"]),
        created_time=row["created_time"],
        updated_time=row["updated_time"],
    )
