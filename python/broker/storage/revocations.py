"""The feed of revocations: users whose earlier tokens became invalid, and deleted API tokens.

The truth is `users.tokens_valid_from` and the absence of deleted users and API tokens. This feed tells
processes about it that hold sessions of users whom they do not look at any more. A row is written in the
transaction of the change; a notification without content wakes the listeners, and whoever misses it polls.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.clock import to_ms
from broker.storage.database import Repository

CHANNEL = "broker_revocations"

_INSERT = """
INSERT INTO revocations (account, subject, valid_from, created_time) VALUES ($1, $2, $3, now())
"""
_INSERT_GONE = """
INSERT INTO revocations (account, subject, valid_from, api_token_id, created_time)
VALUES ($1, $2, 'epoch', $3, now())
"""
_NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"
_NOW = "SELECT now()"
# A transaction becomes visible some time after its now(); statements, and so transactions, end within
# seconds. Rows are therefore read again for half a minute, and the reader must not mind.
_SELECT_SINCE = """
SELECT read_time, account, subject, valid_from, api_token_id
FROM (SELECT now() AS read_time) AS reading
LEFT JOIN revocations ON created_time > $1::timestamptz - interval '30 seconds'
ORDER BY id
"""
_PURGE = "DELETE FROM revocations WHERE created_time < now() - make_interval(secs => $1)"


@dataclass(frozen=True, slots=True)
class Revocation:
    """From `valid_from_ms` on, tokens of the subject that were issued for an earlier state are invalid.

    With `api_token_id` only those that this API token was exchanged for are.
    """

    account: str
    subject: str
    valid_from_ms: int
    api_token_id: str | None = None

    @property
    def subject_key(self) -> tuple[str, str]:
        """The account and the subject."""
        return self.account, self.subject


async def record_revocation(connection: Any, account: str, subject: str, valid_from: datetime) -> None:
    """Add to the feed, within the caller's transaction."""
    await connection.execute(_INSERT, account, subject, valid_from)


async def record_api_token_revocation(
    connection: Any, account: str, subject: str | None, api_token_id: str
) -> None:
    """Add to the feed that an API token of the subject is gone, within the caller's transaction."""
    await connection.execute(_INSERT_GONE, account, subject, api_token_id)


async def wake_listeners(connection: Any) -> None:
    """Have every process look for news once the caller's transaction is committed."""
    await connection.execute(_NOTIFY)


class Revocations(Repository):
    """The reader's side of the feed. Times are the database's, so processes need not agree on theirs."""

    async def now(self) -> datetime:
        """The position at the feed's present end, for `since`."""
        moment: datetime = await self._database.fetchval(_NOW)
        return moment

    async def since(self, position: datetime) -> tuple[list[Revocation], datetime]:
        """What was revoked after `position`, oldest first and some of it again, and the next position."""
        rows = await self._database.fetch(_SELECT_SINCE, position)
        found = [
            Revocation(row["account"], row["subject"], to_ms(row["valid_from"]), row["api_token_id"])
            for row in rows
            if row["subject"] is not None
        ]
        return found, rows[0]["read_time"]

    async def purge(self, older_than_s: float) -> None:
        """Forget what is older than any token can be."""
        await self._database.execute(_PURGE, older_than_s)
