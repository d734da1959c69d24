"""What a door knows of the placement of programs.

It need not be the newest: whoever asks an owner by an older one is answered with `Moved`, and learns the
newer one from that. It is read from the database as well, so that nobody goes on asking an owner that has
ended.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from broker.domain.placement import Placement
from broker.errors import Unavailable
from broker.owners.moved import Moved
from broker.owners.placement import owner_of

LOOK_S = 5.0
"""Between two looks of a door; owners that have lost all programs go on for longer."""


class KnownPlacement:
    """The placement as this process knows it. Belongs to one event loop."""

    def __init__(self, owners: int) -> None:
        """Make one with the setting's number of owners, which counts as long as no other was written."""
        self.current = Placement(0, owners)
        self._heard: list[Callable[[Placement], None]] = []

    def owner_of(self, topic: str) -> int:
        """The index of a topic's owner."""
        return owner_of(topic, self.current.owners)

    def on_change(self, heard: Callable[[Placement], None]) -> None:
        """Have `heard` called with the placement before, whenever there is another."""
        self._heard.append(heard)

    def learn(self, moved: Moved) -> None:
        """Take over the placement of an owner, where it is newer."""
        if moved.placement.version > self.current.version:
            self.take(moved.placement)

    def take(self, placement: Placement) -> None:
        """Take over what the database says: after a failover it may be an older one."""
        before, self.current = self.current, placement
        if before.owners != placement.owners:
            for heard in self._heard:
                heard(before)

    async def run(self, read: Callable[[], Awaitable[Placement]]) -> None:
        """Read it from the database now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.8, 1.0))  # noqa: S311  # not all doors at once
            version = self.current.version
            try:
                placement = await read()
            except Unavailable:
                continue
            if self.current.version == version:  # else an owner knew a newer one meanwhile
                self.take(placement)
