"""`broker.storage.fence`, on a real PostgreSQL: who was shut out learns it, whatever its successor does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from broker.errors import Unavailable
from broker.storage.conductor_lease import ConductorLease
from broker.storage.database import Database
from broker.storage.fence import HOLD, Fence, Fenced
from tests.storage.answers import fetch, until_waiting

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SLOT = "tested"
# Waits for a lock end with `Unavailable` after this time, which is not what these tests expect.
TIMEOUT_S = 1.0


@asynccontextmanager
async def open_lease(dsn: str, holder: str) -> AsyncIterator[ConductorLease]:
    lease = await ConductorLease.open(dsn, holder)
    try:
        yield lease
    finally:
        await lease.close()


@asynccontextmanager
async def open_fence(dsn: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Fence]:
    """A fence over one connection of its own."""
    database = await Database.open(dsn, size=1, timeout_s=timeout_s)
    try:
        yield Fence(database, SLOT)
    finally:
        await database.close()


@asynccontextmanager
async def open_commit(dsn: str, generation: int) -> AsyncIterator[None]:
    """A transaction that holds the slot, and does not end before the block."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            assert await connection.fetchval(HOLD, SLOT, generation) == generation
            yield
    finally:
        await connection.close()


async def test_former_holder_is_shut_out_while_the_next_one_commits(migrated_dsn: str) -> None:
    async with open_fence(migrated_dsn) as former, open_fence(migrated_dsn) as following:
        mine = await former.acquire()
        theirs = await following.acquire()
        async with open_commit(migrated_dsn, theirs):
            with pytest.raises(Fenced):
                await former.renew(mine, former.next_generation(mine))
        assert (await following.standing()).generation == theirs


async def test_holder_of_an_older_placement_is_shut_out_while_a_commit_is_open(migrated_dsn: str) -> None:
    async with open_fence(migrated_dsn) as fence:
        mine = await fence.acquire()
        fence.placement = 7  # the database's is another one
        async with open_commit(migrated_dsn, mine):
            with pytest.raises(Fenced):
                await fence.renew(mine, fence.next_generation(mine))


async def test_slot_is_not_taken_in_a_term_that_is_over(migrated_dsn: str) -> None:
    """A process of the former conductor may be started again by Ray, at any time."""
    async with open_lease(migrated_dsn, "former") as lease, open_fence(migrated_dsn) as fence:
        assert await lease.take()
        former = lease.term
        first = await fence.acquire(former)
        await fetch(migrated_dsn, "UPDATE conductor_lease SET ends = '-infinity'")
        assert await fence.acquire(former) > first  # nobody else has come yet
        async with open_lease(migrated_dsn, "following") as next_lease:
            assert await next_lease.take()
            theirs = await fence.acquire(next_lease.term)
            with pytest.raises(Unavailable, match="another conductor"):
                await fence.acquire(former)
            assert (await fence.standing()).generation == theirs


async def test_slot_is_not_taken_by_who_waited_while_the_term_ended(migrated_dsn: str) -> None:
    async with open_lease(migrated_dsn, "former") as lease, open_fence(migrated_dsn, 20) as fence:
        assert await lease.take()
        theirs = await fence.acquire()
        async with open_commit(migrated_dsn, theirs):
            taking = asyncio.create_task(fence.acquire(lease.term))
            await until_waiting(migrated_dsn)
            await fetch(migrated_dsn, "UPDATE conductor_lease SET term = term + 1")
        with pytest.raises(Unavailable, match="another conductor"):
            await taking
        assert (await fence.standing()).generation == theirs


async def test_holder_renews_again_what_was_not_answered(migrated_dsn: str) -> None:
    async with open_fence(migrated_dsn) as fence:
        mine = await fence.acquire()
        target = fence.next_generation(mine)
        assert await fence.renew(mine, target) == target
        assert await fence.renew(mine, target) == target


async def test_slot_that_the_database_has_forgotten_is_taken_again(migrated_dsn: str) -> None:
    async with open_fence(migrated_dsn) as fence:
        assert await fence.renew(5, 9) == 9
        assert (await fence.standing()).generation == 9
