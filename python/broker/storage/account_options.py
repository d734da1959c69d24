"""What operators have set for accounts beside origins and quotas, to show it: no secret is read."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from broker.storage.database import Repository

_SELECT = """
SELECT a.name, r.hosts, r.presets::text AS presets, cardinality(r.signing_keys) > 0 AS is_signed,
    p.url, p.reader
FROM accounts a
LEFT JOIN image_rules r ON r.account = a.name
LEFT JOIN analytics_platforms p ON p.account = a.name
WHERE a.name = $1 OR $1::text IS NULL
"""


@dataclass(frozen=True, slots=True)
class MatomoReader:
    """Where an account's own Matomo is, and who reads its reports."""

    url: str
    reader: str


@dataclass(frozen=True, slots=True)
class AccountOptions:
    """The options of one account.

    Attributes:
        image_hosts: that images come from; none means any public one.
        image_presets: name → options.
        has_signed_images: whether URLs of images must be signed.
        matomo: its own, if it has one.
    """

    image_hosts: tuple[str, ...]
    image_presets: Mapping[str, str]
    has_signed_images: bool
    matomo: MatomoReader | None


class StoredAccountOptions(Repository):
    """The repository. Raises `Unavailable` while the database is unavailable."""

    async def read(self, account: str | None = None) -> dict[str, AccountOptions]:
        """Those of an account, or of all, by its name; without an entry for one that does not exist."""
        return {
            row["name"]: AccountOptions(
                tuple(row["hosts"] or ()),
                orjson.loads(row["presets"] or "{}"),
                bool(row["is_signed"]),
                None if row["url"] is None else MatomoReader(row["url"], row["reader"]),
            )
            for row in await self._database.fetch(_SELECT, account)
        }
