import asyncio

import orjson
import pytest
from msgspec.structs import replace

from broker.clock import SystemClock
from broker.domain.programs import Access, Program
from broker.errors import Conflict, NotFound, Unavailable
from broker.owners.commands import (
    Accepted,
    AdoptImport,
    Command,
    DeleteProgram,
    Imported,
    Kept,
    UpdateProgram,
)
from broker.owners.encoding import batch_json
from broker.owners.log import LogLimits
from broker.owners.owner import Owner
from broker.owners.protocol import Cursor, EntryKind, HistoryLost, program_topic
from broker.owners.sessions import Follow, PollReply
from broker.owners.topics import Hold, Topics
from broker.storage.database import Database
from broker.storage.history import History
from tests.owners.conftest import SETTINGS
from tests.owners.support import (
    Gateway,
    ask,
    create_programs,
    delete,
    delete_all,
    fetch,
    ids,
    publish,
    published,
    row,
    stage_import,
    update,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FIELDS = ["seq", "epoch", "id", "programId", "createdTime", "timestamp", "timecode", "event", "metadata"]
TOPIC = program_topic("demo", "p")


async def test_first_event_has_seq_one_and_defaults(owner: Owner) -> None:
    (event,) = await published(owner, publish())
    assert list(event) == FIELDS
    assert event["seq"] == 1
    assert event["timestamp"] == event["timecode"]
    assert event["programId"] == "p"
    assert event["metadata"] == {}


async def test_timecode_defaults_to_timestamp(owner: Owner) -> None:
    command = replace(publish(), events=(row(timestamp=5), row(timestamp=5, timecode=9)))
    first, second = await published(owner, command)
    assert (first["timestamp"], first["timecode"]) == (5, 5)
    assert (second["timestamp"], second["timecode"]) == (5, 9)


async def test_answer_is_what_is_stored(owner: Owner, dsn: str) -> None:
    (event,) = await published(owner, replace(publish(), events=(row(metadata={"home": 1, "ä": "\u2028"}),)))
    (stored,) = await fetch(dsn, "SELECT *, id::text AS text_id, metadata::text AS text FROM events")
    assert stored["text_id"] == event["id"]
    assert orjson.loads(stored["text"]) == event["metadata"]
    assert f"{stored['created_time']:%Y-%m-%dT%H:%M:%S}" == event["createdTime"][:19]
    (head,) = await fetch(
        dsn,
        "SELECT h.seq, h.last_change FROM program_heads h JOIN programs ON uid = program_uid WHERE id = 'p'",
    )
    assert head["seq"] == 1
    assert head["last_change"] == stored["created_time"]


async def test_batches_are_contiguous_and_parallel_publishers_ordered(owner: Owner) -> None:
    batches = await asyncio.gather(*(published(owner, publish(count=3)) for _ in range(50)))
    firsts = [batch[0]["seq"] for batch in batches]
    assert firsts == list(range(1, 150, 3))
    assert [
        (batch, f)
        for batch, f in zip(batches, firsts, strict=True)
        if [event["seq"] for event in batch] != [f, f + 1, f + 2]
    ] == []


async def test_unknown_program_fails_nobody_else(owner: Owner) -> None:
    replies = await owner.submit([publish("none"), publish("p"), delete(ids.uuid7()), publish("q")], 5)
    assert isinstance(replies[0], NotFound)
    assert replies[0].message == "there is no program none"
    assert isinstance(replies[2], NotFound)
    assert isinstance(replies[1], Accepted)
    assert isinstance(replies[3], Accepted)


async def test_event_id_that_is_no_uuid_is_not_found(owner: Owner) -> None:
    with pytest.raises(NotFound, match="there is no event nonsense in program p"):
        await ask(owner, delete("nonsense"))


async def test_update_answers_and_tells_the_changed_event(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    (event,) = await published(owner, publish())
    reply = await ask(owner, update(event["id"], event="Score#final", metadata={"home": 2}))
    changed = event | {"event": "Score#final", "metadata": {"home": 2}, "seq": 2}
    assert orjson.loads(reply) == changed  # type: ignore[arg-type]
    entries = await gateway.until(1, 2)
    assert [entry.method for entry in entries] == ["event", "eventUpdated"]
    assert entries[1].params == reply


async def test_absent_timecode_stays_and_null_follows_timestamp(owner: Owner) -> None:
    (event,) = await published(owner, publish())
    kept = orjson.loads(await ask(owner, update(event["id"], timestamp=7)))  # type: ignore[arg-type]
    assert (kept["timestamp"], kept["timecode"]) == (7, event["timecode"])
    cleared = orjson.loads(await ask(owner, update(event["id"], timecode=None, metadata=None)))  # type: ignore[arg-type]
    assert (cleared["timecode"], cleared["metadata"]) == (7, {})


async def test_deleted_event_is_gone_and_told(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    (event,) = await published(owner, publish())
    assert await ask(owner, delete(event["id"])) is None
    with pytest.raises(NotFound):
        await ask(owner, delete(event["id"]))
    entries = await gateway.until(1, 2)
    params = {"seq": 2, "epoch": event["epoch"], "programId": "p", "id": event["id"]}
    assert orjson.loads(entries[1].params) == params
    assert (await published(owner, publish()))[0]["seq"] == 3


async def test_all_of_one_event_in_one_group(owner: Owner) -> None:
    command = publish()
    event_id = command.events[0].id
    steps: list[Command] = [
        command,
        update(event_id, event="A#b"),
        update(event_id, event="A#c"),
        publish(),
    ]
    replies = await owner.submit(steps, 4)
    assert orjson.loads(replies[2])["event"] == "A#c"  # type: ignore[arg-type]
    assert await told(owner, _epoch(replies[0])) == [
        (1, "event", "Score#update"),
        (2, "eventUpdated", "A#b"),
        (3, "eventUpdated", "A#c"),
        (4, "event", "Score#update"),
    ]


@pytest.mark.parametrize("at_once", [True, False])
async def test_history_has_nothing_of_a_deleted_event(owner: Owner, at_once: bool) -> None:
    command = publish()
    event_id = command.events[0].id
    steps = [command, update(event_id, event="A#b"), update(event_id, event="A#c"), delete(event_id)]
    for group in [[*steps, publish()]] if at_once else [[step] for step in [*steps, publish()]]:
        replies = await owner.submit(group, 5)
    assert await told(owner, _epoch(replies[-1])) == [
        (1, "eventDeleted", None),
        (2, "eventDeleted", None),
        (3, "eventDeleted", None),
        (4, "eventDeleted", None),
        (5, "event", "Score#update"),
    ]


async def told(owner: Owner, epoch: str) -> list[tuple[int, str, str | None]]:
    """Seq, method and name of each push in the history, and nothing besides of a deletion."""
    entries = await owner.history(TOPIC, epoch, 0, 10)
    assert isinstance(entries, list)
    found = []
    for entry in entries:
        params = orjson.loads(entry.params)
        assert params["seq"] == entry.seq
        assert (params.keys() == {"seq", "epoch", "programId", "id"}) == (entry.method == "eventDeleted")
        found.append((entry.seq, entry.method, params.get("event")))
    return found


async def test_history_repeats_word_for_word_what_was_told(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    head = await gateway.follow(1, "p")
    events = await published(owner, publish(count=4))
    await ask(owner, update(events[1]["id"], metadata={"x": 1}))
    await ask(owner, delete(events[2]["id"]))
    await ask(owner, update(events[1]["id"], metadata={"x": 2}))
    entries = await gateway.until(1, 7)
    # Of the deleted one only that it was deleted.
    params = orjson.dumps(orjson.loads(entries[5].params) | {"seq": 3})
    entries[2] = entries[5]._replace(seq=3, params=params)
    assert await owner.history(TOPIC, head.epoch, 0, 100) == entries
    assert await owner.history(TOPIC, head.epoch, 2, 3) == entries[2:5]
    assert await owner.history(TOPIC, head.epoch, 7, 3) == []


async def test_history_of_another_epoch_is_lost(owner: Owner) -> None:
    await published(owner, publish())
    assert isinstance(await owner.history(TOPIC, "gone", 0, 10), HistoryLost)
    assert isinstance(await owner.history(program_topic("demo", "none"), "gone", 0, 10), NotFound)


async def test_delete_all_begins_a_new_epoch(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    events = await published(owner, publish(count=3))
    await ask(owner, delete(events[0]["id"]))
    assert await ask(owner, delete_all()) == 2
    (event,) = await published(owner, publish())
    assert event["seq"] == 1
    assert event["epoch"] != events[0]["epoch"]
    entries = await gateway.until(1, 6)
    assert entries[4].kind == EntryKind.RESET
    assert orjson.loads(entries[4].params) == {
        "programId": "p",
        "deleted": 2,
        "epoch": event["epoch"],
        "seq": 0,
    }
    assert gateway.seqs(1) == [1, 2, 3, 4, 0, 1]


async def test_import_replaces_the_history(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    await published(owner, publish(count=2))
    await stage_import(dsn, "i", 5)
    reply = await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "i", 5))
    assert isinstance(reply, Imported)
    assert (reply.deleted, reply.imported) == (2, 5)
    (event,) = await published(owner, publish())
    assert (event["seq"], event["epoch"]) == (6, reply.epoch)
    entries = await gateway.until(1, 4)
    assert orjson.loads(entries[2].params) == {"programId": "p", "epoch": reply.epoch, "seq": 5}
    present = "SELECT e.seq FROM events e JOIN program_heads h USING (history) ORDER BY e.seq"
    assert [r["seq"] for r in await fetch(dsn, present)] == [1, 2, 3, 4, 5, 6]
    assert not await fetch(dsn, "SELECT FROM staged_imports")


async def test_import_whose_rows_are_lost_is_refused_whole(owner: Owner, dsn: str) -> None:
    await published(owner, publish(count=2))
    await stage_import(dsn, "i", 4)
    (reply,) = await owner.submit([AdoptImport(ids.uuid7(), "demo", "p", "i", 5)], 5)
    assert type(reply).__name__ == "Unavailable"
    assert len(await fetch(dsn, "SELECT FROM events JOIN program_heads USING (history)")) == 2


async def test_program_update_tells_attributes_and_the_channel(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    fields = {"name": "Final", "access": Access.PRIVATE, "project_id": "sport", "metadata": {"a": 1}}
    changed = await ask(owner, UpdateProgram(ids.uuid7(), "demo", "p", fields))
    assert isinstance(changed, Program)
    assert {name: getattr(changed, name) for name in fields} == fields
    await gateway.poll()
    (entry,) = gateway.entries[1]
    assert entry.kind == EntryKind.ATTRIBUTES
    told = {"public": False, "projectId": "sport", "freeContexts": False}
    assert orjson.loads(entry.params) == told
    (stored,) = await fetch(
        dsn, "SELECT name, access, project_id, metadata::text FROM programs WHERE id = 'p'"
    )
    assert tuple(stored) == ("Final", "private", "sport", '{"a":1}')
    (change,) = await fetch(dsn, "SELECT program FROM program_changes WHERE change = 'updated'")
    assert orjson.loads(change["program"])["name"] == "Final"


async def test_deleted_program_ends_its_topic(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    await published(owner, publish())
    assert await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p")) is None
    entries = await gateway.until(1, 2)
    assert entries[1].kind == EntryKind.GONE
    assert entries[1].method == "programDeleted"
    assert orjson.loads(entries[1].params) == {"programId": "p"}
    with pytest.raises(NotFound):
        await ask(owner, publish())
    with pytest.raises(NotFound):
        await gateway.follow(2, "p")
    await create_programs(dsn, ["p"])
    assert (await published(owner, publish()))[0]["seq"] == 1


# -- idempotency keys


async def test_same_key_answers_the_first_result(owner: Owner, dsn: str) -> None:
    first = await ask(owner, publish(count=2, key="k"))
    again = await ask(owner, publish(count=2, key="k"))
    assert isinstance(first, Accepted)
    assert again == Kept(201, batch_json(first.events))
    assert len(await fetch(dsn, "SELECT FROM events")) == 2


async def test_same_key_twice_in_one_group(owner: Owner, dsn: str) -> None:
    replies = await owner.submit(
        [publish(), publish(key="k"), publish(key="k"), publish(key="k", body="x")], 5
    )
    assert replies[2] == Kept(201, replies[1].events[0])  # type: ignore[union-attr]
    assert isinstance(replies[3], Conflict)
    assert len(await fetch(dsn, "SELECT FROM events")) == 2


async def test_key_is_the_callers_own_and_ends_after_a_day(owner: Owner, dsn: str) -> None:
    await ask(owner, publish(key="k"))
    other = publish(key="k")
    assert other.key is not None
    reply = await ask(owner, replace(other, key=type(other.key)("bob", "k", b"")))
    assert isinstance(reply, Accepted)
    await fetch(dsn, "UPDATE idempotency_keys SET created_time = now() - interval '24 hours 1 second'")
    reply = await ask(owner, publish(key="k", body="other"))
    assert isinstance(reply, Accepted)


async def test_key_survives_the_owner(owner: Owner, dsn: str) -> None:
    first = await ask(owner, publish(key="k"))
    second = await Owner.start(SETTINGS, dsn, 0)
    try:
        again = await ask(second, publish(key="k"))
        assert again == Kept(201, first.events[0])  # type: ignore[union-attr]
    finally:
        await second.close()


async def test_command_that_comes_again_takes_effect_once(owner: Owner, dsn: str) -> None:
    command = publish(count=2)
    first = await ask(owner, command)
    assert await ask(owner, command) == first
    event_id = command.events[0].id
    change = update(event_id, event="A#b")
    assert await ask(owner, change) == await ask(owner, change)
    again = await ask(owner, command)  # what was told then, not what the event has become
    assert again == first
    removal = delete(event_id)
    await ask(owner, removal)
    assert await ask(owner, removal) is None
    erasure = delete_all()
    assert await ask(owner, erasure) == 1
    assert await ask(owner, erasure) == 1
    deletion = DeleteProgram(ids.uuid7(), "demo", "p")
    await ask(owner, deletion)
    assert await ask(owner, deletion) is None
    assert len(await fetch(dsn, "SELECT FROM program_changes WHERE change = 'deleted'")) == 1


# -- following


async def test_follower_starts_at_the_head(owner: Owner) -> None:
    await published(owner, publish(count=3))
    gateway = Gateway(owner)
    await gateway.open()
    head = await gateway.follow(1, "p")
    assert head.seq == 3
    assert head.attributes.public
    await published(owner, publish(count=2))
    await gateway.until(1, 2)
    assert gateway.seqs(1) == [4, 5]


async def test_follower_behind_reads_on_without_gap_or_double(owner: Owner) -> None:
    epoch = (await published(owner, publish(count=5)))[0]["epoch"]
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p", Cursor(epoch, 2))
    await asyncio.gather(*(published(owner, publish()) for _ in range(20)), gateway.until(1, 23))
    assert gateway.seqs(1) == list(range(3, 26))


async def test_lost_answer_is_repeated(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    await published(owner, publish())
    await owner.poll("gateway", 0)  # the reply never arrives
    await published(owner, publish())
    await gateway.until(1, 2)
    assert gateway.seqs(1) == [1, 2]


async def test_second_poll_ends_the_first(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    first = asyncio.ensure_future(owner.poll("gateway", 0))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(owner.poll("gateway", 0))
    assert (await first).batches == []  # type: ignore[union-attr]
    await published(owner, publish())
    assert len((await second).batches) == 1  # type: ignore[union-attr]


async def test_unknown_session_is_told_so(owner: Owner) -> None:
    assert await owner.poll("nobody", 0) is None
    assert await owner.follow("nobody", []) is None


async def test_idle_poll_ends_in_time(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    assert not await gateway.poll(0.01)


async def test_unfollowed_topic_is_silent(owner: Owner) -> None:
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p")
    owner.unfollow("gateway", [1])
    await published(owner, publish())
    assert not await gateway.poll(0.0)


async def test_epoch_that_changed_meanwhile_is_told_as_a_reset(owner: Owner, dsn: str) -> None:
    (event,) = await published(owner, publish())
    await ask(owner, delete_all())
    await published(owner, publish(count=2))
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p", Cursor(event["epoch"], 1))
    entries = await gateway.until(1, 3)
    assert [(e.kind, e.seq) for e in entries] == [(2, 0), (0, 1), (0, 2)]
    assert orjson.loads(entries[0].params)["deleted"] == 1
    await stage_import(dsn, "i", 3)
    await ask(owner, AdoptImport(ids.uuid7(), "demo", "p", "i", 3))
    await published(owner, publish())
    await gateway.follow(2, "p", Cursor(event["epoch"], 1))
    entries = await gateway.until(2, 2)
    assert [(e.kind, e.seq, e.method) for e in entries] == [(2, 3, "historyReplaced"), (0, 4, "event")]


async def test_follower_of_lost_pushes_is_told_a_reset_of_the_epoch_and_goes_on(
    owner: Owner, dsn: str
) -> None:
    """Of an epoch whose rows are gone, recovery goes on after them."""
    database = await Database.open(dsn, size=1, timeout_s=5)
    order, key = asyncio.Lock(), ("demo", "p")
    try:
        topics = Topics(History(database), order, SystemClock(), LogLimits(), 30.0)
        with Hold() as hold:
            topic = (await topics.load([key], hold))[key]
        (first, *_) = await published(owner, publish(count=3))
        await fetch(dsn, "DELETE FROM events WHERE seq = 2")
        async with order:
            await topics.resync([key])
        (fourth,) = await published(owner, publish())
        async with order:
            await topics.resync([key])
    finally:
        await database.close()
    steps = topic.log.since(0, 10)
    assert [(step.entry.kind, step.epoch, step.seq) for step in steps] == [
        (EntryKind.PUSH, first["epoch"], 1),
        (EntryKind.RESET, first["epoch"], 3),
        (EntryKind.PUSH, first["epoch"], fourth["seq"]),
    ]
    assert orjson.loads(steps[1].entry.params) == {"programId": "p", "epoch": first["epoch"], "seq": 3}


async def test_program_made_again_meanwhile_is_told_as_gone(owner: Owner, dsn: str) -> None:
    (event,) = await published(owner, publish())
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p"))
    await create_programs(dsn, ["p"])
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p", Cursor(event["epoch"], 1))
    (entry,) = await gateway.until(1, 1)
    assert entry.kind == EntryKind.GONE


@pytest.mark.parametrize("end", ["leave", "open"])
async def test_a_session_that_ends_while_it_loads_is_left_in_no_topic(owner: Owner, end: str) -> None:
    order = owner._topics._order
    async with order:
        following = asyncio.create_task(owner.open("s", [Follow(1, TOPIC, None)]))
        while not order._waiters:  # noqa: ASYNC110 - who waits for a lock says so nowhere else
            await asyncio.sleep(0)
        if end == "leave":
            owner.leave("s")
        else:
            await owner.open("s", [])  # the same gateway, which has given the first one up
    (reply,) = await following
    assert isinstance(reply, Unavailable)
    with Hold() as hold:
        topic = (await owner._topics.load([("demo", "p")], hold))["demo", "p"]
        assert topic.waiters == {hold}


async def test_large_backlog_comes_in_bounded_answers(owner: Owner) -> None:
    events = tuple(row(metadata={"x": "y" * 1000}) for _ in range(1000))
    epoch = ""
    for _ in range(9):
        command = replace(
            publish(), events=tuple(e.__class__(ids.uuid7(), None, None, e.event, e.metadata) for e in events)
        )
        epoch = (await published(owner, command))[0]["epoch"]
    gateway = Gateway(owner)
    await gateway.open()
    await gateway.follow(1, "p", Cursor(epoch, 0))
    reply = await owner.poll("gateway", 0)
    assert isinstance(reply, PollReply)
    size = sum(len(entry.params) for entry in reply.batches[0].entries)
    assert 3 << 20 < size <= 4 << 20
    await gateway.until(1, 9000)
    assert gateway.seqs(1) == list(range(1, 9001))


async def test_a_thousand_programs_in_one_owner(owner: Owner, dsn: str) -> None:
    names = [f"n{number}" for number in range(1000)]
    await create_programs(dsn, names)
    gateway = Gateway(owner)
    await gateway.open()
    for number, name in enumerate(names):
        await gateway.follow(number, name)
    for _ in range(3):
        await owner.submit([publish(name) for name in names], 10)
    await gateway.drain()
    assert [number for number in range(1000) if gateway.seqs(number) != [1, 2, 3]] == []


def _epoch(reply: object) -> str:
    assert isinstance(reply, Accepted)
    return str(orjson.loads(reply.events[0])["epoch"])
