"""The placement of programs: how many owners there are, and the change of that number.

The change is one transaction, which writes the next version and counts up the generation of every owner's
slot (`broker.storage.fence`). It waits for the commits under way; from then on no owner can commit that acts
on the version before. So the fence, which each commit holds anyway, keeps the placement too, and a commit
costs nothing more.

Whoever takes a slot must read the placement after that. A change that it does not see counts up its own
generation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from broker.domain.placement import Placement
from broker.errors import Unavailable
from broker.storage.database import Repository

_READ = "SELECT version, owners, wanted_owners FROM placement"
_WANT = """
INSERT INTO placement (version, wanted_owners) VALUES (0, $1)
ON CONFLICT (only_row) DO UPDATE SET wanted_owners = excluded.wanted_owners
"""
# For the commits under way; only that of a process that hangs takes longer.
_PATIENCE = "SET LOCAL lock_timeout = '1s'"
_LOCK = f"{_READ} FOR UPDATE"
_CHANGE = "UPDATE placement SET version = version + 1, owners = $1"
# A slot that nobody has taken yet gets a row, for which whoever is about to take it waits.
_COUNT_UP = """
INSERT INTO owner_slots AS s (slot, generation)
SELECT slot, 1 + floor(random() * 4294967296)::bigint FROM unnest($1::text[]) AS slot ORDER BY slot
ON CONFLICT (slot) DO UPDATE SET moved_from = s.generation, moved_to = s.generation + excluded.generation,
    generation = s.generation + excluded.generation
"""
_NOTE = "UPDATE owner_slots SET placement = $3 WHERE slot = $1 AND generation = $2"
_COUNT = "SELECT count(*) FROM owner_slots WHERE slot = ANY($1::text[]) AND placement >= $2"


class PlacementRow(NamedTuple):
    """The row as it is; `owners` is None as long as the setting counts, `wanted_owners` until one asks."""

    version: int
    owners: int | None
    wanted_owners: int | None

    def in_effect(self, initial: int) -> Placement:
        """The placement; `initial` is the setting's number of owners."""
        return Placement(self.version, self.owners or initial)


class Placements(Repository):
    """The table of the placement. Every method raises `Unavailable` while the database is unavailable."""

    async def read(self) -> PlacementRow:
        """The row."""
        row = await self._database.fetchrow(_READ)
        return PlacementRow(0, None, None) if row is None else PlacementRow(*row)

    async def want(self, owners: int) -> None:
        """Ask for so many owners. The conductor starts them, and then puts the change into effect."""
        async with self._database.writing() as connection:
            await connection.execute(_WANT, owners)

    async def change(self, version: int, owners: int, slots: Sequence[str]) -> bool:
        """Put a number of owners into effect.

        Args:
            version: of the placement before.
            slots: of all owners that there are before and after.

        Returns:
            False when another change came first; nothing was written.

        Raises:
            Unavailable: nothing was written.
            OutcomeUnknown: read the row.
        """
        try:
            async with self._database.transaction() as connection:
                await connection.execute(_PATIENCE)
                row = await connection.fetchrow(_LOCK)
                if row is None or row["version"] != version:
                    return False
                await connection.execute(_CHANGE, owners)
                await connection.execute(_COUNT_UP, slots)
        except asyncpg.LockNotAvailableError:
            raise Unavailable("a commit does not end", retry_after_s=1) from None
        return True

    async def note(self, slot: str, generation: int, version: int) -> None:
        """Say that the holder of a slot acts on a version."""
        async with self._database.writing() as connection:
            await connection.execute(_NOTE, slot, generation, version)

    async def count_followers(self, slots: Sequence[str], version: int) -> int:
        """How many of these slots have a holder that acts on this version."""
        return int(await self._database.fetchval(_COUNT, slots, version))
