"""The audit log in PostgreSQL: written with the changes it records, read by admins, deleted by age."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import orjson

from broker.domain.audit import Actor, AuditEntry
from broker.storage.conditions import Conditions
from broker.storage.database import Database, Repository
from broker.storage.text_search import TextSearch

_APPEND = """
INSERT INTO audit (account, time, actor_id, actor_name, action, target_type, target_id, details)
VALUES ($1, now(), $2, $3, $4, $5, $6, $7)
"""
_ACCOUNTS = "SELECT name FROM accounts"
_PURGE = """
DELETE FROM audit WHERE id = ANY(ARRAY(
    SELECT id FROM audit WHERE time < now() - make_interval(days => $1) LIMIT $2))
"""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry as it is stored; `time` is the database's."""

    id: int
    time: datetime
    entry: AuditEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which entries; None selects all. `start` is inclusive, `end` exclusive."""

    limit: int
    skip: int
    descending: bool = True
    search: str | None = None
    actions: Sequence[str] | None = None
    target_id: str | None = None
    user_id: str | None = None
    start: datetime | None = None
    end: datetime | None = None


async def append_audit(connection: asyncpg.Connection, account: str, entry: AuditEntry) -> None:
    """Add an entry in the caller's transaction: there if and only if the change is."""
    await connection.execute(
        _APPEND,
        account,
        entry.actor.user_id,
        entry.actor.name,
        entry.action,
        entry.target_type,
        entry.target_id,
        orjson.dumps(dict(entry.details)).decode(),
    )


async def append_audit_to_all(connection: asyncpg.Connection, entry: AuditEntry) -> None:
    """Add an entry to the audit logs of all accounts, in the caller's transaction."""
    for account in await connection.fetch(_ACCOUNTS):
        await append_audit(connection, account["name"], entry)


class Audit(Repository):
    """The audit log. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._search = TextSearch(database)

    async def filter(self, account: str, query: AuditQuery) -> tuple[list[AuditRow], int]:
        """One page of the account's entries in the order of their time, and how many there are in all."""
        where = Conditions("a.account = $1", account)
        await self._search.add(where, ["a.action", "a.target_id", "a.actor_name"], query.search)
        where.add_given("a.action = ANY({}::text[])", query.actions and list(query.actions))
        where.add_given("a.target_id = {}", query.target_id)
        where.add_given("a.actor_id = {}", query.user_id)
        where.add_given("a.time >= {}", query.start)
        where.add_given("a.time < {}", query.end)
        order = "DESC" if query.descending else "ASC"
        statement = f"""
            WITH matching AS (SELECT * FROM audit a WHERE {where})
            SELECT t.total, p.* FROM (SELECT count(*) AS total FROM matching) t
            LEFT JOIN (SELECT * FROM matching ORDER BY id {order} LIMIT {query.limit} OFFSET {query.skip}) p
                ON true
            ORDER BY p.id {order}
        """  # noqa: S608 - made of constants and integers; values are parameters
        rows = await self._database.fetch(statement, *where.values)
        return [_row(row) for row in rows if row["id"] is not None], rows[0]["total"]

    async def purge(self, days: int, limit: int) -> bool:
        """Delete at most `limit` entries older than `days`; true when there may be more."""
        return await self._database.execute(_PURGE, days, limit) >= limit


def _row(row: asyncpg.Record) -> AuditRow:
    actor = Actor(row["actor_id"], row["actor_name"])
    entry = AuditEntry(actor, row["action"], row["target_id"], orjson.loads(row["details"]))
    return AuditRow(row["id"], row["time"], entry)
