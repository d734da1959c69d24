"""Projects in PostgreSQL."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import asyncpg
import orjson

from broker.clock import Clock, to_datetime
from broker.domain.audit import Actor, AuditEntry, changed_fields
from broker.domain.programs import Program
from broker.domain.projects import Project
from broker.errors import Conflict, NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database
from broker.storage.program_rows import newest_programs
from broker.storage.revocations import wake_listeners

_COLUMNS = "id, name, description, metadata::text AS metadata, created_time, updated_time"
_GET = f"SELECT {_COLUMNS} FROM projects WHERE account = $1 AND id = $2"  # noqa: S608 - constants
_GET_LOCKED = f"{_GET} FOR NO KEY UPDATE"
# As a deletion itself holds it, and before it looks for programs: see `broker.storage.project_holds`.
_GET_TO_DELETE = f"{_GET} FOR UPDATE"
_EXISTS = "SELECT true FROM projects WHERE account = $1 AND id = $2"
# $2 is NULL for callers who may read every project.
_LIST = f"""
    SELECT {_COLUMNS} FROM projects WHERE account = $1 AND ($2::text[] IS NULL OR id = ANY($2)) ORDER BY id
"""  # noqa: S608 - constants
_INSERT = """
    INSERT INTO projects (account, id, name, description, metadata, created_time, updated_time)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_INSERT_USAGE = "INSERT INTO storage_usage (account, project_id) VALUES ($1, $2)"
_UPDATE = """
    UPDATE projects SET name = $3, description = $4, metadata = $5, updated_time = $6
    WHERE account = $1 AND id = $2
"""
_DELETE = "DELETE FROM projects WHERE account = $1 AND id = $2 RETURNING true"
_PROGRAMS = "p.account = $1 AND p.project_id = $2"
_PROGRAM_IDS = "SELECT id FROM programs WHERE account = $1 AND project_id = $2 LIMIT $3"
# As everything does that changes users; see `broker.storage.users`.
_LOCK_ACCOUNT = "SELECT 1 FROM accounts WHERE name = $1 FOR NO KEY UPDATE"
_REMOVE_MEMBERS = """
    UPDATE users SET project_ids = array_remove(project_ids, $2), updated_time = $3
    WHERE account = $1 AND $2 = ANY(project_ids)
"""


class _HasProgramsError(Exception):
    """Ends the transaction of a deletion, and its locks with it."""


class Projects:
    """The projects' repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(self, account: str, project: Project, by: Actor) -> None:
        """Store a new project, and log who did. Raises Conflict when the id is taken."""
        try:
            async with self._database.transaction() as connection:
                await connection.execute(
                    _INSERT,
                    account,
                    project.id,
                    project.name,
                    project.description,
                    orjson.dumps(project.metadata).decode(),
                    project.created_time,
                    project.updated_time,
                )
                await connection.execute(_INSERT_USAGE, account, project.id)
                await append_audit(connection, account, AuditEntry(by, "project.created", project.id))
        except asyncpg.UniqueViolationError as error:
            raise Conflict(f"the project {project.id} already exists") from error

    async def get(self, account: str, project_id: str) -> Project:
        """One project. Raises NotFound."""
        return _found(await self._database.fetchrow(_GET, account, project_id), project_id)

    async def exists(self, account: str, project_id: str) -> bool:
        """Whether there is such a project."""
        return await self._database.fetchval(_EXISTS, account, project_id) is not None

    async def require(self, account: str, project_id: str) -> None:
        """Raise NotFound when there is no such project."""
        if not await self.exists(account, project_id):
            raise unknown_project(project_id)

    async def change(
        self, account: str, project_id: str, change: Callable[[Project], Project], by: Actor
    ) -> Project:
        """Store what `change` makes of the project, and log who did; one change comes after the other.

        Raises:
            NotFound: no such project. What `change` raises leaves everything as it was.
        """
        async with self._database.transaction() as connection:
            before = _found(await connection.fetchrow(_GET_LOCKED, account, project_id), project_id)
            after = change(before)
            await connection.execute(
                _UPDATE,
                account,
                project_id,
                after.name,
                after.description,
                orjson.dumps(after.metadata).decode(),
                after.updated_time,
            )
            changed = changed_fields(before, after, ("name", "description", "metadata"))
            if changed:
                entry = AuditEntry(by, "project.updated", project_id, {"changed": changed})
                await append_audit(connection, account, entry)
        return after

    async def delete(self, account: str, project_id: str, by: Actor) -> bool:
        """Delete a project with its stored values and revisions, end its memberships, and log who did.

        Returns:
            False, and nothing is done, when a program names the project.

        Raises:
            NotFound: no such project.
        """
        with suppress(_HasProgramsError):
            await self._delete(account, project_id, by)
            return True
        return False

    async def _delete(self, account: str, project_id: str, by: Actor) -> None:
        async with self._database.transaction() as connection:
            await connection.fetchval(_LOCK_ACCOUNT, account)
            _found(await connection.fetchrow(_GET_TO_DELETE, account, project_id), project_id)
            if await connection.fetch(_PROGRAM_IDS, account, project_id, 1):
                raise _HasProgramsError
            await connection.execute(_DELETE, account, project_id)
            # A project made again under this id is not the former members'.
            now = to_datetime(self._clock.now_ms())
            await connection.execute(_REMOVE_MEMBERS, account, project_id, now)
            await append_audit(connection, account, AuditEntry(by, "project.deleted", project_id))
            await wake_listeners(connection)

    async def program_ids(self, account: str, project_id: str, limit: int) -> list[str]:
        """At most `limit` ids of the project's programs, in no order."""
        rows = await self._database.fetch(_PROGRAM_IDS, account, project_id, limit)
        return [row["id"] for row in rows]

    async def programs(self, account: str, project_id: str) -> AsyncGenerator[list[Program]]:
        """The project's programs, newest first; see `newest_programs`."""
        pages = newest_programs(self._database, _PROGRAMS, account, project_id)
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def list(self, account: str, ids: Sequence[str] | None) -> list[Project]:
        """The projects of these ids, or all of them for None; by id."""
        return [_project(row) for row in await self._database.fetch(_LIST, account, ids)]


def unknown_project(project_id: str) -> NotFound:
    """The error for an unknown project."""
    return NotFound(f"there is no project {project_id}")


def _found(row: Any, project_id: str) -> Project:
    if row is None:
        raise unknown_project(project_id)
    return _project(row)


def _project(row: Any) -> Project:
    return Project.model_construct(
        **{name: row[name] for name in Project.model_fields} | {"metadata": orjson.loads(row["metadata"])}
    )
