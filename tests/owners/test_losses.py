"""A database that has lost what was committed: a standby promoted too early, or a backup that was restored.

Here the rows are taken back by SQL, and all connections are ended as a server that is exchanged ends them.
`tests/gateway/test_failover.py` does it with servers.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from broker.owners.commands import AdoptImport
from broker.owners.owner import Owner
from broker.owners.protocol import (
    PROGRAMS_CHANNEL,
    Cursor,
    Entry,
    EntryKind,
    Head,
    HistoryLost,
    channel_topic,
    program_topic,
)
from broker.owners.sessions import Follow
from tests.owners.conftest import SETTINGS
from tests.owners.support import (
    Gateway,
    ask,
    create_programs,
    fetch,
    ids,
    publish,
    published,
    stage_import,
    update,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_HEAD = "SELECT h.* FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.id = $1"
_PUBLISH_ELSEWHERE = """
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata)
SELECT $1, seq, gen_random_uuid(), now(), 0, 0, 'Score#update', '{}' FROM generate_series($2::bigint, $3) seq
"""


async def take_back(dsn: str, seq: int, program_id: str = "p") -> None:
    """Everything that was pushed after `seq` was never stored."""
    (head,) = await fetch(dsn, _HEAD, program_id)
    await fetch(dsn, "DELETE FROM events WHERE history = $1 AND seq > $2", head["history"], seq)
    await fetch(dsn, "DELETE FROM event_changes WHERE history = $1 AND seq > $2", head["history"], seq)
    await fetch(dsn, "UPDATE program_heads SET seq = $2 WHERE history = $1", head["history"], seq)


async def exchange_server(dsn: str) -> None:
    """End all connections, as those of a server that is gone."""
    await fetch(dsn, _END_OTHERS)


@asynccontextmanager
async def successor(owner: Owner, dsn: str) -> AsyncIterator[Owner]:
    """The owner of the slot after one that died."""
    await owner.close()
    following = await Owner.start(SETTINGS, dsn, 0)
    try:
        yield following
    finally:
        await following.close()


def cursor(head: Head, events: list[dict[str, object]]) -> Cursor:
    """Where a gateway stands that has taken these events."""
    last = events[-1]
    return Cursor(str(last["epoch"]), int(str(last["seq"])), str(last["id"]), head.uid)


def replaced(entry: Entry, epoch: str, seq: int) -> bool:
    """Whether the entry tells that history was lost and goes on after `seq` of another epoch."""
    params = orjson.loads(entry.params)
    is_told = (entry.kind, entry.method) == (EntryKind.RESET, "historyReplaced")
    return is_told and entry.epoch != epoch and params == {"programId": "p", "epoch": entry.epoch, "seq": seq}


@pytest.fixture
async def gateway(owner: Owner) -> Gateway:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    return gateway


async def test_publish_after_a_loss_begins_an_epoch(owner: Owner, dsn: str, gateway: Gateway) -> None:
    events = await published(owner, publish(count=30))
    await gateway.until(1, 30)
    await take_back(dsn, 20)
    (new,) = await published(owner, publish())
    assert (new["epoch"] != events[0]["epoch"], new["seq"]) == (True, 21)
    _, told = (await gateway.until(1, 32))[29:31]
    assert replaced(told, events[0]["epoch"], 20)
    assert orjson.loads(gateway.told(1)[31].params) == new
    (stored,) = await fetch(dsn, _HEAD, "p")
    assert (stored["epoch_reason"], stored["epoch_base"], stored["seq"]) == ("lost", 20, 21)
    (after,) = await published(owner, publish())
    assert (after["epoch"], after["seq"]) == (new["epoch"], 22)


async def test_loss_is_told_without_a_publish(owner: Owner, dsn: str, gateway: Gateway) -> None:
    events = await published(owner, publish(count=3))
    await gateway.until(1, 3)
    await take_back(dsn, 2)
    await exchange_server(dsn)
    assert replaced((await gateway.until(1, 4))[3], events[0]["epoch"], 2)


async def test_server_that_lost_nothing_changes_no_epoch(owner: Owner, dsn: str, gateway: Gateway) -> None:
    events = await published(owner, publish(count=3))
    await published(owner, publish("q"))
    await exchange_server(dsn)
    (after,) = await published(owner, publish())
    assert (after["epoch"], after["seq"]) == (events[0]["epoch"], 4)
    await gateway.until(1, 4)
    assert gateway.seqs(1) == [1, 2, 3, 4]
    async with successor(owner, dsn) as following:
        gateway.owner = following
        head = Head(after["epoch"], 4, None, uid=1)  # type: ignore[arg-type]  # of no matter here
        await gateway.open(Follow(1, program_topic("demo", "p"), cursor(head, [after])))
        (last,) = await published(following, publish())
        assert last["epoch"] == after["epoch"]
        await gateway.until(1, 5)
    assert gateway.seqs(1) == [1, 2, 3, 4, 5]


async def test_program_that_nobody_follows_gets_an_epoch_too(owner: Owner, dsn: str) -> None:
    (*_, last) = await published(owner, publish(count=3))
    await take_back(dsn, 1)
    await exchange_server(dsn)
    (new,) = await published(owner, publish())
    assert (new["epoch"] != last["epoch"], new["seq"]) == (True, 2)


async def test_successor_learns_of_a_loss_from_its_gateways(owner: Owner, dsn: str, gateway: Gateway) -> None:
    head = await gateway.follow(1, "p")
    events = await published(owner, publish(count=30))
    await take_back(dsn, 20)
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(1, program_topic("demo", "p"), cursor(head, events)))
        (told,) = await gateway.until(1, 1)
        assert replaced(told, events[0]["epoch"], 20)
        (new,) = await published(following, publish())
        assert (new["epoch"], new["seq"]) == (told.epoch, 21)


async def test_other_events_of_the_same_numbers_are_a_loss(owner: Owner, dsn: str, gateway: Gateway) -> None:
    """A restore that nobody noticed: what was told is overwritten, and counted further."""
    head = await gateway.follow(1, "p")
    events = await published(owner, publish(count=30))
    await owner.close()
    await take_back(dsn, 20)
    unaware = await Owner.start(SETTINGS, dsn, 0)
    await published(unaware, publish(count=20))
    async with successor(unaware, dsn) as following:
        gateway.owner = following
        topic = program_topic("demo", "p")
        lost, kept = cursor(head, events), cursor(head, events[:20])
        (reply,) = await following.open("strict", [Follow(1, topic, kept, strict=True)])
        assert isinstance(reply, Head)
        await gateway.open(Follow(1, topic, lost))
        (told,) = await gateway.until(1, 1)
        assert replaced(told, events[0]["epoch"], 40)
        (reply,) = await following.open("strict", [Follow(1, topic, lost, strict=True)])
        assert isinstance(reply, HistoryLost)


async def test_events_of_an_older_owner_in_the_place_of_lost_ones_are_a_loss(
    owner: Owner, dsn: str, gateway: Gateway
) -> None:
    """It hung until the database had forgotten who came after it, and goes further than that one."""
    events = await published(owner, publish(count=30))
    await gateway.until(1, 30)
    await take_back(dsn, 20)
    (head,) = await fetch(dsn, _HEAD, "p")
    await fetch(dsn, _PUBLISH_ELSEWHERE, head["history"], 21, 35)
    await fetch(dsn, "UPDATE program_heads SET seq = 35 WHERE history = $1", head["history"])
    await exchange_server(dsn)
    told = (await gateway.until(1, 31))[30]
    assert replaced(told, events[0]["epoch"], 35)
    (new,) = await published(owner, publish())
    assert (new["epoch"], new["seq"]) == (told.epoch, 36)


async def test_cursor_without_an_id_is_believed(owner: Owner, dsn: str, gateway: Gateway) -> None:
    """Of an earlier version, which sends none."""
    (*_, last) = await published(owner, publish(count=3))
    async with successor(owner, dsn) as following:
        gateway.owner = following
        await gateway.open(Follow(1, program_topic("demo", "p"), Cursor(last["epoch"], 2)))
        assert [entry.seq for entry in await gateway.until(1, 1)] == [3]


async def test_import_that_was_lost_is_no_deletion(owner: Owner, dsn: str, gateway: Gateway) -> None:
    head = await gateway.follow(1, "p")
    await published(owner, publish(count=3))
    (before,) = await fetch(dsn, _HEAD, "p")
    await stage_import(dsn, "i", 5)
    await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "i", 5))
    events = await published(owner, publish(count=2))
    undo = (
        "UPDATE program_heads SET epoch = $2, epoch_reason = 'created', epoch_base = 0, seq = 3"
        " WHERE epoch = $1"
    )
    await fetch(dsn, undo, events[0]["epoch"], before["epoch"])
    await fetch(
        dsn, "UPDATE program_heads SET history = $2 WHERE epoch = $1", before["epoch"], before["history"]
    )
    await exchange_server(dsn)
    await gateway.until(1, 7)  # three, the import, two, and
    told = gateway.told(1)[6]
    assert replaced(told, before["epoch"], 3)
    await fetch(dsn, undo, told.epoch, before["epoch"])
    async with successor(owner, dsn) as following:
        gateway.owner, gateway.entries = following, {}
        await gateway.open(Follow(1, program_topic("demo", "p"), cursor(head, events)))
        (told,) = await gateway.until(1, 1)
        assert replaced(told, before["epoch"], 3)


async def test_changes_are_recovered_in_the_epoch_that_goes_on(
    owner: Owner, dsn: str, gateway: Gateway
) -> None:
    first, second = await published(owner, publish(count=2))
    await ask(owner, update(first["id"], event="Score#hide"))
    await published(owner, publish())
    await take_back(dsn, 3)
    (new,) = await published(owner, publish())
    history = await owner.history(program_topic("demo", "p"), new["epoch"], 0, 10)
    assert isinstance(history, list)
    params = [orjson.loads(entry.params) for entry in history]
    assert [(each["epoch"], each["seq"]) for each in params] == [(new["epoch"], seq) for seq in (1, 2, 3, 4)]
    assert [each["id"] for each in params[:3]] == [first["id"], second["id"], first["id"]]


async def test_owner_goes_on_when_the_database_has_forgotten_its_generation(owner: Owner, dsn: str) -> None:
    await published(owner, publish())
    await fetch(dsn, "UPDATE owner_slots SET generation = generation - 1")
    assert [event["seq"] for event in await published(owner, publish())] == [2]
    await fetch(dsn, "DELETE FROM owner_slots")
    assert [event["seq"] for event in await published(owner, publish())] == [3]


async def test_channel_goes_back_with_its_table(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, channel_topic("demo", PROGRAMS_CHANNEL), None))
    await create_programs(dsn, ["r", "s"])
    await gateway.until(1, 2)
    (row,) = await fetch(dsn, "DELETE FROM program_changes WHERE program->>'id' = 's' RETURNING id")
    await exchange_server(dsn)
    await fetch(
        dsn,
        "INSERT INTO program_changes (id, account, change, program, time) OVERRIDING SYSTEM VALUE"
        " SELECT $1, account, 'deleted', program, time FROM program_changes WHERE program->>'id' = 'r'",
        row["id"],
    )
    told = [orjson.loads(entry.params) for entry in await gateway.until(1, 3)]
    assert [(each["program"]["id"], each["change"]) for each in told] == [
        ("r", "created"),
        ("s", "created"),
        ("r", "deleted"),
    ]
