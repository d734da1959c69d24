"""Whether maintenance is on: one row, of which every process is notified."""

from broker.clock import to_ms
from broker.domain.audit import Actor, AuditEntry
from broker.domain.maintenance import DEFAULT_MESSAGE, DEFAULT_RETRY_AFTER_S, Maintenance
from broker.storage.audit import append_audit_to_all
from broker.storage.database import Repository

CHANNEL = "broker_maintenance"

_FIND = "SELECT message, retry_after_s, started_time FROM maintenance"
# Whoever changes the text of one that is on leaves it its beginning.
_BEGIN = """
INSERT INTO maintenance AS m (message, retry_after_s)
VALUES (coalesce($1::text, $3), coalesce($2::integer, $4))
ON CONFLICT (only_row) DO UPDATE
SET message = coalesce($1::text, m.message), retry_after_s = coalesce($2::integer, m.retry_after_s)
RETURNING message, retry_after_s
"""
_END = "DELETE FROM maintenance RETURNING true"
_NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"


class MaintenanceModes(Repository):
    """Maintenance in PostgreSQL. Every method raises `Unavailable` while the database is unavailable."""

    async def find(self) -> Maintenance | None:
        """The present one; None while it is off."""
        row = await self._database.fetchrow(_FIND)
        return None if row is None else Maintenance(row[0], row[1], to_ms(row[2]))

    async def begin(self, message: str | None, retry_after_s: int | None, by: Actor) -> None:
        """Switch it on, or change what is told of it; for the audit logs of all accounts.

        None keeps what one that is on says, and is the default of one that is not.
        """
        given = (message, retry_after_s, DEFAULT_MESSAGE, DEFAULT_RETRY_AFTER_S)
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(_BEGIN, *given)
            told = {"message": row["message"], "retryAfter": row["retry_after_s"]}
            entry = AuditEntry(by, "maintenance.started", "installation", told)
            await append_audit_to_all(connection, entry)
            await connection.execute(_NOTIFY)

    async def end(self, by: Actor) -> bool:
        """Switch it off; whether it was on."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(_END):
                return False
            await append_audit_to_all(connection, AuditEntry(by, "maintenance.ended", "installation"))
            await connection.execute(_NOTIFY)
        return True
