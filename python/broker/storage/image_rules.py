"""The rules of accounts for images, in PostgreSQL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from broker.domain.audit import Actor, AuditEntry
from broker.errors import NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database

_FIND = """
SELECT r.hosts, r.presets::text AS presets, r.signing_keys
FROM accounts a LEFT JOIN image_rules r ON r.account = a.name WHERE a.name = $1
"""
_PUT = """
INSERT INTO image_rules (account, hosts, presets, signing_keys) VALUES ($1, $2, $3, $4)
ON CONFLICT (account) DO UPDATE
SET hosts = EXCLUDED.hosts, presets = EXCLUDED.presets, signing_keys = EXCLUDED.signing_keys
"""


@dataclass(frozen=True, slots=True)
class StoredImageRules:
    """The rules of one account as they were written.

    Attributes:
        hosts: that pictures come from; none means any public one.
        presets: name → options.
        signing_keys: newest first; none takes unsigned URLs.
    """

    hosts: tuple[str, ...] = ()
    presets: Mapping[str, str] = field(default_factory=dict)
    signing_keys: tuple[str, ...] = field(default=(), repr=False)


class ImageRules:
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, account: str) -> StoredImageRules:
        """The rules of an account; without any the defaults. Raises NotFound."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_FIND, account)
        if row is None:
            raise NotFound("there is no such account")
        return StoredImageRules() if row["hosts"] is None else _rules(row)

    async def put(self, account: str, rules: StoredImageRules, by: Actor) -> None:
        """Replace the rules of an account, and log it without the keys. Raises NotFound."""
        async with self._database.transaction() as connection:
            presets = orjson.dumps(dict(rules.presets)).decode()
            try:
                await connection.execute(_PUT, account, rules.hosts, presets, rules.signing_keys)
            except asyncpg.ForeignKeyViolationError:
                raise NotFound("there is no such account") from None
            told = {
                "hosts": [*rules.hosts],
                "presets": dict(rules.presets),
                "signed": bool(rules.signing_keys),
            }
            await append_audit(
                connection, account, AuditEntry(by, "account.updated", account, {"images": told})
            )


def _rules(row: Any) -> StoredImageRules:
    return StoredImageRules(tuple(row["hosts"]), orjson.loads(row["presets"]), tuple(row["signing_keys"]))
