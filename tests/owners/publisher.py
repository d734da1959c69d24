"""A producer that publishes one event after the other, here or in another process."""

import asyncio

from broker.clock import SystemClock
from broker.ids import IdSource
from broker.owners.linked_owners import LinkedOwners
from broker.settings import Settings
from tests.owners.support import publish_rows, row


def publish_elsewhere(settings: Settings, program_id: str, count: int) -> list[bytes]:
    """To be run as a Ray task."""

    async def run() -> list[bytes]:
        clock = SystemClock()
        owners = LinkedOwners(settings, clock, IdSource(clock))
        try:
            return await publish_all(owners, program_id, count)
        finally:
            await owners.close()

    return asyncio.run(run())


async def publish_all(owners: LinkedOwners, program_id: str, count: int) -> list[bytes]:
    """Each is acknowledged before the next; returns their JSON."""
    events = []
    for _ in range(count):
        accepted = await owners.submit(publish_rows(program_id, [row()]))
        events += accepted.events
    return events
