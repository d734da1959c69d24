"""The fence: only the newest generation of a slot may write.

A process that writes for a slot (an owner, a counter) first takes a new generation of it in `owner_slots`.
Each of its transactions locks that generation until it ends (`HOLD`). A newer process, which increments the
generation, waits for the lock; after that, an older process can no longer write.

A transaction whose process hangs, or whose node is down, would block the newer process. After a short wait
the newer one terminates the connections of its slot. It finds them by their name, so a `Database` that writes
for a slot must have the name of the slot (`connection_name`), and no other may.

A database that was restored, or a standby that was promoted, may have lost the newest generation. The slot
then has an older generation than its holder, which takes it again by `renew`. The holder must compare its
state with the database before it writes.

A process that was started by a conductor takes the slot only in the term of that conductor
(`broker.storage.conductor_lease`). The term is read when the slot is locked: a conductor that begins another
one starts processes after that, which take the slot from whoever has come before.

A change of the placement (`broker.storage.placements`) counts up the generations as well. The holder is shut
out as by another process, and may take the slot again (`was_moved`).

When a connection breaks, the outcome of its transaction may be unknown. `renew` settles it: after the
generation has been incremented, the transaction has either been committed or never will be, and its rows can
be looked up. A holder that is shut out waits for no lock to learn it, so that it ends also while its
successor's commits follow each other closely, or one of them hangs.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

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
# ON CONFLICT locks the row that it finds, also where it then leaves it as it is, so it would wait for each
# commit of the next holder. Who is shut out already gets nothing to insert; the second look is for who is
# shut out meanwhile.
_RENEW = """
INSERT INTO owner_slots (slot, generation)
SELECT $1, $3::bigint
WHERE NOT EXISTS (SELECT FROM owner_slots WHERE slot = $1 AND generation > $2 AND generation <> $3)
    AND ($4::bigint IS NULL OR $4 = (SELECT version FROM placement))
ON CONFLICT (slot) DO UPDATE SET generation = $3
    WHERE (owner_slots.generation <= $2 OR owner_slots.generation = $3)
        AND ($4::bigint IS NULL OR $4 = (SELECT version FROM placement))
RETURNING generation
"""
_IS_TERM = "SELECT EXISTS (SELECT FROM conductor_lease WHERE term = $1)"
_GENERATION = "SELECT generation FROM owner_slots WHERE slot = $1"
_WAS_MOVED = """
SELECT EXISTS (SELECT FROM owner_slots WHERE slot = $1 AND moved_from = $2 AND generation = moved_to)
"""
_STANDING = """
SELECT coalesce((SELECT generation FROM owner_slots WHERE slot = $1), 0),
    coalesce((SELECT number FROM restores), 0),
    coalesce((SELECT version FROM placement), 0)
"""


class Fenced(Exception):
    """A newer process has this slot; nothing was written, and nothing ever will be under this generation."""


class GenerationLost(Unavailable):
    """The database has forgotten who has the slot; an older holder of it may have written meanwhile."""


async def refusal(connection: asyncpg.Connection, slot: str, generation: int) -> Fenced | GenerationLost:
    """Why `HOLD` has found no row: another has the slot, or the database has forgotten who has it."""
    newest = await connection.fetchval(_GENERATION, slot)
    if newest is not None and newest > generation:
        return Fenced(slot)
    return GenerationLost(
        "the database has lost committed changes", retry_after_s=1, log_text="generation_lost"
    )


class SlotStanding(NamedTuple):
    """What a holder of a slot looks at again and again; all are 0 before there is one.

    Attributes:
        generation: the newest of the slot.
        restores: a number that each restore of an account changes.
        placement: the version of the placement.
    """

    generation: int
    restores: int
    placement: int


class Fence:
    """The generations of one slot."""

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._slot = slot
        self.placement: int | None = None
        """The version of the placement that the holder acts on; None where it needs none.

        A database that has lost changes may have lost that one, too. Then the generation is not renewed.
        """

    async def acquire(self, term: int | None = None) -> int:
        """Take the slot: returns a new generation, after every transaction of older ones has ended.

        Args:
            term: of the conductor that has started this process; None where conductors need no lease.

        Raises:
            Unavailable: the database cannot be reached, or another conductor has begun a term.
        """
        async with self._database.connection() as connection:
            try:
                async with connection.transaction():
                    await connection.execute(_PATIENCE)
                    return await self._acquire(connection, term)
            except asyncpg.LockNotAvailableError:
                ended = await connection.fetch(_END_OTHERS)
                _log.warning("hanging_owner_cut_off", extra={"slot": self._slot, "connections": len(ended)})
            async with connection.transaction():
                return await self._acquire(connection, term)

    async def _acquire(self, connection: asyncpg.Connection, term: int | None) -> int:
        generation = int(await connection.fetchval(_ACQUIRE, self._slot, _step()))
        if term is not None and not await connection.fetchval(_IS_TERM, term):
            raise Unavailable("another conductor has taken over", retry_after_s=1, log_text="term_over")
        return generation

    def next_generation(self, generation: int) -> int:
        """A generation to `renew` to, which nobody else will come by."""
        return generation + _step()

    async def renew(self, generation: int, target: int) -> int:
        """Move one's own generation to `target`, so that the outcome of a lost transaction is settled.

        Raises:
            Fenced: another process has taken the slot, or the placement is another one.
            Unavailable: the database cannot be reached; call again with the same target, for it may be done.
        """
        renewed = await self._database.fetchval(_RENEW, self._slot, generation, target, self.placement)
        if renewed is None:
            raise Fenced(self._slot)
        return int(renewed)

    async def standing(self) -> SlotStanding:
        """What the database says of the slot now. Raises Unavailable."""
        return SlotStanding(*await self._database.fetchrow(_STANDING, self._slot))

    async def was_moved(self, generation: int) -> bool:
        """Whether a change of the placement was the end of this generation, and nobody has the slot."""
        return bool(await self._database.fetchval(_WAS_MOVED, self._slot, generation))


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
            Fenced: another process has taken the slot.
            Unavailable: the database cannot be reached; the doubt stays.
        """
        if self.is_doubtful:
            # The same target at each try: the answer to an earlier one may have been lost.
            if self._target is None:
                self._target = self._fence.next_generation(self.generation)
            self.generation = await self._fence.renew(self.generation, self._target)
            self._target = None
            self.is_doubtful = False


async def until_over(tasks: Sequence[asyncio.Task[None]], slot: str) -> None:
    """Return when the holder of a slot can go on no longer: it was shut out, or one of its tasks failed."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            _log.warning("slot_fenced", extra={"slot": slot})
        elif error is not None:
            _log.error("slot_failed", extra={"slot": slot, "task": task.get_name()}, exc_info=error)


def connection_name(slot: str) -> str:
    """What the connections that write for the slot are called at the server."""
    return f"broker {slot}"


def _step() -> int:
    """A random step: a generation is known as one's own also when the answer that gave it was lost."""
    return 1 + random.getrandbits(32)
