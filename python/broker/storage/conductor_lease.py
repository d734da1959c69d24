"""The lease of the conductor: one `broker up` at a time per database, by the database's clock.

Two conductors on one database would take the slots from each other without end. So one of them waits; it is
a spare on another machine, which takes over when the first one has been gone for as long as the lease lasts.

Who takes the lease gets a *term* of it, and renews that one only. A holder that could not renew, because it
could not reach the database, still has it when nobody else has taken it meanwhile. Whether somebody has, it
learns by the term, also when that one has gone again. Until it has learned it, it goes by a clock of its own:
`until_s` is never later than the end that the database knows. After that it must not act.
"""

from collections.abc import Callable
from contextlib import suppress

from broker.clock import boot_s
from broker.errors import Unavailable
from broker.storage.database import Database

_LEASE_S = 10
_TIMEOUT_S = 5.0
# Nothing to insert where another one has it: ON CONFLICT would lock the holder's row, to leave it as it is.
_TAKE = """
INSERT INTO conductor_lease AS l (holder, ends, term)
SELECT $1, clock_timestamp() + make_interval(secs => $2), 1
WHERE NOT EXISTS (SELECT FROM conductor_lease WHERE holder <> $1 AND ends >= clock_timestamp())
ON CONFLICT (only_row) DO UPDATE SET holder = excluded.holder, ends = excluded.ends, term = l.term + 1
WHERE l.holder = excluded.holder OR l.ends < clock_timestamp()
RETURNING term
"""
# A database that was restored, or a standby that was promoted, may have lost the row, or know an older term.
# Then nobody has had it since, and it is put there again.
_RENEW = """
INSERT INTO conductor_lease AS l (holder, ends, term)
SELECT $1, clock_timestamp() + make_interval(secs => $3), $2
WHERE NOT EXISTS (
    SELECT FROM conductor_lease
    WHERE term > $2 OR holder <> $1 AND (term = $2 OR ends >= clock_timestamp())
)
ON CONFLICT (only_row) DO UPDATE SET holder = excluded.holder, ends = excluded.ends, term = excluded.term
WHERE l.holder = excluded.holder AND l.term <= excluded.term
    OR l.term < excluded.term AND l.ends < clock_timestamp()
RETURNING term
"""
# The row stays, with its term: one that has lapsed meanwhile must not find its own again.
_GIVE_UP = "UPDATE conductor_lease SET ends = '-infinity' WHERE holder = $1 AND term = $2"


class ConductorLease:
    """The lease, as one holder sees it. `open` makes one."""

    def __init__(self, database: Database, holder: str, now_s: Callable[[], float]) -> None:
        self._database = database
        self._holder = holder
        self._now_s = now_s
        self._term: int | None = None
        self.until_s = now_s()
        """When it ends if it is not renewed, in seconds of `boot_s`; it is not ours before `take`."""

    @classmethod
    async def open(cls, dsn: str, holder: str, now_s: Callable[[], float] = boot_s) -> "ConductorLease":
        """Connect. Raises Unavailable.

        Args:
            holder: a name that nobody else uses, the same after a restart: who was killed goes on at once.
            now_s: tells `boot_s`.
        """
        return cls(await Database.open(dsn, size=1, timeout_s=_TIMEOUT_S), holder, now_s)

    @property
    def term(self) -> int:
        """The term that was taken last."""
        assert self._term is not None, "it was taken"
        return self._term

    async def take(self) -> bool:
        """Begin a term of it; whether it is ours now. Raises Unavailable: call it again."""
        return await self._extend(_TAKE, self._holder, _LEASE_S)

    async def renew(self) -> bool:
        """Go on with the term that was taken; false once another one has begun.

        A database that has lost the term gets it back.

        Raises Unavailable: call it again.
        """
        return await self._extend(_RENEW, self._holder, self._term, _LEASE_S)

    async def give_up(self) -> None:
        """Let the next one take it at once, if it is ours. Raises Unavailable."""
        async with self._database.writing() as connection:
            await connection.execute(_GIVE_UP, self._holder, self._term)

    async def close(self) -> None:
        """Give it up, if the database can be reached, and disconnect."""
        with suppress(Unavailable):  # it ends by itself
            await self.give_up()
        await self._database.close()

    async def _extend(self, statement: str, *values: object) -> bool:
        asked_s = self._now_s()  # before the database sets the end
        async with self._database.writing() as connection:
            term: int | None = await connection.fetchval(statement, *values)
        if term is None:
            return False
        self._term, self.until_s = term, asked_s + _LEASE_S
        return True
