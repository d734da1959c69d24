"""Signing keys in PostgreSQL.

The private keys are there in clear: whoever reads this table can make tokens, as whoever writes to `users`
can make admins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.clock import to_datetime, to_ms
from broker.domain.audit import Actor, AuditEntry
from broker.storage.audit import append_audit_to_all
from broker.storage.database import Repository
from broker.storage.revocations import wake_listeners

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('broker signing keys', 0))"
_SELECT = """
SELECT kid, public_key, private_key, created_time, retired_time, revoked_time FROM signing_keys
ORDER BY created_time, retired_time NULLS LAST, kid
"""
_NEWEST = "SELECT max(created_time) FROM signing_keys WHERE retired_time IS NULL"
_INSERT = "INSERT INTO signing_keys (kid, public_key, private_key, created_time) VALUES ($1, $2, $3, $4)"
_RETIRE = "UPDATE signing_keys SET retired_time = $1 WHERE retired_time IS NULL"
_REVOKE = """
UPDATE signing_keys SET revoked_time = $2, retired_time = LEAST(COALESCE(retired_time, $2), $2)
WHERE kid = ANY($1) AND revoked_time IS NULL RETURNING kid
"""
_SIGNS = """
SELECT EXISTS (SELECT FROM signing_keys
               WHERE revoked_time IS NULL AND (retired_time IS NULL OR retired_time > $1))
"""
_PURGE = "DELETE FROM signing_keys WHERE retired_time < $1"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key pair in raw form (32 bytes each, RFC 8032); times in milliseconds since the epoch.

    `retired_ms` is from when it signs nothing, None while that is not settled; `revoked_ms` from when its
    tokens are worth nothing either, None while they are.
    """

    kid: str
    public_key: bytes
    private_key: bytes = field(repr=False)
    created_ms: int
    retired_ms: int | None = None
    revoked_ms: int | None = None


class Keys(Repository):
    """The table of signing keys."""

    async def list(self) -> list[StoredKey]:
        """All keys, oldest first."""
        return [_key(row) for row in await self._database.fetch(_SELECT)]

    async def add(
        self, key: StoredKey, *, retire_ms: int, if_older_than_ms: int, by: Actor | None = None
    ) -> bool:
        """Add a key and settle when the present ones sign no more, in one step.

        It is done only if the newest of those was made before `if_older_than_ms`, or there is none: of
        several processes that want a new key at the same time, one gets its own.

        Args:
            by: who wants it, for the audit logs of all accounts; None where it is done by itself.

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
            if by is not None:
                await append_audit_to_all(connection, AuditEntry(by, "key.rotated", key.kid))
        return True

    async def revoke(
        self, kids: Sequence[str], successor: StoredKey, *, at_ms: int, by: Actor
    ) -> Sequence[str]:
        """End keys and all that they have signed, in one step; who listens for revocations is woken.

        Args:
            successor: is added when no other key signs.
            by: who does it, for the audit logs of all accounts.

        Returns:
            Those of `kids` that were there and had not been revoked.
        """
        at = to_datetime(at_ms)
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK)
            revoked = [row["kid"] for row in await connection.fetch(_REVOKE, list(kids), at)]
            if revoked and not await connection.fetchval(_SIGNS, at):
                created = to_datetime(successor.created_ms)
                await connection.execute(
                    _INSERT, successor.kid, successor.public_key, successor.private_key, created
                )
            for kid in revoked:
                await append_audit_to_all(connection, AuditEntry(by, "key.revoked", kid))
            await wake_listeners(connection)
        return revoked

    async def purge(self, retired_before_ms: int) -> None:
        """Delete keys that were retired before this moment."""
        await self._database.execute(_PURGE, to_datetime(retired_before_ms))


def _key(row: Any) -> StoredKey:
    retired, revoked = row["retired_time"], row["revoked_time"]
    return StoredKey(
        kid=row["kid"],
        public_key=row["public_key"],
        private_key=row["private_key"],
        created_ms=to_ms(row["created_time"]),
        retired_ms=None if retired is None else to_ms(retired),
        revoked_ms=None if revoked is None else to_ms(revoked),
    )
