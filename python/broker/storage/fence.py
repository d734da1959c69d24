"""Who may write for a slot: the newest generation of it, and nobody else.

What writes for a slot (an owner, a counter) takes a generation of it in `owner_slots` first. Each of its
transactions holds that generation until it ends (`HOLD`), so a newer one, which counts the generation up,
waits for it, and an older one cannot write any more.

A transaction whose process hangs, or whose node is gone, would keep the newer one waiting: that one ends the
connections of its slot after a moment. They are known by their name, so a `Database` that writes for a slot
must have the name of the slot (`connection_name`) and nobody else's.

A database that was restored, or a standby that was promoted, may have forgotten the newest generation. Then
the slot has an older one than its holder, who takes it again by `renew`. It must compare what it believes
with what is there before it writes.

When the connection dies, the outcome of a transaction may be unknown. `renew` settles it: once the generation
is counted up, the transaction has either committed or never will, and what it wrote can be looked for.
"""

import logging
import random

import asyncpg

from broker.errors import Unavailable
from broker.storage.database import Database

HOLD = "SELECT generation FROM owner_slots WHERE slot = $1 AND generation = $2 FOR SHARE"
"""A row while $2 is the generation of slot $1; it is held until the transaction ends."""

_log = logging.getLogger(__name__)

_ACQUIRE = """
INSERT INTO owner_slots (slot, generation) VALUES ($1, 1)
ON CONFLICT (slot) DO UPDATE SET generation = owner_slots.generation + $2 RETURNING generation
"""
# How long a new owner waits for a commit of the one before it, which may be alive and well.
_PATIENCE = "SET LOCAL lock_timeout = '1s'"
_END_OTHERS = """
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = current_setting('application_name') AND datname = current_database()
    AND usename = current_user AND pid <> pg_backend_pid()
"""
_RENEW = """
INSERT INTO owner_slots (slot, generation) VALUES ($1, $3)
ON CONFLICT (slot) DO UPDATE SET generation = $3
    WHERE owner_slots.generation <= $2 OR owner_slots.generation = $3
RETURNING generation
"""
_GENERATION = "SELECT generation FROM owner_slots WHERE slot = $1"


class Fenced(Exception):
    """Somebody newer has this slot; nothing was written, and nothing ever will be under this generation."""


async def refusal(connection: asyncpg.Connection, slot: str, generation: int) -> Fenced | Unavailable:
    """Why `HOLD` has found no row: another has the slot, or the database has forgotten who has it."""
    newest = await connection.fetchval(_GENERATION, slot)
    if newest is not None and newest > generation:
        return Fenced(slot)
    return Unavailable("the database has lost committed changes", retry_after_s=1, log_text="generation_lost")


class Fence:
    """The generations of one slot."""

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._slot = slot

    async def acquire(self) -> int:
        """Take the slot: returns a new generation, after every transaction of older ones has ended.

        Raises Unavailable.
        """
        async with self._database.connection() as connection:
            try:
                async with connection.transaction():
                    await connection.execute(_PATIENCE)
                    return int(await connection.fetchval(_ACQUIRE, self._slot, _step()))
            except asyncpg.LockNotAvailableError:
                ended = await connection.fetch(_END_OTHERS)
                _log.warning("hanging_owner_cut_off", extra={"slot": self._slot, "connections": len(ended)})
            return int(await connection.fetchval(_ACQUIRE, self._slot, _step()))

    def next_generation(self, generation: int) -> int:
        """A generation to `renew` to, which nobody else will come by."""
        return generation + _step()

    async def renew(self, generation: int, target: int) -> int:
        """Move one's own generation to `target`, so that the outcome of a lost transaction is settled.

        Raises:
            Fenced: somebody else has taken the slot.
            Unavailable: the database cannot be reached; call again with the same target, for it may be done.
        """
        async with self._database.connection() as connection:
            renewed = await connection.fetchval(_RENEW, self._slot, generation, target)
        if renewed is None:
            raise Fenced(self._slot)
        return int(renewed)

    async def generation(self) -> int:
        """The newest generation of the slot; 0 when it was never taken."""
        async with self._database.connection() as connection:
            return int(await connection.fetchval(_GENERATION, self._slot) or 0)


class Term:
    """The time for which a holder has its slot: its generation, and whether the last commit is in doubt.

    Belongs to one event loop. While it is in doubt nothing may be written; `settle` ends the doubt.
    """

    def __init__(self, fence: Fence, generation: int) -> None:
        self._fence = fence
        self._target: int | None = None
        self.generation = generation
        self.is_doubtful = False
        """Whether `generation` may be behind the database because of this holder itself."""

    def doubt(self) -> None:
        """A commit was not answered, or the database has forgotten something."""
        self.is_doubtful = True

    async def settle(self) -> None:
        """Count the generation up if anything is in doubt: what was in doubt is done, or never will be.

        Raises:
            Fenced: somebody else has taken the slot.
            Unavailable: the database cannot be reached; the doubt stays.
        """
        if self.is_doubtful:
            # The same target at each try: the answer to an earlier one may have been lost.
            if self._target is None:
                self._target = self._fence.next_generation(self.generation)
            self.generation = await self._fence.renew(self.generation, self._target)
            self._target = None
            self.is_doubtful = False


def connection_name(slot: str) -> str:
    """What the connections that write for the slot are called at the server."""
    return f"broker {slot}"


def _step() -> int:
    """A random step: a generation is known as one's own also when the answer that gave it was lost."""
    return 1 + random.getrandbits(32)
