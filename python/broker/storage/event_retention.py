"""For how long accounts keep their events.

Age is by the database's clock. An event that a poll stands in is kept as long as the poll, which
without it would have neither a title nor an end. What recovery covers is kept in any case.
"""

from datetime import timedelta

from broker.domain.audit import Actor, AuditEntry
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Repository

MOST_DAYS = 36_500
_SET = "UPDATE accounts SET keep_events_days = $2 WHERE name = $1 RETURNING name"
# Within a history times rise with seq, so the oldest are first; few are looked at where none is old. The
# polls are looked up one by one: a join would read all events.
_PURGE = """
DELETE FROM events WHERE (history, seq) IN (
    SELECT oldest.history, oldest.seq
    FROM accounts a JOIN programs p ON p.account = a.name JOIN program_heads h ON h.program_uid = p.uid
    CROSS JOIN LATERAL (
        SELECT e.history, e.seq, e.created_time FROM events e
        WHERE e.history = h.history AND (
            SELECT q.uid FROM answer_polls q WHERE q.program_uid = p.uid AND q.context = e.id::text LIMIT 1
        ) IS NULL
        ORDER BY e.seq LIMIT $2
    ) AS oldest
    WHERE a.keep_events_days IS NOT NULL
        AND oldest.created_time < now() - greatest(a.keep_events_days * interval '1 day', $1::interval)
    LIMIT $2)
"""


class EventRetention(Repository):
    """Sets it and keeps to it. Every method raises `Unavailable` while the database is unavailable."""

    async def set(self, account: str, days: int | None, by: Actor) -> None:
        """Keep the account's events for `days`, at most `MOST_DAYS`; None is for ever. Raises NotFound."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(_SET, account, days) is None:
                raise unknown_account()
            entry = AuditEntry(by, "account.updated", account, {"keepEventsDays": days})
            await append_audit(connection, account, entry)

    async def purge(self, recovery: timedelta, limit: int) -> bool:
        """Delete at most `limit` events that are too old, and older than `recovery`.

        Returns whether there may be more to do.
        """
        return await self._database.execute(_PURGE, recovery, limit) > 0
