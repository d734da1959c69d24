"""Who counts as a visitor of the accounts' polls, in PostgreSQL."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg

from broker.domain.audit import Actor, AuditEntry
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Database, Repository

_SECRET_BYTES = 32
_FOUND = 500  # accounts of one query

_FIND = """
SELECT a.name, coalesce(v.keys, '{}') AS keys, v.secret, coalesce(v.required, 'any') AS required
FROM accounts a LEFT JOIN visitor_rules v ON v.account = a.name WHERE a.name = ANY($1)
"""
_ENSURE = """
INSERT INTO visitor_rules (account, secret) SELECT name, $2 FROM accounts WHERE name = $1 FOR KEY SHARE
ON CONFLICT (account) DO UPDATE SET secret = coalesce(visitor_rules.secret, EXCLUDED.secret)
RETURNING secret
"""
_MAKE_ROW = """
INSERT INTO visitor_rules (account) SELECT name FROM accounts WHERE name = $1 FOR KEY SHARE
ON CONFLICT DO NOTHING
"""
# A secret that is made meanwhile waits too, so a change never takes it away unseen.
_LOCK = "SELECT keys, secret, required FROM visitor_rules WHERE account = $1 FOR NO KEY UPDATE"
_UPDATE = "UPDATE visitor_rules SET keys = $2, secret = $3, required = $4 WHERE account = $1"


class StoredRules(NamedTuple):
    """What is stored of an account: keys as they were written, and None before the secret is made."""

    keys: Sequence[str]
    secret: bytes | None
    required: str


class VisitorRules(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._found = database.batcher(self._find, _FOUND)

    async def get(self, account: str) -> StoredRules:
        """The rules of an account, as they were after this was called. Raises NotFound."""
        rules = await self._found.ask(account)
        if rules is None:
            raise unknown_account()
        return rules

    async def _find(
        self, connection: asyncpg.Connection, accounts: Sequence[str]
    ) -> Mapping[str, StoredRules]:
        rows = await connection.fetch(_FIND, accounts)
        return {row["name"]: _rules(row) for row in rows}

    async def make_secret(self, account: str) -> bytes:
        """The secret under which visitors are handed out, made if there is none. Raises NotFound."""
        async with self._database.connection() as connection:
            made = secrets.token_bytes(_SECRET_BYTES)
            secret: bytes | None = await connection.fetchval(_ENSURE, account, made)
        if secret is None:
            raise unknown_account()
        return secret

    async def change(
        self, account: str, change: Callable[[StoredRules], StoredRules], by: Actor
    ) -> StoredRules:
        """Change the rules of an account, and log them without keys, where they differ then.

        Args:
            change: the rules → what they become; no other change happens between.

        Raises:
            NotFound: there is no such account.
        """
        async with self._database.transaction() as connection:
            await connection.execute(_MAKE_ROW, account)
            before = _rules(await connection.fetchrow(_LOCK, account))
            rules = change(before)
            if rules != before:
                await connection.execute(_UPDATE, account, *rules)
                told = {"visitorKeys": len(rules.keys), "visitors": rules.required}
                await append_audit(connection, account, AuditEntry(by, "account.updated", account, told))
        return rules


def _rules(row: Any) -> StoredRules:
    if row is None:
        raise unknown_account()
    return StoredRules(tuple(row["keys"]), row["secret"], row["required"])
