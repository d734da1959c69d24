"""PostgreSQL stands still while events are published: what callers are told is what is there afterwards."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import psutil
import pytest

from broker.clock import SystemClock
from broker.errors import OutcomeUnknown, Unavailable
from broker.owners.linked_owners import LinkedOwners
from broker.owners.owner import Owner
from broker.settings import Settings
from tests.owners.support import ids, publish_rows, row
from tests.owners.test_bad_links import OwnLink

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = Settings(owners=1, database_timeout_s=0.3, publish_timeout_s=0.6, database_pool=2)


@asynccontextmanager
async def frozen(dsn: str) -> AsyncIterator[None]:
    """All processes of the server stand still."""
    connection = await asyncpg.connect(dsn)
    postmaster = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()")).parent()
    await connection.close()
    assert postmaster is not None
    stopped = [postmaster]
    try:
        postmaster.send_signal(signal.SIGSTOP)  # first, so that it starts no other
        for process in postmaster.children():
            with suppress(psutil.NoSuchProcess):  # that of the connection above may still be ending
                process.send_signal(signal.SIGSTOP)
                stopped.append(process)
        yield
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


async def test_what_may_be_stored_is_not_refused(dsn: str) -> None:
    owner = await Owner.start(SETTINGS, dsn, 0)
    owners = LinkedOwners(SETTINGS, SystemClock(), ids, [OwnLink(owner)])
    told: dict[str, str] = {}

    async def publish(number: int) -> None:
        event = row()
        try:
            await owners.submit(publish_rows("p", [event]))
        except OutcomeUnknown:
            told[event.id] = "unknown"
        except Unavailable:
            told[event.id] = "refused"
        else:
            told[event.id] = "stored"

    async def produce(producer: int) -> None:
        for number in range(20):
            await publish(number)
            await asyncio.sleep(0.01 * producer)

    producing = [asyncio.create_task(produce(producer)) for producer in range(6)]
    for _ in range(2):
        await asyncio.sleep(0.2)  # of publishing, so that some commit is always under way
        async with frozen(dsn):
            await asyncio.sleep(1.5)  # longer than a statement and a publish may take
    await asyncio.gather(*producing)
    await owners.close()
    await owner.close()
    connection = await asyncpg.connect(dsn)
    stored = {str(each["id"]) for each in await connection.fetch("SELECT id FROM events")}
    await connection.close()
    assert set(told.values()) >= {"stored", "unknown"}
    assert {id_ for id_, kind in told.items() if kind == "refused"} & stored == set()
    assert {id_ for id_, kind in told.items() if kind == "stored"} <= stored
