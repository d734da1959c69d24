"""An idempotency key that is claimed in the transaction of its effect."""

from datetime import datetime

import asyncpg

from broker.storage.idempotency import claim
from broker.storage.programs import Claim


async def first_result(
    connection: asyncpg.Connection, account: str, key: Claim | None, time: datetime
) -> bytes | None:
    """Claim `key` with the result that the caller's effect will have.

    Returns:
        None when there is no key or it is ours now; otherwise the first result, and nothing must be done.

    Raises:
        Conflict: the key was used for another request.
    """
    if key is None:
        return None
    return await claim(
        connection, account, key.caller, key.key, key.request_hash, key.status, key.result, time
    )
