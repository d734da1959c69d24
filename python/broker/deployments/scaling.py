"""Brings the number of owners to what is wanted (`broker scale`), while they run.

New owners are started first; they have no programs yet. Then the placement changes, in one transaction.
Owners that have lost all programs by it go on for a while: doors that do not know it yet learn it from them.
"""

import logging

from broker.actors.placement import slot_name
from broker.actors.pool import SlotPool
from broker.clock import Clock
from broker.domain.placement import Placement
from broker.owners.known_placement import LOOK_S
from broker.owners.placement import OWNER
from broker.storage.database import Database
from broker.storage.placements import Placements

_RETIRE_S = 3 * LOOK_S
_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class OwnerScaling:
    """The number of owners of one instance. `open` makes one; its conductor alone changes it."""

    def __init__(self, database: Database, clock: Clock, initial: int) -> None:
        self._database = database
        self._placements = Placements(database)
        self._clock = clock
        self._initial = initial
        self._surplus_since_s: float | None = None

    @classmethod
    async def open(cls, dsn: str, clock: Clock, initial: int) -> "OwnerScaling":
        """Connect. Raises Unavailable.

        Args:
            initial: the setting's number of owners, which counts at the first start of an instance.
        """
        return cls(await Database.open(dsn, size=1, timeout_s=_TIMEOUT_S), clock, initial)

    async def begin(self) -> int:
        """How many owners to start with, as every process of the instance knows it. Raises Unavailable."""
        row = await self._placements.read()
        if row.owners is None:
            await self._placements.change(row.version, self._initial, _slots(self._initial))
            row = await self._placements.read()
        return row.in_effect(self._initial).owners

    async def advance(self, pool: SlotPool) -> Placement | None:
        """Come nearer to what is wanted, as far as that goes at once; the placement where it has changed.

        Raises:
            Unavailable, RayError: something cannot be done now; call it again later.
        """
        row = await self._placements.read()
        present = row.in_effect(self._initial)
        wanted = row.wanted_owners or present.owners
        if wanted > pool.slots:
            await pool.grow(wanted)
        if wanted != present.owners:
            slots = _slots(max(wanted, pool.slots, present.owners))
            if not await self._placements.change(present.version, wanted, slots):
                return None
            self._surplus_since_s = None
            _log.info("owners_scaled", extra={"before": present.owners, "after": wanted})
            return Placement(present.version + 1, wanted)
        await self._retire(pool, present.owners)
        return None

    async def _retire(self, pool: SlotPool, owners: int) -> None:
        if pool.slots <= owners:
            self._surplus_since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._surplus_since_s is None:
            self._surplus_since_s = now_s
        if now_s - self._surplus_since_s >= _RETIRE_S:
            await pool.shrink(owners)

    async def close(self) -> None:
        """Disconnect."""
        await self._database.close()


def _slots(owners: int) -> list[str]:
    return [slot_name(OWNER, index) for index in range(owners)]
