"""The lease of the conductor: one `broker up` at a time per database, by the database's clock.

Two conductors on one database would take the slots from each other without end. So one of them waits; it is
a spare on another machine, which takes over when the first one has been gone for as long as the lease lasts.

A holder that could not renew its lease, because the database was away, still has it when nobody else has
taken it meanwhile: nobody could.
"""

from contextlib import suppress

from broker.errors import Unavailable
from broker.storage.database import Database

_LEASE_S = 10
_TIMEOUT_S = 5.0
_TAKE = """
INSERT INTO conductor_lease (holder, ends) VALUES ($1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (only_row) DO UPDATE SET holder = excluded.holder, ends = excluded.ends
WHERE conductor_lease.holder = excluded.holder OR conductor_lease.ends < clock_timestamp()
RETURNING holder
"""
_GIVE_UP = "DELETE FROM conductor_lease WHERE holder = $1"


class ConductorLease:
    """The lease, as one holder sees it. `open` makes one."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self._holder = holder

    @classmethod
    async def open(cls, dsn: str, holder: str) -> "ConductorLease":
        """Connect. Raises Unavailable.

        Args:
            holder: a name that nobody else uses, the same after a restart: who was killed goes on at once.
        """
        return cls(await Database.open(dsn, size=1, timeout_s=_TIMEOUT_S), holder)

    async def take(self) -> bool:
        """Take or renew it; whether it is ours now. Raises Unavailable."""
        async with self._database.writing() as connection:
            return await connection.fetchval(_TAKE, self._holder, _LEASE_S) is not None

    async def give_up(self) -> None:
        """Let the next one take it at once, if it is ours. Raises Unavailable."""
        async with self._database.writing() as connection:
            await connection.execute(_GIVE_UP, self._holder)

    async def close(self) -> None:
        """Give it up, if the database can be reached, and disconnect."""
        with suppress(Unavailable):  # it ends by itself
            await self.give_up()
        await self._database.close()
