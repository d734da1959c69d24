"""Programs: create, find and list them. Their owners change and delete them (`broker.owners`)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import orjson

from broker.clock import Clock, to_datetime, to_ms
from broker.concurrency.caches import TtlCache
from broker.domain.programs import Program, ProgramChange, ProgramStatus, turn_of
from broker.domain.projects import going_project
from broker.errors import Conflict, NotFound
from broker.storage.account_quotas import hold_program_quota
from broker.storage.conditions import Conditions
from broker.storage.database import Database
from broker.storage.program_changes import append_change
from broker.storage.program_rows import PROGRAM_COLUMNS, newest_programs, program_of
from broker.storage.project_holds import hold_project
from broker.storage.text_search import TextSearch

_FIND = f"""
    SELECT p.account, {PROGRAM_COLUMNS} FROM unnest($1::text[], $2::text[]) AS wanted (of, named)
    JOIN programs p ON p.account = wanted.of AND p.id = wanted.named
"""  # noqa: S608 - constants
_FOUND = 200  # programs read by one query
_INSERT = """
    INSERT INTO programs (account, id, name, scheduled_start, scheduled_end, project_id, access, metadata,
                          created_time, updated_time)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    RETURNING uid
"""
_INSERT_HEAD = "INSERT INTO program_heads (program_uid, epoch, epoch_reason) VALUES ($1, $2, 'created')"
_HEAD = """
    SELECT h.epoch, h.seq, h.last_change FROM programs p JOIN program_heads h ON h.program_uid = p.uid
    WHERE p.account = $1 AND p.id = $2
"""
# $2 is NULL for callers who may publish to every project.
_OPEN = (
    "p.account = $1 AND ($2::text[] IS NULL OR p.project_id IS NULL OR p.project_id = ANY($2))"
    " AND (p.scheduled_end IS NULL OR p.scheduled_end > $3)"
)

_RECENT_S = 1.0  # as long as other processes may not see a change of a program's project or access
_RECENT_PROGRAMS = 10_000

_LIVE = "(p.scheduled_start <= $3 AND p.scheduled_end > $3)"
_STATUSES = {
    ProgramStatus.SCHEDULED: (
        "(p.scheduled_start IS NULL OR p.scheduled_end IS NULL OR p.scheduled_start > $3)"
    ),
    ProgramStatus.LIVE: _LIVE,
    ProgramStatus.ENDED: "(p.scheduled_start <= $3 AND p.scheduled_end <= $3)",
}
SORTS = {
    "id": "p.id",
    "name": "p.name",
    "scheduledStartTime": "p.scheduled_start",
    "scheduledEndTime": "p.scheduled_end",
    "projectId": "p.project_id",
    "access": "p.access",
    "createdTime": "p.created_time",
    "updatedTime": "p.updated_time",
    "live": f"coalesce({_LIVE}, false)",
}


@dataclass(frozen=True, slots=True)
class ProgramHead:
    """Where a program's history stands; `last_change` is None before the first change."""

    epoch: str
    seq: int
    last_change: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramQuery:
    """What a filter selects; None selects everything.

    Attributes:
        projects: the projects that the caller may publish to, besides programs without one.
        start, end: the scheduled interval overlaps them; a missing scheduled time is without bound, and a
            program without either lies in no range.
        sort: one of `SORTS`.
    """

    limit: int
    skip: int
    sort: str
    descending: bool
    projects: Sequence[str] | None = None
    search: str | None = None
    ids: Sequence[str] | None = None
    statuses: Sequence[ProgramStatus] | None = None
    project_id: str | None = None
    without_project: bool = False
    start: datetime | None = None
    end: datetime | None = None
    live: bool | None = None


class Programs:
    """The programs' repository."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._search = TextSearch(database)
        self._found = database.batcher(self._find, _FOUND)
        self._recent: TtlCache[tuple[str, str], Program] = TtlCache(clock, _RECENT_S, _RECENT_PROGRAMS)

    async def create(
        self, account: str, program: Program, epoch: str, *, project_was_there: bool = False
    ) -> None:
        """Store a new program with the beginning of its history, and announce it, in one transaction.

        Args:
            project_was_there: whether the program's project was there when its creation was asked for.

        Raises:
            Conflict: the id is taken, or the project is being deleted.
            PayloadTooLarge: the account has as many programs as its quota allows.
        """
        project = program.project_id
        try:
            async with self._database.transaction() as connection:
                await hold_program_quota(connection, account)
                if project is not None and not await hold_project(
                    connection, account, project, was_there=project_was_there
                ):
                    raise going_project(project)
                uid = await connection.fetchval(_INSERT, account, *_values(program))
                await connection.execute(_INSERT_HEAD, uid, epoch)
                created = program.created_time
                await append_change(connection, account, ProgramChange.CREATED, program, created)
                if (turn := turn_of(None, program, to_ms(created))) is not None:
                    await append_change(connection, account, turn, program, created)
        except asyncpg.UniqueViolationError as error:
            raise Conflict(f"the program {program.id} already exists") from error

    async def find(self, account: str, program_id: str) -> Program | None:
        """The program, or None."""
        return await self._found.ask((account, program_id))

    async def _find(
        self, connection: asyncpg.Connection, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], Program]:
        rows = await connection.fetch(_FIND, *zip(*keys, strict=True))
        return {(row["account"], row["id"]): program_of(row) for row in rows}

    async def get(self, account: str, program_id: str) -> Program:
        """The program. Raises NotFound."""
        program = await self.find(account, program_id)
        if program is None:
            raise NotFound(f"there is no program {program_id}")
        return program

    async def recall(self, account: str, program_id: str) -> Program | None:
        """The program as of at most a second ago, or None; most calls cost no query."""
        key = (account, program_id)
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        until_s = self._clock.monotonic_s() + _RECENT_S  # it ages from when it was asked for
        program = await self.find(account, program_id)
        if program is None:
            self._recent.pop(key)
        else:
            self._recent.put(key, program, until_s=until_s)
        return program

    def forget(self, account: str, program_id: str) -> None:
        """Let `recall` look again: the program has been changed by this process."""
        self._recent.pop((account, program_id))

    async def head(self, account: str, program_id: str) -> ProgramHead:
        """Where the program's history stands. Raises NotFound."""
        row = await self._database.fetchrow(_HEAD, account, program_id)
        if row is None:
            raise NotFound(f"there is no program {program_id}")
        return ProgramHead(row["epoch"], row["seq"], row["last_change"])

    async def list_open(
        self, account: str, projects: Sequence[str] | None, now_ms: int
    ) -> AsyncGenerator[list[Program]]:
        """Programs that have not ended, newest first; see `ProgramQuery.projects` and `newest_programs`."""
        pages = newest_programs(self._database, _OPEN, account, projects, to_datetime(now_ms))
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def filter(self, account: str, query: ProgramQuery, now_ms: int) -> tuple[list[Program], int]:
        """One page of the programs that `query` selects, and how many there are in all."""
        where = await self._conditions(account, query, now_ms)
        order = "DESC" if query.descending else "ASC"
        statement = f"""
            WITH matching AS (SELECT {PROGRAM_COLUMNS}, p.uid, {SORTS[query.sort]} AS sorted
                              FROM programs p WHERE {where})
            SELECT t.total, p.* FROM (SELECT count(*) AS total FROM matching) t
            LEFT JOIN (SELECT * FROM matching ORDER BY sorted {order} NULLS LAST, uid {order}
                       LIMIT {query.limit} OFFSET {query.skip}) p ON true
            ORDER BY p.sorted {order} NULLS LAST, p.uid {order}
        """  # noqa: S608 - made of constants and integers; values are parameters
        rows = await self._database.fetch(statement, *where.values)
        return [program_of(row) for row in rows if row["id"] is not None], rows[0]["total"]

    async def _conditions(self, account: str, query: ProgramQuery, now_ms: int) -> Conditions:
        where = Conditions(
            "p.account = $1 AND ($2::text[] IS NULL OR p.project_id IS NULL OR p.project_id = ANY($2))"
            " AND $3::timestamptz IS NOT NULL",
            account,
            query.projects,
            to_datetime(now_ms),
        )
        await self._search.add(where, ["p.id", "p.name"], query.search)
        where.add_given("p.id = ANY({}::text[])", query.ids and list(query.ids))
        where.add_any(query.statuses and [_STATUSES[status] for status in query.statuses])
        if query.without_project:
            where.add("p.project_id IS NULL")
        else:
            where.add_given("p.project_id = {}", query.project_id)
        where.add_given(f"coalesce({_LIVE}, false) = {{}}", query.live)
        if query.start is not None or query.end is not None:
            where.add("(p.scheduled_start IS NOT NULL OR p.scheduled_end IS NOT NULL)")
        where.add_given("coalesce(p.scheduled_end >= {}, true)", query.start)
        where.add_given("coalesce(p.scheduled_start <= {}, true)", query.end)
        return where


def _values(program: Program) -> tuple[object, ...]:
    metadata = None if program.metadata is None else orjson.dumps(program.metadata).decode()
    return (
        program.id,
        program.name,
        program.scheduled_start_time,
        program.scheduled_end_time,
        program.project_id,
        program.access.value,
        metadata,
        program.created_time,
        program.updated_time,
    )
