"""Purges of images in PostgreSQL.

A purge is a number above all before it. Whoever makes an image notes the highest number that it knows; the
image is gone once there is a purge of its source with a higher one. So a purge reaches every cache, of
nodes that are away too, without being sent to any.
"""

from dataclasses import dataclass

import asyncpg

from broker.storage.database import Repository

ALL = ""
"""In place of the digest of a source: all of the account."""
KEPT_DAYS = 7
"""For so long a purge is known; no cache keeps anything for longer without looking at its server."""
MAX_SOURCES = 1_000
"""Purged one by one in an account; one more purges all."""

_NEXT = """
INSERT INTO image_purge_head AS h (number) VALUES ((extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (is_only) DO UPDATE SET number = greatest(h.number + 1, EXCLUDED.number)
RETURNING number
"""
_PUT = """
INSERT INTO image_purges (account, source, number, time) VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (account, source) DO UPDATE SET number = EXCLUDED.number, time = EXCLUDED.time
"""
_FORGET = f"DELETE FROM image_purges WHERE time < clock_timestamp() - interval '{KEPT_DAYS} days'"  # noqa: S608  # constants
_COUNT = "SELECT count(*) FROM image_purges WHERE account = $1"
_FORGET_ACCOUNT = "DELETE FROM image_purges WHERE account = $1"
_HEAD = "SELECT coalesce(max(number), 0) FROM image_purge_head"
_LIST = """
WITH head AS (SELECT coalesce(max(number), 0) AS number FROM image_purge_head)
SELECT h.number AS head, p.account, p.source, p.number
FROM head h LEFT JOIN image_purges p ON p.number > $1 AND p.number <= h.number
"""


@dataclass(frozen=True, slots=True)
class Purge:
    """One purge; `source` is the digest of a URL, or `ALL`."""

    account: str
    source: str
    number: int


class ImagePurges(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def add(self, account: str, source: str) -> None:
        """Purge a source of an account, or all of it."""
        async with self._database.transaction() as connection:
            number = await connection.fetchval(_NEXT)
            await connection.execute(_FORGET)
            if source != ALL and await connection.fetchval(_COUNT, account) >= MAX_SOURCES:
                source = ALL
            await _put(connection, account, source, number)

    async def get_head(self) -> int:
        """The number of the newest purge of all accounts; 0 before the first one."""
        return int(await self._database.fetchval(_HEAD))

    async def list_after(self, number: int) -> tuple[int, list[Purge]]:
        """The highest number, and the purges above `number`; each above -1 that is still known."""
        rows = await self._database.fetch(_LIST, number)
        purges = [
            Purge(row["account"], row["source"], row["number"]) for row in rows if row["account"] is not None
        ]
        return rows[0]["head"], purges


async def _put(connection: asyncpg.Connection, account: str, source: str, number: int) -> None:
    if source == ALL:
        await connection.execute(_FORGET_ACCOUNT, account)
    await connection.execute(_PUT, account, source, number)
