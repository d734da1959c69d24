"""Who counts as a visitor of the accounts' polls, in PostgreSQL."""

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from broker.domain.audit import Actor, AuditEntry
from broker.errors import NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database

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
_PUT = """
INSERT INTO visitor_rules (account, keys, secret, required) VALUES ($1, $2, $3, $4)
ON CONFLICT (account) DO UPDATE
SET keys = EXCLUDED.keys, secret = EXCLUDED.secret, required = EXCLUDED.required
"""


class StoredRules(NamedTuple):
    """What is stored of an account: keys as they were written, and None before the secret is made."""

    keys: Sequence[str]
    secret: bytes | None
    required: str


class VisitorRules:
    """The repository. Every method raises `Unavailable` while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._found = database.batcher(self._find, _FOUND)

    async def get(self, account: str) -> StoredRules:
        """The rules of an account, as they were after this was called. Raises NotFound."""
        rules = await self._found.ask(account)
        if rules is None:
            raise NotFound("there is no such account")
        return rules

    async def _find(
        self, connection: asyncpg.Connection, accounts: Sequence[str]
    ) -> Mapping[str, StoredRules]:
        rows = await connection.fetch(_FIND, accounts)
        return {row["name"]: StoredRules(tuple(row["keys"]), row["secret"], row["required"]) for row in rows}

    async def make_secret(self, account: str) -> bytes:
        """The secret under which visitors are handed out, made if there is none. Raises NotFound."""
        async with self._database.connection() as connection:
            made = secrets.token_bytes(_SECRET_BYTES)
            secret: bytes | None = await connection.fetchval(_ENSURE, account, made)
        if secret is None:
            raise NotFound("there is no such account")
        return secret

    async def put(self, account: str, rules: StoredRules, by: Actor) -> None:
        """Replace the rules of an account, and log them without keys. Raises NotFound."""
        async with self._database.transaction() as connection:
            try:
                await connection.execute(_PUT, account, *rules)
            except asyncpg.ForeignKeyViolationError:
                raise NotFound("there is no such account") from None
            told = {"visitorKeys": len(rules.keys), "visitors": rules.required}
            await append_audit(connection, account, AuditEntry(by, "account.updated", account, told))
