"""After a thousand programs came and went, a gateway has as many objects, tasks and descriptors as before."""

import asyncio
import gc
from functools import partial
from pathlib import Path

import pytest

from broker._native import Server
from broker.gateway import gateway
from tests.gateway.test_hostile import resident_bytes
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ROUNDS = 10
PROGRAMS = 100
SLACK_BYTES = 8 << 20
"""What may differ: an allocator keeps what it was given back, and the owner remembers the newest programs."""

_OURS = ("broker.gateway", "broker.owners.linked_feed")
_MAKE = """
    WITH made AS (
        INSERT INTO programs (account, id, name, access, created_time, updated_time)
        SELECT 'demo', 'p' || n, 'p' || n, 'public', now(), now() FROM generate_series(1, $1) n
        RETURNING uid
    )
    INSERT INTO program_heads (program_uid, epoch, epoch_reason) SELECT uid, 'e' || uid, 'created' FROM made
"""


def count_objects() -> int:
    """Living objects of the classes that make a gateway, but for the native ones."""
    gc.collect()
    return sum(str(type(each).__module__).startswith(_OURS) for each in gc.get_objects())


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_quiet(world: World) -> bool:
    """Whether nobody is connected and no topic is followed or being left."""
    stats = world.gateway.stats()
    is_busy = any(stats[name] for name in ("logs", "connections", "calls_running"))
    return not (is_busy or world.gateway._topics._leaving._tasks)


async def come_and_go(world: World, programs: list[str]) -> None:
    """Somebody follows the programs; a tenth of them is published to and deleted, the others are left."""
    viewer, admin = await world.join(), await world.admin()
    await asyncio.gather(*(viewer.call("subscribe", programId=program) for program in programs))
    ending, events = programs[::10], [{"event": "Score#update", "metadata": {}}]
    await asyncio.gather(*(admin.call("producer", programId=program, events=events) for program in ending))
    assert await viewer.pushes(len(ending)) == [1] * len(ending)
    await asyncio.gather(*(admin.call("admin/deleteProgram", programId=program) for program in ending))
    gone = [await viewer.next("programDeleted") for _ in ending]
    assert sorted(each["programId"] for each in gone) == sorted(ending)
    await world.leave()
    async with asyncio.timeout(10):
        while not is_quiet(world):  # noqa: ASYNC110 - the native server tells nobody
            await asyncio.sleep(0.01)


async def test_programs_leave_nothing_behind(migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "Server", partial(Server, linger_s=0.5))
    programs = [f"p{number}" for number in range(1, PROGRAMS * (ROUNDS + 1) + 1)]
    async with open_world(migrated_dsn, ws_messages_per_s=0) as world:
        async with world.product.services.database.connection() as connection:
            await connection.execute(_MAKE, len(programs))
        await come_and_go(world, programs[:PROGRAMS])
        objects, tasks = count_objects(), len(asyncio.all_tasks())
        descriptors, memory_bytes = count_descriptors(), resident_bytes()
        for start in range(PROGRAMS, len(programs), PROGRAMS):
            await come_and_go(world, programs[start : start + PROGRAMS])
        assert count_objects() == objects
        # The pool of database connections may have grown; one for each round would be a leak.
        assert len(asyncio.all_tasks()) < tasks + ROUNDS
        assert count_descriptors() < descriptors + ROUNDS
        assert resident_bytes() - memory_bytes < SLACK_BYTES
