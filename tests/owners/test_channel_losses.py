"""A channel whose table has lost rows that were told, and has given their numbers to others.

Here rows are changed by SQL, and all connections are ended as a server that is exchanged ends them.
`tests/gateway/test_failover.py` does it with servers.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from broker.clock import SystemClock
from broker.owners.channel import ProgramsChannel
from broker.owners.encoding import RESUMED, notice_id
from broker.owners.log import LogLimits
from broker.owners.owner import Owner
from broker.owners.protocol import PROGRAMS_CHANNEL, Cursor, Entry, Head, channel_topic
from broker.owners.sessions import Follow
from broker.storage.database import Database
from broker.storage.program_changes import ProgramOutbox
from tests.owners.conftest import SETTINGS
from tests.owners.support import Gateway, create_programs, fetch
from tests.owners.test_losses import exchange_server, successor
from tests.servers import Servers, make_template

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

TOPIC = channel_topic("demo", PROGRAMS_CHANNEL)
_OTHERS = "UPDATE program_changes SET change = 'deleted' WHERE program->>'id' = ANY($1)"
_LOSE = "DELETE FROM program_changes WHERE program->>'id' = ANY($1)"
_COUNT_ANEW = "ALTER TABLE program_changes ALTER COLUMN id RESTART WITH 1"


async def give_numbers_to_others(dsn: str, *programs: str) -> None:
    """The rows about these programs were never written, and their numbers are those of other rows."""
    await fetch(dsn, _OTHERS, programs)


async def lose(dsn: str, *programs: str) -> None:
    """There are no rows about these programs."""
    await fetch(dsn, _LOSE, programs)


def told(entries: list[Entry]) -> list[tuple[str, str]]:
    """What became of which program; `resumed` with the channel."""
    found = []
    for entry in entries:
        params = orjson.loads(entry.params)
        if entry.method == RESUMED:
            found.append((RESUMED, params["channel"]))
        else:
            found.append((params["change"], params["program"]["id"]))
    return found


@pytest.fixture
async def gateway(owner: Owner) -> Gateway:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    return gateway


async def cursor_after(gateway: Gateway, dsn: str, *programs: str) -> Cursor:
    """Where the gateway stands after it has heard of these new programs."""
    await create_programs(dsn, programs)
    entries = await gateway.until(1, len(programs))
    return replace(gateway.cursors[1], id=notice_id(entries[-1].params))


async def until_at(owner: Owner, number: int) -> None:
    """Wait until the channel stands at a number."""
    async with asyncio.timeout(10):
        while True:
            (head,) = await owner.open("other", [Follow(1, TOPIC, None)])
            if isinstance(head, Head) and head.seq == number:
                return
            await asyncio.sleep(0.01)


async def test_rows_after_the_last_one_that_is_left_are_told(
    owner: Owner, dsn: str, gateway: Gateway
) -> None:
    await cursor_after(gateway, dsn, "r", "s", "t")
    await give_numbers_to_others(dsn, "s", "t")
    await exchange_server(dsn)
    assert told(await gateway.until(1, 5)) == [
        *(("created", name) for name in "rst"),
        ("deleted", "s"),
        ("deleted", "t"),
    ]


async def test_followers_are_told_when_no_row_is_left(owner: Owner, dsn: str, gateway: Gateway) -> None:
    await cursor_after(gateway, dsn, "r", "s")
    await give_numbers_to_others(dsn, "p", "q", "r", "s")  # the first two are older than the channel
    await exchange_server(dsn)
    await gateway.until(1, 3)
    await create_programs(dsn, ["x"])
    assert told(await gateway.until(1, 4))[2:] == [(RESUMED, PROGRAMS_CHANNEL), ("created", "x")]


async def test_row_that_is_deleted_is_no_loss(owner: Owner, dsn: str, gateway: Gateway) -> None:
    await gateway.open(Follow(1, TOPIC, None))
    await lose(dsn, "q")  # the newest one when the channel began
    await exchange_server(dsn)
    await cursor_after(gateway, dsn, "r", "s")
    await lose(dsn, "s")
    await exchange_server(dsn)
    await create_programs(dsn, ["x"])
    assert told(await gateway.until(1, 3)) == [("created", name) for name in "rsx"]


async def test_numbers_that_begin_anew_are_told(owner: Owner, dsn: str, gateway: Gateway) -> None:
    cursor = await cursor_after(gateway, dsn, "r", "s")
    await fetch(dsn, "DELETE FROM program_changes")
    await fetch(dsn, _COUNT_ANEW)
    await exchange_server(dsn)
    await until_at(owner, 0)
    await create_programs(dsn, ["x"])
    assert told(await gateway.until(1, 3))[2:] == [("created", "x")]
    await fetch(dsn, "DELETE FROM program_changes")
    await fetch(dsn, _COUNT_ANEW)
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(2, TOPIC, cursor))
        await create_programs(dsn, ["y"])
        assert told(await gateway.until(2, 1)) == [("created", "y")]


async def test_successor_goes_on_where_nothing_was_lost(owner: Owner, dsn: str, gateway: Gateway) -> None:
    cursor = await cursor_after(gateway, dsn, "r", "s")
    await owner.close()
    await create_programs(dsn, ["x"])
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(2, TOPIC, cursor))
        await create_programs(dsn, ["y"])
        assert told(await gateway.until(2, 2)) == [("created", "x"), ("created", "y")]


@pytest.mark.parametrize("others", [["s"], ["r", "s"]])
async def test_successor_tells_who_has_seen_what_was_lost(
    owner: Owner, dsn: str, gateway: Gateway, others: list[str]
) -> None:
    cursor = await cursor_after(gateway, dsn, "r", "s")
    await give_numbers_to_others(dsn, *others)
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(2, TOPIC, cursor))
        await gateway.until(2, 1)
        await create_programs(dsn, ["x"])
        assert told(await gateway.until(2, 2)) == [(RESUMED, PROGRAMS_CHANNEL), ("created", "x")]


async def test_successor_tells_who_is_ahead_of_its_table(owner: Owner, dsn: str, gateway: Gateway) -> None:
    cursor = await cursor_after(gateway, dsn, "r", "s", "t")
    await lose(dsn, "s", "t")
    await give_numbers_to_others(dsn, "r")
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(2, TOPIC, cursor))
        assert told(await gateway.until(2, 1)) == [(RESUMED, PROGRAMS_CHANNEL)]


async def test_cursor_without_an_id_is_believed(owner: Owner, dsn: str, gateway: Gateway) -> None:
    """Of an earlier version, which sends none."""
    cursor = await cursor_after(gateway, dsn, "r")
    await create_programs(dsn, ["s"])
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(2, TOPIC, replace(cursor, id="")))
        assert told(await gateway.until(2, 1)) == [("created", "s")]


async def test_follower_who_is_late_learns_that_numbers_were_used_again(dsn: str) -> None:
    owner = await Owner.start(SETTINGS, dsn, 0, log_limits=LogLimits(entries=1))
    try:
        late, gateway = Gateway(owner, "late"), Gateway(owner)
        for each in (late, gateway):
            await each.open(Follow(1, TOPIC, None))
        await create_programs(dsn, ["r"])
        for each in (late, gateway):
            await each.until(1, 1)
        await give_numbers_to_others(dsn, "r")
        await exchange_server(dsn)
        await gateway.until(1, 2)
        for count, name in enumerate("st", 3):  # no more than the last two are in memory
            await create_programs(dsn, [name])
            await gateway.until(1, count)
        assert told(gateway.told(1))[1:] == [("deleted", "r"), ("created", "s"), ("created", "t")]
        await late.until(1, 2)
        await create_programs(dsn, ["x"])
        assert told(await late.until(1, 3))[1:] == [(RESUMED, PROGRAMS_CHANNEL), ("created", "x")]
    finally:
        await owner.close()


async def test_rows_of_a_new_connection_are_not_taken_for_later_ones(tmp_path: Path) -> None:
    """It leads to another server, and no connection to the former one has ended yet."""
    clock = SystemClock()
    (tmp_path / "template").mkdir()
    servers = Servers(tmp_path, await asyncio.to_thread(make_template, tmp_path / "template"))
    try:
        await servers.start("first")
        await servers.put_in_charge("first")
        await create_programs(servers.dsn, ["p"])
        database = await Database.open(servers.dsn, size=2, timeout_s=5)
        channel = ProgramsChannel("demo", ProgramOutbox(database, clock), clock, LogLimits())
        await channel.begin()
        database.on_connect(channel.doubt)
        await servers.dump_into("second", "first")
        await create_programs(servers.dsn, ["r", "s"])
        await channel._look()
        async with database.connection():
            await servers.put_in_charge("second")
            await create_programs(servers.dsn, ["x", "y", "z"])  # two with the numbers of `r` and `s`
            await channel._look()
        entries = [step.entry for step in channel.log.kept()]
        assert told(entries) == [("created", name) for name in "rsxyz"]
        await database.close()
    finally:
        await servers.stop()
