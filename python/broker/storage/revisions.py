"""Application revisions in PostgreSQL."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import asyncpg
import orjson
from pydantic_core import to_json

from broker.domain.audit import Actor, AuditEntry, changed_fields
from broker.domain.revisions import WRITABLE, LiveRevision, Revision, RevisionStatus
from broker.errors import Conflict, NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database, Repository
from broker.storage.projects import unknown_project

LATEST = "latest"
"""Names the published revision that was made last; no revision has it as its id or version."""
_PAGE = 16  # revisions of up to a megabyte

_COLUMNS = (
    "id, project_id, title, description, version, status, content::text AS content, created_by, updated_by,"
    " created_time, updated_time"
)
_OF_PROJECT = f"SELECT {_COLUMNS} FROM revisions WHERE account = $1 AND project_id = $2"  # noqa: S608 - constants
_GET = f"{_OF_PROJECT} AND id = $3"
_GET_LOCKED = f"{_GET} FOR UPDATE"
_BY_VERSION = f"{_OF_PROJECT} AND (id = $3 OR version = $3) ORDER BY (id = $3) DESC LIMIT 1"
_PUBLISHED = f"""
    SELECT r.*, wanted.account, wanted.version AS wanted
    FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted (account, project_id, version)
    CROSS JOIN LATERAL (
        (SELECT {_COLUMNS} FROM revisions o
         WHERE o.account = wanted.account AND o.project_id = wanted.project_id AND o.status = 'published'
           AND (o.id = wanted.version OR o.version = wanted.version)
         ORDER BY (o.id = wanted.version) DESC LIMIT 1)
        UNION ALL
        (SELECT {_COLUMNS} FROM revisions o
         WHERE wanted.version = '{LATEST}' AND o.account = wanted.account
           AND o.project_id = wanted.project_id AND o.status = 'published'
         ORDER BY o.uid DESC LIMIT 1)) r
"""  # noqa: S608 - constants
_PUBLISHED_MOST = 16  # revisions read by one query, of up to a megabyte
_LATEST = f"{_OF_PROJECT} AND status = $3 ORDER BY uid DESC LIMIT 1"
_LIST = f"""
    SELECT {_COLUMNS}, uid FROM revisions
    WHERE account = $1 AND project_id = $2 AND ($3::text IS NULL OR status = $3)
        AND ($4::bigint IS NULL OR uid < $4)
    ORDER BY uid DESC LIMIT $5
"""  # noqa: S608 - constants
_LOCK_PROJECT = "SELECT last_version FROM projects WHERE account = $1 AND id = $2 FOR NO KEY UPDATE"
# Of one more candidate than there are revisions, one is free.
_FREE_VERSION = """
    SELECT n FROM generate_series($3::bigint + 1, $3::bigint + 1 + (
        SELECT count(*) FROM revisions WHERE account = $1 AND project_id = $2)) AS n
    WHERE NOT EXISTS (
        SELECT 1 FROM revisions WHERE account = $1 AND project_id = $2 AND version = n::text)
    ORDER BY n LIMIT 1
"""
_KEEP_VERSION = "UPDATE projects SET last_version = $3 WHERE account = $1 AND id = $2"
_INSERT = """
    INSERT INTO revisions (account, project_id, id, title, description, version, status, content, created_by,
                           updated_by, created_time, updated_time)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
"""
_UPDATE = """
    UPDATE revisions SET title = $4, description = $5, version = $6, status = $7, content = $8,
                         updated_by = $9, updated_time = $10
    WHERE account = $1 AND project_id = $2 AND id = $3
"""


class Revisions(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._live = database.batcher(self._find_live, _PUBLISHED_MOST)

    async def create(self, account: str, revision: Revision, by: Actor) -> Revision:
        """Store a new revision, and log who did; one without version gets the next number that is free.

        Raises:
            NotFound: no such project.
            Conflict: the version is taken.
        """
        project_id = revision.project_id
        with_version = revision
        try:
            async with self._database.transaction() as connection:
                last = await connection.fetchval(_LOCK_PROJECT, account, project_id)
                if last is None:
                    raise unknown_project(project_id)
                if not revision.version:
                    last = await connection.fetchval(_FREE_VERSION, account, project_id, last)
                    with_version = revision.model_copy(update={"version": str(last)})
                await connection.execute(_INSERT, account, *_values(with_version))
                if not revision.version:
                    await connection.execute(_KEEP_VERSION, account, project_id, last)
                entry = AuditEntry(by, "revision.created", with_version.id, _details(with_version))
                await append_audit(connection, account, entry)
        except asyncpg.UniqueViolationError as error:
            raise _taken(with_version) from error
        return with_version

    async def get(self, account: str, project_id: str, revision_id: str) -> Revision:
        """One revision. Raises NotFound."""
        return _found(await self._database.fetchrow(_GET, account, project_id, revision_id))

    async def get_by_version(self, account: str, project_id: str, version: str) -> Revision:
        """The revision with this id, else with this version. Raises NotFound."""
        return _found(await self._database.fetchrow(_BY_VERSION, account, project_id, version))

    async def get_live(self, account: str, project_id: str, version: str) -> bytes:
        """The JSON of the `LiveRevision` of the published one with this id, else version, or the `LATEST`.

        Raises:
            NotFound: there is none.
        """
        found = await self._live.ask((account, project_id, version))
        if found is None:
            raise NotFound("there is no such revision")
        return found

    async def _find_live(
        self, connection: asyncpg.Connection, keys: Sequence[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], bytes]:
        rows = await connection.fetch(_PUBLISHED, *zip(*keys, strict=True))
        return {
            (row["account"], row["project_id"], row["wanted"]): to_json(
                LiveRevision.of(_revision(row)), by_alias=True
            )
            for row in rows
        }

    async def find_latest(self, account: str, project_id: str, status: RevisionStatus) -> Revision | None:
        """The revision of this status that was made last, or None."""
        row = await self._database.fetchrow(_LATEST, account, project_id, status)
        return None if row is None else _revision(row)

    async def pages(
        self, account: str, project_id: str, status: RevisionStatus | None
    ) -> AsyncGenerator[list[Revision]]:
        """All revisions, of one status or of any, newest first, in pages that are not empty.

        No connection is held while a client reads a page, so each is as its revisions are by then.
        """
        uid = None
        while True:
            rows = await self._database.fetch(_LIST, account, project_id, status, uid, _PAGE)
            if rows:
                yield [_revision(row) for row in rows]
            if len(rows) < _PAGE:
                return
            uid = rows[-1]["uid"]

    async def change(
        self,
        account: str,
        project_id: str,
        revision_id: str,
        change: Callable[[Revision], Revision],
        by: Actor,
    ) -> Revision:
        """Store what `change` makes of the revision, and log who did; one change comes after the other.

        Raises:
            NotFound: no such revision. What `change` raises leaves everything as it was.
            Conflict: the version is taken.
        """
        async with self._database.transaction() as connection:
            before = _found(await connection.fetchrow(_GET_LOCKED, account, project_id, revision_id))
            after = change(before)
            try:
                changes = (after.updated_by, after.updated_time)
                await connection.execute(_UPDATE, account, project_id, revision_id, *_said(after), *changes)
            except asyncpg.UniqueViolationError as error:
                raise _taken(after) from error
            changed = changed_fields(before, after, WRITABLE)
            if changed:
                is_new = "status" in changed and after.status is RevisionStatus.PUBLISHED
                action = "revision.published" if is_new else "revision.updated"
                details = _details(after) | {"changed": changed}
                await append_audit(connection, account, AuditEntry(by, action, revision_id, details))
        return after


def _details(revision: Revision) -> dict[str, Any]:
    """The description of a revision in the audit log."""
    return {"projectId": revision.project_id, "version": revision.version, "status": revision.status}


def _taken(revision: Revision) -> Conflict:
    return Conflict(f"the project already has a revision of version {revision.version}")


def _found(row: Any) -> Revision:
    if row is None:
        raise NotFound("there is no such revision")
    return _revision(row)


def _values(revision: Revision) -> tuple[object, ...]:
    made = (revision.created_by, revision.updated_by, revision.created_time, revision.updated_time)
    return (revision.project_id, revision.id, *_said(revision), *made)


def _said(revision: Revision) -> tuple[object, ...]:
    """The columns that callers write, in the order of the statements."""
    content = orjson.dumps(revision.content).decode()
    return (revision.title, revision.description, revision.version, revision.status, content)


def _revision(row: Any) -> Revision:
    return Revision.model_construct(
        **{name: row[name] for name in Revision.model_fields}
        | {"status": RevisionStatus(row["status"]), "content": orjson.loads(row["content"])}
    )
