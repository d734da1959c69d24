"""Whole histories: replaced, erased and deleted without touching their events, which go later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.owners.commands import Accepted, AdoptImport, Command, DeleteProgram, Imported
from broker.owners.housekeeping import Housekeeping
from broker.owners.owner import Owner
from broker.owners.protocol import Cursor
from broker.storage.database import Database
from broker.storage.former_histories import FormerHistories
from broker.storage.imports import Imports
from broker.storage.migrations import DIRECTORY, migrate
from tests.owners.conftest import SETTINGS
from tests.owners.support import (
    Gateway,
    ask,
    create_programs,
    delete,
    delete_all,
    fetch,
    holding,
    ids,
    publish,
    published,
    stage_import,
    update,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

EVENTS = "SELECT e.seq FROM events e JOIN program_heads h USING (history) ORDER BY h.program_uid, e.seq"


@asynccontextmanager
async def database_of(dsn: str) -> AsyncIterator[Database]:
    database = await Database.open(dsn, size=2, timeout_s=5)
    try:
        yield database
    finally:
        await database.close()


async def rows(dsn: str) -> tuple[int, int, int]:
    """Of events, changes and former histories."""
    (counts,) = await fetch(
        dsn,
        "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM event_changes),"
        " (SELECT count(*) FROM former_histories)",
    )
    return tuple(counts)


# -- nobody waits


@pytest.mark.parametrize("kind", ["erasure", "import", "deletion"])
async def test_events_that_go_hold_up_nobody(owner: Owner, dsn: str, kind: str) -> None:
    await published(owner, publish(count=3))
    await stage_import(dsn, "i", 2)
    command: Command = {
        "erasure": delete_all(),
        "import": AdoptImport(ids.uuid7(), "demo", "p", "i", 2),
        "deletion": DeleteProgram(ids.uuid7(), "demo", "p"),
    }[kind]
    async with holding(dsn, "SELECT FROM events FOR UPDATE"), asyncio.timeout(3):
        replies = await owner.submit([command, publish("q")], 10)
        assert isinstance(replies[1], Accepted)
        assert (await published(owner, publish("q")))[0]["seq"] == 2
        if kind != "deletion":
            await published(owner, publish())
    left = {"erasure": [1, 1, 2], "import": [1, 2, 3, 1, 2], "deletion": [1, 2]}[kind]
    assert [row["seq"] for row in await fetch(dsn, EVENTS)] == left


async def test_import_without_events_is_an_empty_history(owner: Owner, dsn: str) -> None:
    await published(owner, publish(count=3))
    reply = await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "none", 0))
    assert isinstance(reply, Imported)
    assert (reply.deleted, reply.imported) == (3, 0)
    assert not await fetch(dsn, EVENTS)


async def test_import_is_adopted_once_and_its_events_can_be_changed(owner: Owner, dsn: str) -> None:
    await stage_import(dsn, "i", 2)
    command = AdoptImport(ids.uuid7(), "demo", "p", "i", 2)
    first = await ask(owner, command)
    (row,) = await fetch(dsn, "SELECT id::text FROM events WHERE seq = 2")
    await ask(owner, update(row["id"], event="A#b"))
    await ask(owner, delete(row["id"]))
    assert await ask(owner, command) == first
    (reply,) = await owner.submit([AdoptImport(ids.uuid7(), "demo", "q", "i", 2)], 10)
    assert type(reply).__name__ == "Unavailable"
    gateway = Gateway(owner)
    await gateway.open()
    assert isinstance(first, Imported)
    await gateway.follow(1, "p", Cursor(first.epoch, 0))
    await gateway.until(1, 4)
    assert gateway.seqs(1) == [1, 2, 3, 4]


# -- a publish that comes again after its events were erased


@pytest.mark.parametrize("kind", ["erasure", "import", "deletion"])
async def test_erased_publish_that_comes_again_is_not_stored_again(owner: Owner, dsn: str, kind: str) -> None:
    command = publish(count=2)
    first = await ask(owner, command)
    assert isinstance(first, Accepted)
    if kind == "erasure":
        await ask(owner, delete_all())
        await ask(owner, delete_all())
    elif kind == "import":
        await stage_import(dsn, "i", 1)
        await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "i", 1))
    else:
        await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p"))
        await create_programs(dsn, ["p"])
    replies = await owner.submit([publish(), command, publish("q")], 10)
    assert replies[1] == first
    left = {"erasure": [1, 1], "import": [1, 2, 1], "deletion": [1, 1]}[kind]
    assert sorted(row["seq"] for row in await fetch(dsn, EVENTS)) == sorted(left)


@pytest.mark.parametrize("into", ["p", "q"])
async def test_publish_that_comes_again_is_told_from_its_imported_copies(
    owner: Owner, dsn: str, into: str
) -> None:
    """An import may have kept the ids; the answer is that of the push, and nothing is stored again."""
    command = publish(count=2)
    first = await ask(owner, command)
    given = [event.id for event in command.events]
    for import_id in ("i", "j"):
        await stage_import(dsn, import_id, 3, given=given)
        await ask(owner, AdoptImport(ids.uuid7(), "demo", into, import_id, 3))
    replies = await owner.submit([publish(into), command], 10)
    assert replies[1] == first
    left = {"p": [1, 2, 3, 4], "q": [1, 2, 1, 2, 3, 4]}[into]
    assert [row["seq"] for row in await fetch(dsn, EVENTS)] == left


async def test_publish_of_a_deleted_program_comes_again_after_its_ids_were_imported(
    owner: Owner, dsn: str
) -> None:
    command = publish(count=2)
    first = await ask(owner, command)
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p"))
    await create_programs(dsn, ["p"])
    await stage_import(dsn, "i", 2, given=[event.id for event in command.events])
    await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "i", 2))
    assert await ask(owner, command) == first
    assert [row["seq"] for row in await fetch(dsn, EVENTS)] == [1, 2]


async def test_erased_publish_comes_again_as_it_was_told(owner: Owner) -> None:
    command = publish(count=2)
    first = await ask(owner, command)
    await ask(owner, update(command.events[0].id, event="A#b"))
    await ask(owner, delete(command.events[1].id))
    await ask(owner, delete_all())
    assert await ask(owner, command) == first


# -- the rows go later


async def test_purge_deletes_former_histories_piece_by_piece(owner: Owner, dsn: str) -> None:
    await published(owner, publish("q", count=2))
    commands = [publish(count=5), publish(count=2)]
    await owner.submit(commands, 10)
    await ask(owner, update(commands[0].events[0].id, event="A#b"))
    await ask(owner, delete_all())
    await published(owner, publish())
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p"))
    async with database_of(dsn) as database:
        former = FormerHistories(database)
        assert not await former.purge(timedelta(minutes=1), 4)
        assert await rows(dsn) == (10, 1, 2)
        assert await former.purge(timedelta(0), 4)
        assert await rows(dsn) == (6, 0, 2)
        while await former.purge(timedelta(0), 4):
            pass
    assert await rows(dsn) == (2, 0, 0)
    assert (await published(owner, publish("q")))[0]["seq"] == 3


async def test_housekeeping_keeps_former_histories_for_five_minutes(owner: Owner, dsn: str) -> None:
    await published(owner, publish())
    await ask(owner, delete_all())
    async with database_of(dsn) as database:
        housekeeping = Housekeeping(SETTINGS, database, SystemClock())
        await fetch(dsn, "UPDATE former_histories SET left_time = now() - interval '299 s'")
        await housekeeping.run_once()
        assert await rows(dsn) == (1, 0, 1)
        await fetch(dsn, "UPDATE former_histories SET left_time = now() - interval '301 s'")
        await housekeeping.run_once()
        assert await rows(dsn) == (0, 0, 0)


async def test_dropped_import_is_purged(owner: Owner, dsn: str) -> None:
    await stage_import(dsn, "i", 3)
    async with database_of(dsn) as database:
        await Imports(database).drop("i")
        await Imports(database).drop("i")
        assert await rows(dsn) == (3, 0, 1)
        while await FormerHistories(database).purge(timedelta(0), 10):
            pass
    assert await rows(dsn) == (0, 0, 0)


# -- databases of earlier versions


async def test_histories_of_earlier_versions_go_on(postgres_dsn: str, tmp_path: Path) -> None:
    for file in DIRECTORY.glob("*.sql"):
        if file.name < "0010":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    await migrate(postgres_dsn, tmp_path)
    await create_programs(postgres_dsn, ["p", "q"])
    await fetch(
        postgres_dsn,
        "INSERT INTO events (program_uid, seq, id, created_time, timestamp, timecode, event, metadata)"
        " SELECT uid, n, gen_random_uuid(), now(), 1, 1, 'A#b', '{}' FROM programs, generate_series(1, 3) n",
    )
    await fetch(postgres_dsn, "UPDATE program_heads SET seq = 3, last_change = now()")
    await migrate(postgres_dsn)
    await create_programs(postgres_dsn, ["r"])
    owner = await Owner.start(SETTINGS, postgres_dsn, 0)
    try:
        assert [(await published(owner, publish(name)))[0]["seq"] for name in "pqr"] == [4, 4, 1]
        assert await ask(owner, delete_all()) == 4
        assert [row["seq"] for row in await fetch(postgres_dsn, EVENTS)] == [1, 2, 3, 4, 1]
    finally:
        await owner.close()
