"""Maintenance switched on and off as the operator does it, in the database, and learnt by a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.domain.audit import Actor
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.services import Services
from broker.storage.database import Database
from broker.storage.maintenance import MaintenanceModes

MESSAGE = "The database moves; back at 22:30."
RETRY_AFTER_S = 7
_WAIT_S = 10.0


async def switch(database: Database, *, on: bool) -> None:
    """Do what `broker maintenance` does."""
    modes = MaintenanceModes(database)
    if on:
        await modes.begin(MESSAGE, RETRY_AFTER_S, Actor.operator())
    else:
        await modes.end(Actor.operator())


async def known(maintenance: KnownMaintenance, *, on: bool) -> None:
    """Wait until the process knows it."""
    async with asyncio.timeout(_WAIT_S):
        while (maintenance.current is not None) != on:  # noqa: ASYNC110 - nothing here says when
            await asyncio.sleep(0.005)


@asynccontextmanager
async def maintained(services: Services) -> AsyncIterator[None]:
    """Maintenance, which the process knows, and knows to be over afterwards."""
    await switch(services.database, on=True)
    await known(services.maintenance, on=True)
    try:
        yield
    finally:
        await switch(services.database, on=False)
        await known(services.maintenance, on=False)
