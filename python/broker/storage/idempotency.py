"""Results of requests with an `Idempotency-Key`, kept for 24 hours of the database's clock.

A result is kept in the transaction of its effect, so that there is never one without the other: `once` holds
the transaction of whatever is done in its block open, adds the result and commits both. Of two requests with
one key at a time, the later one waits for the earlier one's row; then its own work is rolled back, and it is
answered with the earlier one's result.

What program owners change is kept by them in the same table (`broker.storage.journal`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from broker.domain.idempotency import IdempotencyKey, KeptResult, Repeated, used_for_another
from broker.storage.database import Repository

KEY_LIFETIME = "interval '24 hours'"

# A key that is older than its lifetime is free again.
_KEEP = f"""
    INSERT INTO idempotency_keys AS k (account, caller, key, request_hash, status, result, created_time)
    VALUES ($1, $2, $3, $4, $5, $6, now())
    ON CONFLICT (account, caller, key) DO UPDATE
    SET request_hash = EXCLUDED.request_hash, status = EXCLUDED.status, result = EXCLUDED.result,
        created_time = EXCLUDED.created_time
    WHERE k.created_time <= now() - {KEY_LIFETIME}
    RETURNING true
"""  # noqa: S608 - a constant
_FIND = f"""
    SELECT request_hash, status, result FROM idempotency_keys
    WHERE account = $1 AND caller = $2 AND key = $3 AND created_time > now() - {KEY_LIFETIME}
"""  # noqa: S608 - a constant


class Turn:
    """One request's turn with its key: what it `keep`s is the answer to those that come later."""

    def __init__(self) -> None:
        self.kept: KeptResult | None = None

    def keep(self, result: KeptResult) -> None:
        """Make `result` what every later request with the key gets."""
        self.kept = result


class Idempotency(Repository):
    """The keys' repository."""

    @asynccontextmanager
    async def once(self, account: str, key: IdempotencyKey) -> AsyncIterator[Turn]:
        """Commit what the block changes in the database together with the result that it keeps.

        Only what the block's own task does is held together (`Database.unit`).

        Raises:
            Repeated: the key has a result; what the block did is undone.
            Conflict: the key was used for another request; what the block did is undone.
            Unavailable: the database cannot be reached.
            OutcomeUnknown: the connection was lost during the commit.
        """
        async with self._database.unit():
            turn = Turn()
            yield turn
            if turn.kept is not None:
                async with self._database.transaction(ends_unit=True) as connection:
                    await _keep(connection, account, key, turn.kept)

    async def find(self, account: str, key: IdempotencyKey) -> KeptResult | None:
        """The result that the key has, or None.

        Raises:
            Conflict: the key was used for another request.
            Unavailable: the database cannot be reached.
        """
        row = await self._database.fetchrow(_FIND, account, key.caller, key.key)
        if row is None:
            return None
        # A streamed body may not have been read; then its part of the hash is not compared.
        if not row["request_hash"].startswith(key.request_hash):
            raise used_for_another()
        return KeptResult(row["status"], bytes(row["result"]))


async def _keep(
    connection: asyncpg.Connection, account: str, key: IdempotencyKey, result: KeptResult
) -> None:
    values = (account, key.caller, key.key)
    if await connection.fetchval(_KEEP, *values, key.request_hash, *result):
        return
    # READ COMMITTED: this statement sees the row that made the insert step back.
    row = await connection.fetchrow(_FIND, *values)
    if row is None or row["request_hash"] != key.request_hash:
        raise used_for_another()
    raise Repeated(KeptResult(row["status"], bytes(row["result"])))
