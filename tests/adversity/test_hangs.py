"""Parts that stop, hang or are exchanged while events flow; nothing is lost, doubled or reordered."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest

from broker.cli.main import run
from broker.owners.commands import Publish
from broker.owners.owner import Owner
from broker.owners.placement import owner_of
from broker.owners.protocol import program_topic
from broker.settings import Settings
from tests.adversity.faults import TITLES, find, hit
from tests.adversity.soak import HEADS, Show, Size, open_show
from tests.deployments.instance import Instance
from tests.owners.support import create_programs, ids, row

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

SMALL = Size(producers=6, viewers=12, programs=3, events_per_s=600.0, gives_up=0.0)
OWNERS = 2


async def test_owner_that_was_stopped_and_succeeded_cannot_write(instance: Instance) -> None:
    async with open_show(instance, SMALL) as show:
        old = find(instance, TITLES["owner"])
        assert hit(old, signal.SIGSTOP) == OWNERS
        for index in range(OWNERS):
            await take_over(show, index)
        async with no_successor(show) as heads:
            before = await heads()
            hit(old, signal.SIGCONT)
            await until_gone(old)
            assert await heads() == before
        await show.until_at_work(time.monotonic())
        assert (await show.close()).findings == []


async def test_owner_and_gateway_that_hang_are_exchanged(instance: Instance) -> None:
    async with open_show(instance, SMALL) as show:
        hung = [find(instance, TITLES[kind])[0] for kind in ("owner", "gateway")]
        hit(hung, signal.SIGSTOP)
        await until_gone(hung)
        await show.until_at_work(time.monotonic())
        assert (await show.close()).findings == []


async def test_new_code_takes_over_from_old_while_events_flow(instance: Instance, package: Path) -> None:
    async with open_show(instance, SMALL) as show:
        old = [
            process
            for kind in ("owner", "gateway", "API replica")
            for process in find(instance, TITLES[kind])
        ]
        source = package / "__init__.py"
        source.write_text(source.read_text().replace('__version__ = "', '__version__ = "9.'))
        instance.process.send_signal(signal.SIGHUP)
        await until_gone(old)
        await show.until_at_work(time.monotonic())
        await show.until_ready()
        async with httpx.AsyncClient(timeout=20) as client:
            reply = await client.get(f"{instance.url}/api/v1/version")
        assert reply.json()["version"].startswith("9.")
        verdict = await show.close()
        assert verdict.findings == []
        assert verdict.reconnects <= SMALL.viewers


async def test_owners_become_more_and_fewer_while_one_is_killed(instance: Instance) -> None:
    async with open_show(instance, SMALL) as show:
        try:
            await scale(instance, 4)
            await show.until_at_work(time.monotonic())
            assert len(find(instance, TITLES["owner"])) == 4
            hit(find(instance, TITLES["owner"])[:1], signal.SIGKILL)
            await scale(instance, 1)
            await show.until_at_work(time.monotonic())
        finally:
            await scale(instance, OWNERS)
        await show.until_at_work(time.monotonic())
        verdict = await show.close()
        assert verdict.findings == []
        assert verdict.reconnects == 0


async def scale(instance: Instance, owners: int) -> None:
    """Return when so many owners are in effect."""
    command = ["scale", f"owners={owners}", "--data-dir", str(instance.data_dir)]
    assert await asyncio.to_thread(run, command) == 0


async def take_over(show: Show, index: int) -> None:
    """Be the owner of a slot for a moment, and write."""
    settings = Settings(owners=OWNERS, database_pool=2, database_timeout_s=30.0)
    names = (f"{show.side_program}-{number}" for number in count())
    mine = next(name for name in names if owner_of(program_topic("demo", name), OWNERS) == index)
    await create_programs(show.dsn, [mine])
    owner = await Owner.start(settings, show.dsn, index)
    try:
        (answer,) = await owner.submit([Publish(ids.uuid7(), "demo", mine, (row(),), None)], 10.0)
        assert not isinstance(answer, Exception)
    finally:
        await owner.close()


@asynccontextmanager
async def no_successor(show: Show) -> AsyncIterator[Callable[[], Awaitable[dict[str, int]]]]:
    """Keep new owners from their slots. Gives what reads where the show's programs stand."""
    connection = await asyncpg.connect(show.dsn)
    try:
        async with connection.transaction():
            # Shared, as an owner's own commit holds it: who has a slot is not in the way of who writes.
            await connection.execute("SELECT FROM owner_slots FOR SHARE")

            async def heads() -> dict[str, int]:
                return dict(await connection.fetch(HEADS, show.programs))

            yield heads
    finally:
        await connection.close()


async def until_gone(processes: list[psutil.Process]) -> None:
    # `psutil` waits for processes that are not our children by asking; a thread keeps the show going.
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 90)
    assert alive == []
