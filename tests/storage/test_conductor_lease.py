"""Who conducts on a database, on a real one."""

import asyncio

import pytest

from broker.storage.conductor_lease import ConductorLease
from tests.owners.support import holding
from tests.storage.answers import fetch, until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LASTS = "SELECT ends > clock_timestamp() FROM conductor_lease"
SET_BACK = "UPDATE conductor_lease SET ends = ends + interval '1 hour'"
SET_FORWARD = "UPDATE conductor_lease SET ends = ends - interval '1 hour'"


class HandClock:
    """Tells `boot_s` as a test says."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s


async def test_spare_takes_what_was_not_renewed_for_as_long_as_it_lasts(migrated_dsn: str) -> None:
    clock = HandClock()
    first = await ConductorLease.open(migrated_dsn, "first", clock)
    second = await ConductorLease.open(migrated_dsn, "second", clock)
    try:
        assert await first.take()
        assert not await second.take()
        clock.s += 10.9
        assert not await second.take()
        assert await first.renew()
        clock.s += 1
        assert not await second.take()
        clock.s += 10.9
        assert not await second.take()
        clock.s += 0.2
        assert await second.take()
        assert not await first.renew()
        assert not await first.take()
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize("step", [SET_BACK, SET_FORWARD], ids=["back", "forward"])
async def test_a_clock_of_the_database_that_is_set_neither_ends_nor_prolongs_it(
    migrated_dsn: str, step: str
) -> None:
    clock = HandClock()
    first = await ConductorLease.open(migrated_dsn, "first", clock)
    second = await ConductorLease.open(migrated_dsn, "second", clock)
    try:
        assert await first.take()
        await fetch(migrated_dsn, step)
        assert not await second.take()
        clock.s += 11
        assert await second.take()
    finally:
        await first.close()
        await second.close()


async def test_a_holder_that_was_away_still_has_it_when_nobody_took_it(migrated_dsn: str) -> None:
    clock = HandClock()
    lease = await ConductorLease.open(migrated_dsn, "first", clock)
    try:
        assert await lease.take()
        clock.s += 3_600
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
    clock = HandClock()
    away = await ConductorLease.open(migrated_dsn, "away", clock)
    between = await ConductorLease.open(migrated_dsn, "between", clock)
    try:
        assert await away.take()
        assert not await between.take()
        clock.s += 11
        assert await between.take()
        assert not await away.take()
        if is_over == "given up":
            await between.give_up()
        else:
            clock.s += 11
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
        await fetch(migrated_dsn, "UPDATE conductor_lease SET ends = now() - interval '1 day'")
        assert not await first.renew()
    finally:
        await first.close()
        await second.close()
