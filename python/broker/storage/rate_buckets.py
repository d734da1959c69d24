"""Token buckets in PostgreSQL, shared by all processes. See migration 0008."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.storage.database import Repository

_TAKE = "SELECT take_tokens($1, $2, $3, $4)"
_TAKE_MANY = "SELECT take_many_tokens($1, $2, $3, $4, $5)"
_PURGE = """
DELETE FROM rate_buckets WHERE key IN (SELECT key FROM rate_buckets WHERE full_us < $1 LIMIT $2)
"""


class Bucket(NamedTuple):
    """A bucket of `burst` tokens that gains one every `each_us` microseconds."""

    key: str
    each_us: int
    burst: int


class RateBuckets(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def take(self, buckets: Sequence[Bucket], now_us: int) -> int:
        """Take one token out of each bucket, or none of any.

        Args:
            buckets: of which those that many callers share come first, in an order that all callers keep.

        Returns:
            0 when they were taken, else the microseconds until each bucket has one.
        """
        keys, each_us, bursts = zip(*buckets, strict=True)
        return int(await self._database.fetchval(_TAKE, keys, each_us, bursts, now_us))

    async def take_many(self, bucket: Bucket, tokens: int, now_us: int) -> int:
        """Take so many tokens out of a bucket, or none.

        More than it holds need a full one, which then gains nothing until the rest is paid off.

        Returns:
            0 when they were taken, else the microseconds until they could be.
        """
        return int(await self._database.fetchval(_TAKE_MANY, *bucket, tokens, now_us))

    async def purge(self, now_us: int, limit: int) -> int:
        """Drop at most `limit` buckets that are full; returns how many."""
        return await self._database.execute(_PURGE, now_us, limit)
