"""The rules of accounts for images, in PostgreSQL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from broker.domain.audit import Actor, AuditEntry
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Repository

_FIND = """
SELECT r.hosts, r.presets::text AS presets, r.signing_keys, a.quota_images
FROM accounts a LEFT JOIN image_rules r ON r.account = a.name WHERE a.name = $1
"""
_MAKE_ROW = """
INSERT INTO image_rules (account) SELECT name FROM accounts WHERE name = $1 FOR KEY SHARE
ON CONFLICT DO NOTHING
"""
_LOCK = """
SELECT hosts, presets::text AS presets, signing_keys FROM image_rules WHERE account = $1 FOR NO KEY UPDATE
"""
_UPDATE = "UPDATE image_rules SET hosts = $2, presets = $3, signing_keys = $4 WHERE account = $1"


@dataclass(frozen=True, slots=True)
class StoredImageRules:
    """The rules of one account as they were written.

    Attributes:
        hosts: that images come from; none means any public one.
        presets: name → options.
        signing_keys: newest first; none takes unsigned URLs.
        quota: the account's, of images made a minute; None where it was not asked for or there is none.
    """

    hosts: tuple[str, ...] = ()
    presets: Mapping[str, str] = field(default_factory=dict)
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    quota: int | None = None


class ImageRules(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def get(self, account: str) -> StoredImageRules:
        """The rules of an account; without any the defaults. Raises NotFound."""
        row = await self._database.fetchrow(_FIND, account)
        if row is None:
            raise unknown_account()
        rules = StoredImageRules() if row["hosts"] is None else _rules(row)
        return replace(rules, quota=row["quota_images"])

    async def change(
        self, account: str, change: Callable[[StoredImageRules], StoredImageRules], by: Actor
    ) -> StoredImageRules:
        """Change the rules of an account, and log it without the keys.

        Args:
            change: the rules → what they become; no other change happens between.

        Raises:
            NotFound: there is no such account.
        """
        async with self._database.transaction() as connection:
            await connection.execute(_MAKE_ROW, account)
            row = await connection.fetchrow(_LOCK, account)
            if row is None:
                raise unknown_account()
            rules = change(_rules(row))
            presets = orjson.dumps(dict(rules.presets)).decode()
            await connection.execute(_UPDATE, account, rules.hosts, presets, rules.signing_keys)
            told = {
                "hosts": [*rules.hosts],
                "presets": dict(rules.presets),
                "signed": bool(rules.signing_keys),
            }
            await append_audit(
                connection, account, AuditEntry(by, "account.updated", account, {"images": told})
            )
        return rules


def _rules(row: Any) -> StoredImageRules:
    return StoredImageRules(tuple(row["hosts"]), orjson.loads(row["presets"]), tuple(row["signing_keys"]))
