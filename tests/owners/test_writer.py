"""What an owner does when the database, another owner or one of its commands is in trouble."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import orjson
import pytest
from msgspec.structs import replace

from broker.errors import BrokerError, InternalError, NotFound, OutcomeUnknown, Unavailable
from broker.owners import owner as owner_module
from broker.owners.commands import Accepted, Command, CommandReply, Kept
from broker.owners.owner import Owner
from broker.owners.placement import owner_of
from broker.owners.protocol import Cursor, HistoryLost, program_topic
from broker.owners.topics import Topics
from broker.owners.writer import WRITER_LIMITS
from broker.settings import Settings
from broker.storage.fence import Fenced
from broker.storage.journal import Journal
from tests.owners.conftest import SETTINGS
from tests.owners.support import (
    Gateway,
    ask,
    create_programs,
    delete,
    delete_all,
    fetch,
    holding,
    publish,
    published,
    row,
    update,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

KILL_OTHERS = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
"""
# At COMMIT, a transaction that inserted events waits for the advisory lock 1.
PAUSE_COMMITS = """
CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pause()
"""
AGE_THE_THIRD = "UPDATE events SET created_time = created_time - interval '24:00:01' WHERE seq = 3"
SEQS = "SELECT e.seq FROM events e JOIN program_heads h USING (history) ORDER BY h.program_uid, e.seq"
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@asynccontextmanager
async def commits_paused(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Inside the block every commit of events waits."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(PAUSE_COMMITS)
        await connection.execute("SELECT pg_advisory_lock(1)")
        yield connection
    finally:
        await connection.close()


def program_locked(dsn: str) -> AbstractAsyncContextManager[None]:
    """Inside the block no group with the program `p` gets further than its first statement."""
    return holding(dsn, "SELECT FROM program_heads FOR UPDATE")


async def until_waiting(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(10):
        while not await connection.fetchval(WAITING):  # noqa: ASYNC110 - the event is in the server
            await asyncio.sleep(0.005)


def start(owner: Owner, *commands: Command, wait_s: float = 10.0) -> "asyncio.Task[list[CommandReply]]":
    return asyncio.create_task(owner.submit(commands, wait_s))


async def seqs(dsn: str) -> list[int]:
    """Of all programs' present events."""
    return [r["seq"] for r in await fetch(dsn, SEQS)]


# -- groups


async def test_what_arrives_during_a_commit_goes_into_one_group(owner: Owner, dsn: str) -> None:
    async with program_locked(dsn):
        tasks = [start(owner, publish())]
        await asyncio.sleep(0.05)
        tasks += [start(owner, publish()) for _ in range(50)]
        await asyncio.sleep(0)
    replies = [reply for task in tasks for reply in await task]
    assert [reply for reply in replies if not isinstance(reply, Accepted)] == []
    (transactions,) = await fetch(dsn, "SELECT count(DISTINCT xmin::text) AS n FROM events")
    assert transactions["n"] == 2


async def test_reset_amid_a_group_takes_effect_in_its_place(owner: Owner, dsn: str) -> None:
    commands: list[Command] = [
        publish(count=2),
        publish("q"),
        delete_all(),
        publish(),
        publish("q"),
        delete_all(),
        publish(),
    ]
    replies = await owner.submit(commands, 10)
    assert replies[2] == 2
    assert replies[5] == 1
    assert await seqs(dsn) == [1, 1, 2]


async def test_command_that_cannot_be_written_fails_alone(owner: Owner, dsn: str) -> None:
    bad = replace(publish(), events=(row()._replace(id="no uuid"),))
    replies = await owner.submit([publish(), bad, publish()], 10)
    assert [type(reply) for reply in replies] == [Accepted, InternalError, Accepted]
    assert await seqs(dsn) == [1, 2]


async def test_full_queue_refuses_at_once(dsn: str) -> None:
    limits = dataclasses.replace(WRITER_LIMITS, queue_items=2)
    owner = await Owner.start(SETTINGS, dsn, 0, writer_limits=limits)
    try:
        async with program_locked(dsn):
            waiting = [start(owner, publish())]
            await asyncio.sleep(0.05)
            waiting += [start(owner, publish()), start(owner, publish())]
            await asyncio.sleep(0)
            (reply,) = await owner.submit([publish()], 10)
            assert isinstance(reply, Unavailable)
            assert reply.retry_after_s == 1
        replies = [(await task)[0] for task in waiting]
        assert [reply for reply in replies if not isinstance(reply, Accepted)] == []
    finally:
        await owner.close()


async def test_command_whose_time_is_over_is_not_written(owner: Owner, dsn: str) -> None:
    async with program_locked(dsn):
        first = start(owner, publish())
        await asyncio.sleep(0.05)
        late = start(owner, publish(), wait_s=0.01)
        await asyncio.sleep(0.05)
    assert isinstance((await first)[0], Accepted)
    assert type((await late)[0]) is Unavailable
    assert await seqs(dsn) == [1]


async def test_command_that_still_waits_is_not_queued_twice(owner: Owner, dsn: str) -> None:
    command = publish()
    async with program_locked(dsn):
        tasks = [start(owner, publish()), start(owner, command), start(owner, command)]
        await asyncio.sleep(0.05)
    replies = [(await task)[0] for task in tasks]
    assert replies[1] == replies[2]
    assert await seqs(dsn) == [1, 2]


# -- groups written from what the owner knows


async def test_known_head_that_is_wrong_is_read_again(owner: Owner, dsn: str) -> None:
    await owner.submit([publish(), publish("q")], 10)
    await fetch(dsn, "UPDATE program_heads h SET seq = 7 FROM programs WHERE uid = program_uid AND id = 'q'")
    for told in ([2, 8], [3, 9]):
        replies = await owner.submit([publish(), publish("q")], 10)
        assert [orjson.loads(reply.events[0])["seq"] for reply in replies] == told  # type: ignore[union-attr]
    assert await seqs(dsn) == [1, 2, 3, 1, 8, 9]


async def test_key_that_is_there_already_undoes_only_its_own_publish(owner: Owner, dsn: str) -> None:
    first = await ask(owner, publish(key="k"))
    replies = await owner.submit([publish(), publish(key="k"), publish(key="new")], 10)
    assert isinstance(first, Accepted)
    assert replies[1] == Kept(201, first.events[0])
    assert await seqs(dsn) == [1, 2, 3]


async def test_program_made_again_is_not_taken_for_the_former_one(owner: Owner, dsn: str) -> None:
    epoch = (await published(owner, publish()))[0]["epoch"]
    await fetch(dsn, "DELETE FROM programs WHERE id = 'p'")
    with pytest.raises(NotFound):
        await ask(owner, publish())
    await create_programs(dsn, ["p"])
    (event,) = await published(owner, publish())
    assert event["seq"] == 1
    assert event["epoch"] != epoch


# -- fencing


async def test_draining_owner_stores_what_waits_and_takes_no_more(owner: Owner, dsn: str) -> None:
    async with program_locked(dsn):
        waiting = [start(owner, publish()) for _ in range(2)]
        await asyncio.sleep(0)
        draining = asyncio.create_task(owner.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await ask(owner, publish())
        assert not draining.done()
    await draining
    replies = [reply for task in waiting for reply in await task]
    assert [reply for reply in replies if not isinstance(reply, Accepted)] == []


@pytest.mark.parametrize("knows_the_head", [False, True])
async def test_older_owner_cannot_write(owner: Owner, dsn: str, knows_the_head: bool) -> None:
    before = await owner.submit([publish()], 10) if knows_the_head else []
    newer = await Owner.start(SETTINGS, dsn, 0)
    try:
        (reply,) = await owner.submit([publish()], 10)
        assert isinstance(reply, Unavailable)
        await asyncio.wait_for(owner.ended(), 5)
        assert len(await seqs(dsn)) == len(before)
        assert (await published(newer, publish()))[0]["seq"] == len(before) + 1
    finally:
        await newer.close()


async def test_idle_owner_notices_its_successor(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.01)
    older = await Owner.start(SETTINGS, dsn, 0)
    newer = await Owner.start(SETTINGS, dsn, 0)
    await asyncio.wait_for(older.ended(), 5)
    await older.close()
    await newer.close()


async def test_new_owner_waits_for_the_commit_of_the_old_one(owner: Owner, dsn: str) -> None:
    async with commits_paused(dsn) as pause:
        writing = start(owner, publish())
        await until_waiting(pause)
        starting = asyncio.create_task(Owner.start(SETTINGS, dsn, 0))
        await asyncio.sleep(0.1)
        assert not starting.done()
    newer = await starting
    try:
        assert isinstance((await writing)[0], Accepted)
        assert (await published(newer, publish()))[0]["seq"] == 2
    finally:
        await newer.close()


async def test_new_owner_does_not_wait_for_one_that_hangs(owner: Owner, dsn: str) -> None:
    async with commits_paused(dsn) as pause:
        hanging = start(owner, publish())
        await until_waiting(pause)
        async with asyncio.timeout(4):  # SETTINGS give a statement five seconds
            newer = await Owner.start(SETTINGS, dsn, 0)
        try:
            assert await pause.fetchval(WAITING) == 0
            assert isinstance((await hanging)[0], Unavailable)
            assert await seqs(dsn) == []
        finally:
            await newer.close()


async def test_renewal_whose_answer_was_lost_can_be_repeated(owner: Owner) -> None:
    journal, generation = owner._journal, owner._writer.generation
    target = journal.next_generation(generation)
    assert await journal.renew(generation, target) == target
    assert await journal.renew(generation, target) == target
    await journal.acquire()
    with pytest.raises(Fenced):
        await journal.renew(generation, target)


# -- commits in doubt


async def test_commit_that_was_cut_off_is_made_once(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    async with commits_paused(dsn) as pause:
        writing = start(owner, publish(), publish(key="k"))
        await until_waiting(pause)
        await pause.execute(KILL_OTHERS)
    replies = await writing
    assert [reply for reply in replies if not isinstance(reply, Accepted)] == []
    await gateway.until(1, 2)
    assert gateway.seqs(1) == await seqs(dsn) == [1, 2]


async def test_commit_whose_answer_was_lost_is_found(
    owner: Owner, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    (event,) = await published(owner, publish())
    lose_next_answer(monkeypatch)
    first = publish(count=2)
    commands: list[Command] = [
        first, publish(key="k"), update(event["id"], event="A#b"), update(first.events[0].id, event="A#c"),
        delete(first.events[1].id), publish("q"),
    ]  # fmt: skip
    replies = await owner.submit(commands, 10)
    assert [reply for reply in replies if isinstance(reply, BrokerError)] == []
    entries = await gateway.until(1, 7)
    assert gateway.seqs(1) == [1, 2, 3, 4, 5, 6, 7]
    # Read from the database, which has nothing of the deleted one but its deletion.
    kept, deleted = replies[0].events  # type: ignore[union-attr]
    assert entries[1].params == kept
    assert orjson.loads(kept)["event"] == orjson.loads(deleted)["event"] == "Score#update"
    assert [(e.method, e.seq) for e in (entries[2], entries[6])] == [("eventDeleted", 3), ("eventDeleted", 7)]
    assert entries == await owner.history(program_topic("demo", "p"), event["epoch"], 0, 10)


async def test_reset_whose_answer_was_lost_is_found(
    owner: Owner, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    await published(owner, publish(count=3))
    lose_next_answer(monkeypatch)
    assert await ask(owner, delete_all()) == 3
    await published(owner, publish())
    entries = await gateway.until(1, 5)
    assert [(entry.method, entry.seq) for entry in entries[3:]] == [("eventsDeleted", 0), ("event", 1)]


async def test_lost_answer_with_nobody_left_to_wait_reaches_the_followers(
    owner: Owner, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    async with commits_paused(dsn) as pause:
        lose_next_answer(monkeypatch)
        writing = start(owner, publish(), wait_s=0.1)
        await until_waiting(pause)
        await asyncio.sleep(0.1)
    assert isinstance((await writing)[0], OutcomeUnknown)
    await gateway.until(1, 1)
    assert gateway.seqs(1) == await seqs(dsn) == [1]


async def test_owner_that_compares_itself_with_the_database_is_not_certain(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in its memory may be from before a failover until the comparison is over."""
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    topics, compare = [program_topic("demo", "p")], Topics.resync
    seen: list[Any] = []

    async def look_and_compare(self: Topics, *arguments: Any) -> Any:
        seen.append(owner.heads(topics))
        return await compare(self, *arguments)

    monkeypatch.setattr(Topics, "resync", look_and_compare)
    assert owner.heads(topics) is not None
    owner._writer.doubt()
    assert owner.heads(topics) is None
    async with asyncio.timeout(10):
        while owner.heads(topics) is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
    assert seen == [None]


async def test_owner_that_ends_during_a_commit_does_not_know_whether_it_was_made(dsn: str) -> None:
    owner = await Owner.start(SETTINGS, dsn, 0)
    async with commits_paused(dsn) as pause:
        writing, waiting = start(owner, publish()), None
        await until_waiting(pause)
        waiting = start(owner, publish())
        await asyncio.sleep(0)
        closing = asyncio.create_task(owner.close())
        await asyncio.sleep(0.05)
    await closing
    assert type((await writing)[0]) is OutcomeUnknown
    assert type((await waiting)[0]) is Unavailable


def lose_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction commits, and its owner hears that the connection died."""
    left = [1]

    def losing(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def lose(*arguments: Any) -> Any:
            result = await write(*arguments)
            if left:
                left.clear()
                raise OutcomeUnknown("the connection died")
            return result

        return lose

    monkeypatch.setattr(Journal, "append", losing(Journal.append))
    monkeypatch.setattr(Journal, "write", losing(Journal.write))


async def test_connections_cut_all_the_time_neither_lose_nor_double(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")

    async def produce() -> list[bytes]:
        told = []
        for _ in range(40):
            reply = await ask(owner, publish())
            assert isinstance(reply, Accepted)
            told += reply.events
        return told

    async def cut() -> None:
        connection = await asyncpg.connect(dsn)
        for _ in range(8):
            await connection.execute(KILL_OTHERS)
            await asyncio.sleep(0.02)
        await connection.close()

    cutting = asyncio.create_task(cut())
    told = await asyncio.gather(*(produce() for _ in range(8)))
    await cutting
    entries = await gateway.until(1, 320)
    assert gateway.seqs(1) == list(range(1, 321))
    assert sorted(entry.params for entry in entries) == sorted(event for events in told for event in events)


async def test_database_that_is_away_and_comes_back(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    await published(owner, publish())
    parts = urlsplit(dsn)
    name = parts.path.removeprefix("/")
    admin = await asyncpg.connect(urlunsplit(parts._replace(path="/postgres")))
    try:
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", name
        )
        (reply,) = await owner.submit([publish()], 0.2)
        assert type(reply) is Unavailable
        await gateway.until(1, 1)  # what is committed is told all the same
        waiting = start(owner, publish())
        await asyncio.sleep(0.1)
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert isinstance((await waiting)[0], Accepted)
    finally:
        await admin.close()
    await gateway.until(1, 2)
    assert gateway.seqs(1) == await seqs(dsn) == [1, 2]


# -- two owners of different slots


async def test_one_key_at_two_owners_counts_once(dsn: str) -> None:
    settings = dataclasses.replace(SETTINGS, owners=2)
    owner, other = [await Owner.start(settings, dsn, index) for index in range(2)]
    names = [f"of-{number}" for number in range(20)]
    await create_programs(dsn, names)
    first, second = (
        next(name for name in names if owner_of(program_topic("demo", name), 2) == index)
        for index in range(2)
    )
    try:
        for number in range(5):
            key = f"k{number}"
            replies = await asyncio.gather(
                owner.submit([publish(first, key=key, body="p")], 10),
                other.submit([publish(second, key=key, body="q")], 10),
            )
            assert sorted(type(reply[0]).__name__ for reply in replies) == ["Accepted", "Conflict"]
    finally:
        await owner.close()
        await other.close()
    assert len(await fetch(dsn, "SELECT FROM events")) == 5


# -- limits of recovery


async def test_history_over_the_limit_is_lost(dsn: str) -> None:
    owner = await Owner.start(Settings(history_events=3), dsn, 0)
    try:
        epoch = (await published(owner, publish(count=5)))[0]["epoch"]
        topic = program_topic("demo", "p")
        assert isinstance(await owner.history(topic, epoch, 0, 10), HistoryLost)
        # One more than recovery tells, which is compared with what was seen.
        assert len(await owner.history(topic, epoch, 1, 10)) == 4  # type: ignore[arg-type]
        assert len(await owner.history(topic, epoch, 2, 10)) == 3  # type: ignore[arg-type]
        await fetch(dsn, AGE_THE_THIRD)
        assert isinstance(await owner.history(topic, epoch, 2, 10), HistoryLost)
        assert len(await owner.history(topic, epoch, 3, 10)) == 2  # type: ignore[arg-type]
    finally:
        await owner.close()


async def test_purge_leaves_what_recovery_needs(owner: Owner, dsn: str) -> None:
    events = await published(owner, publish(count=3))
    await ask(owner, update(events[0]["id"], event="A#b"))
    await ask(owner, delete(events[1]["id"]))
    await ask(owner, publish(key="k"))
    history = owner._history
    assert await history.purge(0, 100) == 0
    newest = (await fetch(dsn, "SELECT max(created_time) + interval '1 s' AS t FROM events"))[0]["t"]
    ms = int(newest.timestamp() * 1000)
    await fetch(dsn, "UPDATE idempotency_keys SET created_time = now() - interval '24 hours 1 second'")
    assert await history.purge(0, 100) == 3
    assert await history.purge(ms, 100) == 3
    assert await seqs(dsn) == [1, 3, 6]
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p", Cursor(events[0]["epoch"], 0))
    entries = await gateway.until(1, 1)
    assert [(entry.method, entry.seq) for entry in entries] == [("historyReplaced", 6)]
