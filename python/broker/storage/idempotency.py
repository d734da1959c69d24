"""Results of requests that came with an `Idempotency-Key`, kept for 24 hours.

A key is claimed by inserting its row before the work and filling it in after, in one transaction. Whoever
comes second with the same key waits on the row's lock, so two requests at the same time have one effect: the
second gets the stored result when the first commits, and its own turn when the first fails.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg

from broker.clock import to_datetime
from broker.errors import Conflict
from broker.storage.database import Database

KEPT = timedelta(hours=24)

# A turn holds a connection while its work borrows another one. With no more turns than this at a time, work
# always finds a connection in a pool of two or more, and turns wait for turns, not for work.
_TURNS = 1

_CLAIM = """
    INSERT INTO idempotency_keys AS k (account, caller, key, request_hash, status, result, created_time)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (account, caller, key) DO UPDATE
    SET request_hash = EXCLUDED.request_hash, status = EXCLUDED.status, result = EXCLUDED.result,
        created_time = EXCLUDED.created_time
    WHERE k.created_time <= $8
    RETURNING true
"""
_FIND = "SELECT request_hash, result FROM idempotency_keys WHERE account = $1 AND caller = $2 AND key = $3"
_FILL = """
    UPDATE idempotency_keys SET status = $4, result = $5 WHERE account = $1 AND caller = $2 AND key = $3
"""


class Turn:
    """One request's turn with its key: either `stored` has the first result, or `keep` gives it one."""

    def __init__(self, stored: bytes | None) -> None:
        self.stored = stored
        self.kept: tuple[int, bytes] | None = None

    def keep(self, status: int, result: bytes) -> None:
        """Make `result` what every later request with the key gets."""
        self.kept = (status, result)


class Idempotency:
    """The keys' repository."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns = asyncio.Semaphore(_TURNS)

    @asynccontextmanager
    async def once(
        self, account: str, caller: str, key: str, request_hash: bytes, now_ms: int
    ) -> AsyncIterator[Turn]:
        """The block is run in the key's turn; what it keeps is stored when it ends without an error.

        The block's own effect commits apart from the key: a process that dies between the two leaves the
        effect without the key. Where that matters, `claim` the key in the transaction of the effect.

        Raises:
            Conflict: the key was used for another request.
            Unavailable: the database cannot be reached.
        """
        now = to_datetime(now_ms)
        async with self._turns, self._database.transaction() as connection:
            turn = Turn(await claim(connection, account, caller, key, request_hash, 0, b"", now))
            yield turn
            if turn.kept is not None:
                await connection.execute(_FILL, account, caller, key, *turn.kept)


async def claim(
    connection: asyncpg.Connection,
    account: str,
    caller: str,
    key: str,
    request_hash: bytes,
    status: int,
    result: bytes,
    now: datetime,
) -> bytes | None:
    """Claim a key within the transaction of its effect, with the result that the effect will have.

    Returns:
        None when the key is ours now; otherwise the first result, and the caller must do nothing.

    Raises:
        Conflict: the key was used for another request.
    """
    claimed = await connection.fetchval(
        _CLAIM, account, caller, key, request_hash, status, result, now, now - KEPT
    )
    if claimed:
        return None
    # READ COMMITTED: this statement sees the row that made the insert step back.
    row = await connection.fetchrow(_FIND, account, caller, key)
    if row is None or row["request_hash"] != request_hash:
        raise Conflict("the Idempotency-Key was used for another request")
    return bytes(row["result"])
