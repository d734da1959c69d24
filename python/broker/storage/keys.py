"""Signing keys in PostgreSQL.

The private keys are there in clear: whoever reads this table can make tokens, as whoever writes to `users`
can make admins.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.clock import to_datetime, to_ms
from broker.storage.database import Database

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('broker signing keys', 0))"
_SELECT = """
SELECT kid, public_key, private_key, created_time, retired_time FROM signing_keys
ORDER BY created_time, retired_time NULLS LAST, kid
"""
_NEWEST = "SELECT max(created_time) FROM signing_keys WHERE retired_time IS NULL"
_INSERT = "INSERT INTO signing_keys (kid, public_key, private_key, created_time) VALUES ($1, $2, $3, $4)"
_RETIRE = "UPDATE signing_keys SET retired_time = $1 WHERE retired_time IS NULL"
_PURGE = "DELETE FROM signing_keys WHERE retired_time < $1"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key pair in raw form (32 bytes each, RFC 8032); times in milliseconds since the epoch.

    `retired_ms` is from when it signs nothing, None while that is not settled.
    """

    kid: str
    public_key: bytes
    private_key: bytes = field(repr=False)
    created_ms: int
    retired_ms: int | None = None


class Keys:
    """The table of signing keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[StoredKey]:
        """All keys, oldest first."""
        async with self._database.connection() as connection:
            return [_key(row) for row in await connection.fetch(_SELECT)]

    async def add(self, key: StoredKey, *, retire_ms: int, if_older_than_ms: int) -> bool:
        """Add a key and settle when the present ones sign no more, in one step.

        It is done only if the newest of those was made before `if_older_than_ms`, or there is none: of
        several processes that want a new key at the same time, one gets its own.

        Returns:
            Whether the key was added.
        """
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK)
            newest: datetime | None = await connection.fetchval(_NEWEST)
            if newest is not None and to_ms(newest) >= if_older_than_ms:
                return False
            await connection.execute(_RETIRE, to_datetime(retire_ms))
            created = to_datetime(key.created_ms)
            await connection.execute(_INSERT, key.kid, key.public_key, key.private_key, created)
        return True

    async def purge(self, retired_before_ms: int) -> None:
        """Delete keys that were retired before this moment."""
        async with self._database.connection() as connection:
            await connection.execute(_PURGE, to_datetime(retired_before_ms))


def _key(row: Any) -> StoredKey:
    retired = row["retired_time"]
    return StoredKey(
        kid=row["kid"],
        public_key=row["public_key"],
        private_key=row["private_key"],
        created_ms=to_ms(row["created_time"]),
        retired_ms=None if retired is None else to_ms(retired),
    )
