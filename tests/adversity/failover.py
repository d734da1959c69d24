"""The whole product over a standby that lacks the last of what was acknowledged, and is promoted.

Twice: while owners live on, which see that the database is behind them, and while they die with the old
server, so that their successors know no more than the database and hear from the gateways what was told.
`tests/gateway/test_failover.py` has the same, and more, in one process.

Then over a synchronous standby, which lacks nothing: while people edit and vote in every way there is, it is
promoted, and what was acknowledged is there once.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from broker.client import AsyncClient, Change, ClientError, Event, HistoryReplaced, NewEvent
from tests.adversity.edits_and_votes import edits_and_votes
from tests.adversity.faults import TITLES, kill
from tests.adversity.votes import UNLIMITED
from tests.deployments.instance import PASSWORD, Instance
from tests.servers import Servers, make_template

_VIEWERS = 5
_KEPT, _LOST, _AFTER = 20, 10, 20
_WHOLE_S = 120.0
_BEFORE_S = 3.0  # of votes before the old server dies
_SYNCHRONOUS = ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
_EVENT = NewEvent("Score#update")


async def publish(client: AsyncClient, program: str, count: int) -> list[Event]:
    """Publish one after the other, each until it is acknowledged."""
    return [await publish_one(client, program) for _ in range(count)]


async def publish_one(client: AsyncClient, program: str) -> Event:
    """The event that was acknowledged in the end."""
    while True:
        try:
            return await client.publish(program, _EVENT)
        except ClientError:
            await asyncio.sleep(0.05)


async def view(client: AsyncClient, program: str, told: list[Change]) -> None:
    """Follow for ever."""
    async for change in client.subscribe(program, changes=True):
        told.append(change)  # noqa: PERF401 - it never ends


async def play(client: AsyncClient, instance: Instance, servers: Servers, *, kills_owners: bool) -> list[str]:
    """Lose events of a program; what is wrong then."""
    program = f"owners-die-{kills_owners}"
    await client.programs.create(program, program)
    kept = await publish(client, program, 1)
    told: list[list[Change]] = [[] for _ in range(_VIEWERS)]
    viewing = [asyncio.create_task(view(client, program, each)) for each in told]
    try:
        async with asyncio.timeout(_WHOLE_S):
            while not all(told):
                kept += await publish(client, program, 1)
            kept += await publish(client, program, _KEPT)
            await servers.catch_up("second", "first")
            await servers.cut_off("second")
            lost = await publish(client, program, _LOST)
            while any(each[-1] != lost[-1] for each in told):  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0.05)
            publishing = asyncio.create_task(publish(client, program, _AFTER))
            await servers.kill("first")
            if kills_owners:
                kill(instance, TITLES["owner"])
            await servers.promote("second")
            last = (await publishing)[-1]
            # The epoch begins when the first gateway has said what it has told.
            while last.epoch == lost[0].epoch or any(each[-1] != last for each in told):
                last = await publish_one(client, program)
                await asyncio.sleep(0.2)
        stored = [event async for event in client.events.iterate(program)]
    finally:
        for task in viewing:
            task.cancel()
        await asyncio.gather(*viewing, return_exceptions=True)
    return [*judge(kept, lost, stored), *(fault for each in told for fault in judge_viewer(each, stored))]


async def vote(instance: Instance, servers: Servers) -> list[str]:
    """Promote a standby that lacks nothing while people vote; what is wrong then."""
    for statement in _SYNCHRONOUS:
        await servers.fetch("first", statement)
    async with edits_and_votes(instance) as findings:
        await asyncio.sleep(_BEFORE_S)
        await servers.kill("first")
        await servers.promote("second")
        await asyncio.sleep(_BEFORE_S)
    return findings


def judge(kept: Sequence[Event], lost: Sequence[Event], stored: Sequence[Event]) -> list[str]:
    """What is wrong with what is stored."""
    faults = []
    ids = {event.id for event in stored}
    if [event.seq for event in stored] != list(range(1, len(stored) + 1)):
        faults.append("the stored events are not numbered 1, 2, 3 …")
    if not {event.id for event in kept} <= ids:
        faults.append("an event that the standby had is gone")
    if ids & {event.id for event in lost}:
        faults.append("an event that the standby lacked is there: nothing was lost")
    return faults


def judge_viewer(told: Sequence[Change], stored: Sequence[Event]) -> list[str]:
    """What is wrong with what a viewer was told after it heard that history was lost."""
    resets = [number for number, change in enumerate(told) if isinstance(change, HistoryReplaced)]
    if not resets:
        return ["a viewer was not told that history was lost"]
    reset = told[resets[-1]]
    assert isinstance(reset, HistoryReplaced)
    if list(told[resets[-1] + 1 :]) != [event for event in stored if event.seq > reset.seq]:
        return ["a viewer was told other events than there are"]
    return []


@asynccontextmanager
async def open_product(root: Path, template: Path) -> AsyncIterator[tuple[Instance, Servers]]:
    """The product over a primary with a standby."""
    servers = Servers(root, template)
    try:
        await servers.start("first")
        await servers.add_standby("second", "first")
        await servers.put_in_charge("first")
        environment = {"BROKER_ADMIN_PASSWORD": PASSWORD} | UNLIMITED
        instance = Instance(root / "data", database_url=servers.dsn, environment=environment)
        try:
            await asyncio.to_thread(instance.start)
            yield instance, servers
        finally:
            await asyncio.to_thread(instance.stop)
    finally:
        await servers.stop()


async def main() -> int:
    """Print what came out; 1 when anything was wrong."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bf-", ignore_cleanup_errors=True) as name:
        template = await asyncio.to_thread(make_template, Path(name) / "template")
        for kills_owners in (False, True):
            root = Path(name) / f"owners-die-{kills_owners}"
            root.mkdir()
            async with open_product(root, template) as (instance, servers):
                url = f"http://demo.localhost:{instance.http_port}"
                async with AsyncClient(url, username="admin", password=PASSWORD) as client:
                    faults += await play(client, instance, servers, kills_owners=kills_owners)
        root = Path(name) / "votes"
        root.mkdir()
        async with open_product(root, template) as (instance, servers):
            faults += await vote(instance, servers)
    sys.stdout.write("\n".join([*faults, f"a standby took over three times, {len(faults)} findings"]) + "\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
