"""The keys with which servers of accounts sign visitors, in PostgreSQL."""

from collections.abc import Sequence

import asyncpg

from broker.domain.audit import Actor, AuditEntry
from broker.errors import NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database

_FIND = """
SELECT v.keys FROM accounts a LEFT JOIN visitor_keys v ON v.account = a.name WHERE a.name = $1
"""
_PUT = """
INSERT INTO visitor_keys (account, keys) VALUES ($1, $2)
ON CONFLICT (account) DO UPDATE SET keys = EXCLUDED.keys
"""


class VisitorKeys:
    """The repository. Every method raises `Unavailable` while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, account: str) -> tuple[str, ...]:
        """The keys of an account as they were written, the newest first. Raises NotFound."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_FIND, account)
        if row is None:
            raise NotFound("there is no such account")
        return tuple(row["keys"] or ())

    async def put(self, account: str, keys: Sequence[str], by: Actor) -> None:
        """Replace the keys of an account, and log how many there are now. Raises NotFound."""
        async with self._database.transaction() as connection:
            try:
                await connection.execute(_PUT, account, keys)
            except asyncpg.ForeignKeyViolationError:
                raise NotFound("there is no such account") from None
            told = {"visitorKeys": len(keys)}
            await append_audit(connection, account, AuditEntry(by, "account.updated", account, told))
