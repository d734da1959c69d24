"""Who conducts on a database, on a real one."""

import pytest

from broker.storage.conductor_lease import ConductorLease
from tests.storage.answers import fetch

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

END = "UPDATE conductor_lease SET ends = clock_timestamp() - interval '1 second'"


async def test_one_of_two_holds_it_until_its_time_is_over(migrated_dsn: str) -> None:
    first = await ConductorLease.open(migrated_dsn, "first")
    second = await ConductorLease.open(migrated_dsn, "second")
    try:
        assert await first.take()
        assert not await second.take()
        assert await first.take()  # renewed
        await fetch(migrated_dsn, END)
        assert await second.take()
        assert not await first.take()
    finally:
        await first.close()
        await second.close()


async def test_a_holder_that_was_away_still_has_it_when_nobody_took_it(migrated_dsn: str) -> None:
    lease = await ConductorLease.open(migrated_dsn, "first")
    try:
        assert await lease.take()
        await fetch(migrated_dsn, END)
        assert await lease.take()
    finally:
        await lease.close()


async def test_who_ends_gives_it_up_and_only_its_own(migrated_dsn: str) -> None:
    first = await ConductorLease.open(migrated_dsn, "first")
    second = await ConductorLease.open(migrated_dsn, "second")
    assert await first.take()
    await second.close()
    other = await ConductorLease.open(migrated_dsn, "other")
    try:
        assert not await other.take()
        await first.close()
        assert await other.take()
    finally:
        await other.close()
