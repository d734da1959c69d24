import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.auth.throttle import LoginThrottle, ThrottleConfig, Try
from broker.errors import SlowDown
from broker.storage.database import Database
from broker.storage.login_failures import LoginFailures
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SECRET = bytes(32)


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


def throttle(database: Database, clock: StoppedClock) -> LoginThrottle:
    return LoginThrottle(LoginFailures(database, window_s=60), clock, ThrottleConfig())


def attempt(throttle: LoginThrottle, user: str, address: str = "", account: str = "demo") -> Try:
    return throttle.build_try(account, user, address, SECRET)


async def retry_after(throttle: LoginThrottle, of: Try) -> int | None:
    try:
        await throttle.check(of)
    except SlowDown as error:
        return error.retry_after_s
    return None


async def test_tenth_failure_of_a_name_is_counted_and_the_eleventh_refused(database: Database) -> None:
    gate = throttle(database, StoppedClock())
    kim = attempt(gate, "kim")
    for _ in range(9):
        await gate.record_failure(kim)
    assert await retry_after(gate, kim) is None
    await gate.record_failure(kim)
    assert await retry_after(gate, kim) == 60
    with pytest.raises(SlowDown):
        await gate.record_failure(kim)
    assert await retry_after(gate, attempt(gate, "lee")) is None


async def test_thirtieth_failure_of_an_address_is_the_last(database: Database) -> None:
    gate = throttle(database, StoppedClock())
    for number in range(29):
        await gate.record_failure(attempt(gate, f"user-{number}", "192.0.2.1"))
    assert await retry_after(gate, attempt(gate, "new", "192.0.2.1")) is None
    await gate.record_failure(attempt(gate, "user-29", "192.0.2.1"))
    assert await retry_after(gate, attempt(gate, "new", "192.0.2.1")) == 60
    assert await retry_after(gate, attempt(gate, "new", "192.0.2.2")) is None


async def test_failures_of_a_clock_that_stepped_back_refuse_nobody(database: Database) -> None:
    clock = StoppedClock()
    gate = throttle(database, clock)
    kim = attempt(gate, "kim")
    clock.ms += 3_600_000
    for _ in range(10):
        await gate.record_failure(kim)
    assert await retry_after(gate, kim) == 60
    clock.ms -= 3_600_000
    assert await retry_after(gate, kim) is None


async def test_wait_is_right_to_the_second(database: Database) -> None:
    clock = StoppedClock()
    gate = throttle(database, clock)
    kim = attempt(gate, "kim")
    for _ in range(10):
        await gate.record_failure(kim)
        clock.ms += 1000
    # The first of them ends its minute 50 s from now, and then nine are left.
    assert await retry_after(gate, kim) == 50
    clock.ms += 48_999
    assert await retry_after(gate, kim) == 2
    clock.ms += 1
    assert await retry_after(gate, kim) == 1
    clock.ms += 999
    assert await retry_after(gate, kim) == 1
    clock.ms += 1
    assert await retry_after(gate, kim) is None
    await gate.record_failure(kim)
    assert await retry_after(gate, kim) == 1


async def test_longer_of_both_waits_is_told(database: Database) -> None:
    clock = StoppedClock()
    gate = throttle(database, clock)
    for _ in range(10):
        await gate.record_failure(attempt(gate, "kim", "192.0.2.1"))
    clock.ms += 5000
    for number in range(20):
        await gate.record_failure(attempt(gate, f"user-{number}", "192.0.2.1"))
    clock.ms += 5000
    for _ in range(10):
        await gate.record_failure(attempt(gate, "lee"))
    assert await retry_after(gate, attempt(gate, "kim", "192.0.2.1")) == 50
    assert await retry_after(gate, attempt(gate, "lee", "192.0.2.1")) == 60


async def test_replicas_share_the_count_and_parallel_tries_do_not_exceed_it(database: Database) -> None:
    clock = StoppedClock()
    gates = [throttle(database, clock) for _ in range(2)]
    kim = attempt(gates[0], "kim", "192.0.2.1")
    results = await asyncio.gather(
        *(gates[number % 2].record_failure(kim) for number in range(25)), return_exceptions=True
    )
    assert results.count(None) == 10
    assert sum(isinstance(result, SlowDown) for result in results) == 15


async def test_accounts_and_kinds_of_subjects_are_apart(database: Database) -> None:
    gate = throttle(database, StoppedClock())
    for _ in range(10):
        await gate.record_failure(attempt(gate, "kim"))
    assert await retry_after(gate, attempt(gate, "kim", account="other")) is None
    assert await retry_after(gate, attempt(gate, "lee", address="kim")) is None


async def test_old_failures_are_deleted_and_names_are_not_in_clear(database: Database) -> None:
    clock = StoppedClock()
    gate = throttle(database, clock)
    await gate.record_failure(attempt(gate, "kim", "192.0.2.1"))
    async with database.connection() as connection:
        text = str(await connection.fetch("SELECT * FROM login_failures"))
    assert "kim" not in text
    assert "192.0.2.1" not in text
    clock.ms += 59_999
    await gate.purge()
    assert await rows(database) == 2
    clock.ms += 1
    await gate.purge()
    assert await rows(database) == 0


async def rows(database: Database) -> int:
    async with database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM login_failures"))
