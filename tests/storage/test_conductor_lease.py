"""Who conducts on a database, on a real one."""

import asyncio

import pytest

from broker.storage.conductor_lease import ConductorLease
from tests.owners.support import holding
from tests.storage.answers import fetch, until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

END = "UPDATE conductor_lease SET ends = clock_timestamp() - interval '1 second'"
LASTS = "SELECT ends > clock_timestamp() FROM conductor_lease"


async def test_one_of_two_holds_it_until_its_time_is_over(migrated_dsn: str) -> None:
    first = await ConductorLease.open(migrated_dsn, "first")
    second = await ConductorLease.open(migrated_dsn, "second")
    try:
        assert await first.take()
        assert not await second.take()
        assert await first.renew()
        assert not await second.take()
        await fetch(migrated_dsn, END)
        assert await second.take()
        assert not await first.renew()
        assert not await first.take()
    finally:
        await first.close()
        await second.close()


async def test_a_holder_that_was_away_still_has_it_when_nobody_took_it(migrated_dsn: str) -> None:
    lease = await ConductorLease.open(migrated_dsn, "first")
    try:
        assert await lease.take()
        await fetch(migrated_dsn, END)
        assert await lease.renew()
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


@pytest.mark.parametrize("is_over", ["given up", "lapsed"])
async def test_a_holder_that_was_away_sees_that_another_had_it_in_between(
    migrated_dsn: str, is_over: str
) -> None:
    away = await ConductorLease.open(migrated_dsn, "away")
    between = await ConductorLease.open(migrated_dsn, "between")
    try:
        assert await away.take()
        await fetch(migrated_dsn, END)
        assert await between.take()
        if is_over == "given up":
            await between.give_up()
        else:
            await fetch(migrated_dsn, END)
        assert not await away.renew()
        assert await away.take()  # as anybody could
        assert await away.renew()
    finally:
        await away.close()
        await between.close()


async def test_one_that_was_started_again_ends_the_term_before(migrated_dsn: str) -> None:
    former = await ConductorLease.open(migrated_dsn, "same")
    again = await ConductorLease.open(migrated_dsn, "same")
    try:
        assert await former.take()
        assert await again.take()
        assert not await former.renew()
        await former.give_up()  # not what another term has
        assert await again.renew()
        assert [row[0] for row in await fetch(migrated_dsn, LASTS)] == [True]
    finally:
        await former.close()
        await again.close()


async def test_its_end_is_counted_from_before_the_database_was_asked(migrated_dsn: str) -> None:
    """A slow reply would otherwise have the holder believe in it for longer than the database does."""
    times = [100.0]
    lease = await ConductorLease.open(migrated_dsn, "slow", now_s=lambda: times[-1])
    try:
        assert lease.until_s == 100
        async with holding(migrated_dsn, "LOCK TABLE conductor_lease IN ACCESS EXCLUSIVE MODE"):
            taking = asyncio.create_task(lease.take())
            await until_waiting(migrated_dsn)
            times.append(104.0)
        assert await taking
        assert lease.until_s == 110
        assert await lease.renew()
        assert lease.until_s == 114
        times.append(120.0)
        await fetch(migrated_dsn, "UPDATE conductor_lease SET term = term + 1")
        assert not await lease.renew()
        assert lease.until_s == 114
    finally:
        await lease.close()


async def test_who_waits_for_it_does_not_wait_for_the_holder(migrated_dsn: str) -> None:
    holder = await ConductorLease.open(migrated_dsn, "holder")
    spare = await ConductorLease.open(migrated_dsn, "spare")
    try:
        assert await holder.take()
        async with holding(migrated_dsn, "SELECT FROM conductor_lease FOR UPDATE"):
            assert not await spare.take()
    finally:
        await holder.close()
        await spare.close()


@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM conductor_lease",
        "UPDATE conductor_lease SET term = term - 1",
        "UPDATE conductor_lease SET term = term - 1, holder = 'earlier', ends = now() - interval '1 day'",
    ],
    ids=["the row", "a term", "a term after another holder's"],
)
async def test_a_database_that_has_lost_the_term_gets_it_back(migrated_dsn: str, loss: str) -> None:
    """As when a dump is restored or a late standby promoted, while the holder lives on."""
    lease = await ConductorLease.open(migrated_dsn, "first")
    try:
        assert await lease.take()
        assert await lease.take()
        await fetch(migrated_dsn, loss)
        assert await lease.renew()
        assert await fetch(migrated_dsn, "SELECT holder, term FROM conductor_lease") == [
            ("first", lease.term)
        ]
        assert await fetch(migrated_dsn, LASTS) == [(True,)]
    finally:
        await lease.close()


async def test_a_term_that_was_lost_and_taken_by_another_is_over(migrated_dsn: str) -> None:
    first = await ConductorLease.open(migrated_dsn, "first")
    second = await ConductorLease.open(migrated_dsn, "second")
    try:
        assert await first.take()
        await fetch(migrated_dsn, "DELETE FROM conductor_lease")
        assert await second.take()
        assert second.term == first.term
        assert not await first.renew()
        await fetch(migrated_dsn, END)
        assert not await first.renew()
    finally:
        await first.close()
        await second.close()
