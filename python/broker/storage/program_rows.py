"""Turns rows of `programs` into programs: one, or many in pages."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from broker.domain.programs import Access, Program
from broker.storage.database import Database

PROGRAM_COLUMNS = (
    "id, name, scheduled_start, scheduled_end, project_id, access, metadata::text AS metadata,"
    " created_time, updated_time"
)

_PAGE = 500  # about 200 KB


async def newest_programs(
    database: Database, condition: str, *values: object
) -> AsyncGenerator[list[Program]]:
    """The programs `p` of a condition on `values`, newest first, in pages that are not empty.

    No connection is held while a client reads a page, so each is as its programs are by then.
    """
    created, uid = None, None
    statement = f"""
        SELECT {PROGRAM_COLUMNS}, uid FROM programs p WHERE {condition} AND (
            ${len(values) + 1}::timestamptz IS NULL
            OR (p.created_time, p.uid) < (${len(values) + 1}, ${len(values) + 2}::bigint))
        ORDER BY p.created_time DESC, p.uid DESC LIMIT {_PAGE}
    """  # noqa: S608 - made of constants; values are parameters
    while True:
        rows = await database.fetch(statement, *values, created, uid)
        if rows:
            yield [program_of(row) for row in rows]
        if len(rows) < _PAGE:
            return
        created, uid = rows[-1]["created_time"], rows[-1]["uid"]


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
