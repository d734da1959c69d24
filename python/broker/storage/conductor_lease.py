"""The lease of the conductor: one `broker up` at a time per database, by clocks that nobody sets.

Two conductors on one database would take the slots from each other without end. So one of them waits; it is
a spare on another machine, which takes over when the first one has been gone for as long as the lease lasts.

No wall clock decides, also not the database's, which may be set and which changes with a failover: a lease
is over for a spare once it has seen the same row for longer than a lease lasts, by its own clock. A holder
changes the row with each renewal.

Who takes the lease gets a *term* of it, and renews that one only. A holder that could not renew, because it
could not reach the database, still has it when nobody else has taken it meanwhile. Whether somebody has, it
learns by the term, also when that one has gone again. Until it has learned it, it goes by a clock of its own:
`until_s` comes before a spare may take it. After that it must not act.
"""

from collections.abc import Callable
from contextlib import suppress

from broker.clock import boot_s
from broker.errors import Unavailable
from broker.storage.database import Database

_LEASE_S = 10
_SEEN_S = 11  # a second more, by which clocks of two machines do not differ in so short a time
_TIMEOUT_S = 5.0
_LOOK = "SELECT holder, term, ends::text, ends = '-infinity' AS is_given_up FROM conductor_lease"
_MAKE = """
INSERT INTO conductor_lease (holder, ends, term) VALUES ($1, clock_timestamp() + make_interval(secs => $2), 1)
ON CONFLICT DO NOTHING RETURNING term
"""
_TAKE = """
UPDATE conductor_lease SET holder = $1, ends = clock_timestamp() + make_interval(secs => $2), term = term + 1
WHERE holder = $3 AND term = $4 AND ends::text = $5 RETURNING term
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
        self._seen: tuple[object, ...] = ()  # the row of another holder, and since when it is as it is
        self._seen_s = now_s()
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
        """Begin a term of it; whether it is ours now. Raises Unavailable: call it again.

        What another one has is taken once it has not been renewed between two calls that are far enough
        apart.
        """
        asked_s = self._now_s()
        async with self._database.writing() as connection:
            row = await connection.fetchrow(_LOOK)
            if row is None:
                return self._extended(asked_s, await connection.fetchval(_MAKE, self._holder, _LEASE_S))
            holder, term, ends, is_given_up = seen = tuple(row)
            if seen != self._seen:
                self._seen, self._seen_s = seen, self._now_s()
            if not (holder == self._holder or is_given_up or asked_s - self._seen_s >= _SEEN_S):
                return False
            values = self._holder, _LEASE_S, holder, term, ends
            return self._extended(asked_s, await connection.fetchval(_TAKE, *values))

    async def renew(self) -> bool:
        """Go on with the term that was taken; false once another one has begun.

        A database that has lost the term gets it back.

        Raises Unavailable: call it again.
        """
        asked_s = self._now_s()
        async with self._database.writing() as connection:
            values = self._holder, self._term, _LEASE_S
            return self._extended(asked_s, await connection.fetchval(_RENEW, *values))

    async def give_up(self) -> None:
        """Let the next one take it at once, if it is ours. Raises Unavailable."""
        async with self._database.writing() as connection:
            await connection.execute(_GIVE_UP, self._holder, self._term)

    async def close(self) -> None:
        """Give it up, if the database can be reached, and disconnect."""
        with suppress(Unavailable):  # it ends by itself
            await self.give_up()
        await self._database.close()

    def _extended(self, asked_s: float, term: int | None) -> bool:
        """Take note of the term that a statement has begun or gone on with; `asked_s` is from before it."""
        if term is None:
            return False
        self._term, self.until_s = term, asked_s + _LEASE_S
        return True
