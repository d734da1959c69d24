"""How a process learns of maintenance: at its start, by a notification, by a look, and not when it cannot."""

import asyncio

import pytest

from broker.errors import Unavailable, UnderMaintenance
from broker.operations import known_maintenance
from broker.operations.known_maintenance import KnownMaintenance
from broker.storage.database import Database
from tests.auth.services import open_database
from tests.maintenance import MESSAGE, RETRY_AFTER_S, known, switch

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


class Deaf(KnownMaintenance):
    """Hears no notification."""

    async def _listen(self) -> None:
        await asyncio.Future()


async def test_a_notification_brings_it_at_once(migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_maintenance, "LOOK_S", 600.0)
    async with open_database(migrated_dsn) as database, open_database(migrated_dsn) as operators:
        maintenance = KnownMaintenance(database)
        begun: list[bool] = []
        maintenance.on_begin(lambda: begun.append(maintenance.current is not None))
        await maintenance.start()
        try:
            for _ in range(2):
                await switch(operators, on=True)
                await known(maintenance, on=True)
                with pytest.raises(UnderMaintenance) as raised:
                    maintenance.require_off()
                assert (raised.value.message, raised.value.retry_after_s) == (MESSAGE, RETRY_AFTER_S)
                await switch(operators, on=False)
                await known(maintenance, on=False)
                maintenance.require_off()
        finally:
            await maintenance.close()
        assert begun == [True, True]


async def test_a_lost_notification_is_made_up_for(migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_maintenance, "LOOK_S", 0.01)
    async with open_database(migrated_dsn) as database:
        maintenance = Deaf(database)
        await maintenance.start()
        try:
            await switch(database, on=True)
            await known(maintenance, on=True)
        finally:
            await maintenance.close()


async def test_it_survives_a_restart(migrated_dsn: str) -> None:
    async with open_database(migrated_dsn) as database:
        await switch(database, on=True)
        maintenance = KnownMaintenance(database)
        await maintenance.start()
        await maintenance.close()
        assert maintenance.current is not None


async def test_a_process_does_not_start_without_knowing(migrated_dsn: str) -> None:
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    await database.close()
    with pytest.raises(Unavailable):
        await KnownMaintenance(database).start()


async def test_without_the_database_the_last_state_holds(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(known_maintenance, "LOOK_S", 0.01)
    async with open_database(migrated_dsn) as operators:
        await switch(operators, on=True)
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    maintenance = Deaf(database)
    await maintenance.start()
    try:
        await database.close()
        async with asyncio.timeout(10):
            while "maintenance_not_read" not in caplog.text:  # noqa: ASYNC110 - nothing here says when
                await asyncio.sleep(0.005)
        assert maintenance.current is not None
    finally:
        await maintenance.close()
