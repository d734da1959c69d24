"""The database's time, whatever the machine's clock says."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.errors import Unavailable
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock
from tests.adversity.clock import SteppedClock

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

DAY_S = 86_400
TELL = """
import asyncio, sys, time
from broker.storage.database import Database
from broker.storage.database_clock import DatabaseClock

async def tell():
    database = await Database.open(sys.argv[1], size=1, timeout_s=5)
    clock = await DatabaseClock.open(database)
    await database.close()
    print(clock.now_ms(), round(time.time() * 1000))

asyncio.run(tell())
"""


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])
def test_time_is_that_of_the_database(migrated_dsn: str, tmp_path: Path, ahead_s: int) -> None:
    clock = SteppedClock(tmp_path)
    clock.set(ahead_s)
    environment = {**os.environ, **clock.environment}
    command = [sys.executable, "-c", TELL, migrated_dsn]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    told_ms, machine_ms = map(int, done.stdout.split())
    assert abs(told_ms / 1_000 - time.time()) < 60
    assert abs(machine_ms / 1_000 - ahead_s - time.time()) < 60


async def test_a_clock_that_is_set_later_changes_nothing(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    clock = await DatabaseClock.open(database)
    before_ms = clock.now_ms()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now_ms() - before_ms < 60_000
    await database.close()


async def test_what_was_measured_holds_while_the_database_is_away(migrated_dsn: str) -> None:
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    clock = await DatabaseClock.open(database)
    await database.close()
    with pytest.raises(Unavailable):
        await clock.measure()
    assert abs(clock.now_ms() / 1_000 - time.time()) < 60


class OtherTime:
    """A database whose clock is elsewhere."""

    def __init__(self, database_s: float) -> None:
        self.database_s = database_s

    def connection(self) -> "OtherTime":
        return self

    async def __aenter__(self) -> "OtherTime":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held."""

    async def fetchval(self, _query: str) -> float:
        return self.database_s


async def test_another_server_is_followed_unless_its_answer_is_late() -> None:
    server: Any = OtherTime(1_000_000.0)
    clock = await DatabaseClock.open(server)
    assert 1_000_000_000 <= clock.now_ms() < 1_000_060_000
    server.database_s = 2_000_000.0
    await clock.measure(at_most_s=-1.0)
    assert clock.now_ms() < 1_000_060_000
    await clock.measure(at_most_s=60.0)
    assert 2_000_000_000 <= clock.now_ms() < 2_000_060_000
