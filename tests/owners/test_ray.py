import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from broker.actors import lost_nodes
from broker.actors import pool as pools
from broker.actors.link import SlotLink
from broker.actors.named import get_actor, list_nodes
from broker.actors.pool import SlotPool
from broker.clock import SystemClock
from broker.domain.programs import Access
from broker.errors import BrokerError, NotFound
from broker.ids import IdSource
from broker.owners.actor import OwnerActor
from broker.owners.commands import DeleteEvent, DeleteEvents, DeleteProgram, UpdateEvent, UpdateProgram
from broker.owners.encoding import message_id
from broker.owners.linked_feed import LinkedFeed
from broker.owners.linked_owners import LinkedOwners
from broker.owners.placement import OWNER, owner_of
from broker.owners.protocol import Entry, EntryKind, program_topic
from broker.settings import Settings
from broker.storage.conductor_lease import ConductorLease
from tests.actors.test_lost_nodes import silent_port
from tests.owners.publisher import publish_all, publish_elsewhere
from tests.owners.support import create_programs, fetch, ids, publish_rows, row

# On a machine with a load of 20 Ray alone takes two minutes to start, which count as the first test's.
pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.postgres, pytest.mark.timeout(600)]

SETTINGS = Settings(owners=2, publish_timeout_s=30.0, database_pool=4)
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        root = Path(__file__).parents[2]
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=directory,
            runtime_env={"env_vars": {"PYTHONPATH": f"{root / 'python'}:{root}"}},
        )
        yield
        ray.shutdown()


def open_pool(dsn: str) -> SlotPool:
    return SlotPool(OWNER, OwnerActor, SETTINGS.owners, SETTINGS, dsn, detached=False)


@pytest.fixture
async def pool(cluster: None, dsn: str) -> AsyncIterator[str]:
    owners = open_pool(dsn)
    await owners.start()
    yield dsn
    await owners.stop()


class Listener:
    """A gateway: follows by the feed and keeps what it is told."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.heard = asyncio.Event()
        self.feed = LinkedFeed(SETTINGS, CLOCK, IdSource(CLOCK), self.hear)

    def hear(self, topic: str, entries: Sequence[Entry]) -> None:
        self.entries.setdefault(topic, []).extend(entries)
        self.heard.set()

    async def until(self, topic: str, count: int) -> list[Entry]:
        async with asyncio.timeout(60):
            while len(self.entries.get(topic, ())) < count:
                self.heard.clear()
                await self.heard.wait()
        return self.entries[topic]


async def test_killed_owner_neither_loses_nor_doubles(pool: str) -> None:
    listener, owners = Listener(), LinkedOwners(SETTINGS, CLOCK, ids)
    topic = program_topic("demo", "p")
    owner = get_actor(OWNER, owner_of(topic, 2))
    try:
        assert (await listener.feed.follow(topic)).seq == 0
        remote: Any = ray.remote(num_cpus=0)(publish_elsewhere)
        elsewhere = remote.remote(SETTINGS, "p", 300)
        here = asyncio.create_task(publish_all(owners, "p", 300))
        await listener.until(topic, 100)
        process_id: int = await owner.process_id.remote()
        os.kill(process_id, signal.SIGKILL)
        await listener.until(topic, 300)
        ray.kill(owner, no_restart=False)
        acknowledged = await here + await elsewhere
        entries = await listener.until(topic, 600)
        assert [entry.seq for entry in entries] == list(range(1, 601))
        assert {entry.params for entry in entries} == set(acknowledged)
        assert len(set(acknowledged)) == 600
    finally:
        await listener.feed.close()
        await owners.close()


async def test_exchanged_owner_neither_loses_nor_doubles(cluster: None, dsn: str) -> None:
    pool = open_pool(dsn)
    await pool.start()
    listener, owners = Listener(), LinkedOwners(SETTINGS, CLOCK, ids)
    topic = program_topic("demo", "p")
    try:
        before = await process_ids()
        await listener.feed.follow(topic)
        here = asyncio.create_task(publish_all(owners, "p", 300))
        await listener.until(topic, 100)
        await pool.exchange()
        assert set(before).isdisjoint(await process_ids())
        entries = await listener.until(topic, 300)
        assert [entry.seq for entry in entries] == list(range(1, 301))
        assert {entry.params for entry in entries} == set(await here)
    finally:
        await listener.feed.close()
        await owners.close()
        await pool.stop()


class NotingOwner(OwnerActor):
    """Notes in the data directory that it has been asked to stop."""

    async def stop(self) -> None:
        (self._settings.data_dir / f"stopped-{os.getpid()}").touch()
        await super().stop()


def list_stopped(directory: Path) -> set[int]:
    """The processes of owners that have noted so."""
    return {int(path.name.removeprefix("stopped-")) for path in directory.glob("stopped-*")}


async def test_exchanged_owner_is_asked_to_stop_before_it_ends(
    cluster: None, dsn: str, tmp_path: Path
) -> None:
    """Ray ends an actor with its last handle, and its callers wait for a second until it is gone."""
    settings = replace(SETTINGS, data_dir=tmp_path)
    pool = SlotPool(OWNER, NotingOwner, SETTINGS.owners, settings, dsn, detached=False)
    await pool.start()
    try:
        before = await process_ids()
        await pool.exchange()
        assert list_stopped(tmp_path) == set(before)
    finally:
        await pool.stop()


async def test_exchange_spreads_owners_again_after_one_was_exchanged_alone(cluster: None, dsn: str) -> None:
    pool = open_pool(dsn)
    await pool.start()
    # It hangs, so its number is not free. Had it been seen to answer, it would be killed, and start again.
    os.kill((await process_ids())[0], signal.SIGSTOP)
    watching = asyncio.create_task(pool.watch())
    try:
        async with asyncio.timeout(120):
            while owner_names() != ["owner-0.2", "owner-1.1"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        await process_ids()  # both answer
        watching.cancel()
        await pool.exchange()
        assert owner_names() == ["owner-0.3", "owner-1.3"]  # of one number: on nodes that follow each other
    finally:
        watching.cancel()
        await pool.stop()


async def test_owner_whose_node_is_silent_is_exchanged_without_its_end(
    cluster: None, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is stopped, and the raylet's port is one that answers nothing."""
    monkeypatch.setattr(pools, "_HUNG_S", 1e9)
    monkeypatch.setattr(pools, "_STOP_S", 1e9)
    links: list[SlotLink] = []

    def open_link(kind: str, index: int, calls: Any) -> SlotLink:
        links.append(SlotLink(kind, index, calls))
        return links[-1]

    monkeypatch.setattr(lost_nodes, "SlotLink", open_link)
    pool = SlotPool(OWNER, OwnerActor, SETTINGS.owners, SETTINGS, dsn, detached=True)
    await pool.start()
    before = await process_ids()
    watching = asyncio.create_task(pool.watch())
    try:
        with silent_port(list_nodes()[0].host) as port:
            nodes = [node._replace(port=port) for node in list_nodes()]
            monkeypatch.setattr(lost_nodes, "list_nodes", lambda **_options: nodes)
            async with asyncio.timeout(120):
                # Until the conductor knows the nodes of both.
                while len(links) < 2 or not (links[0].place and links[1].place):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.1)
                os.kill(before[0], signal.SIGSTOP)
                while owner_names() != ["owner-0.2", "owner-1.1"]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.1)
            after = await process_ids()
        assert after[0] != before[0]
        assert after[1] == before[1], "which answers"
    finally:
        watching.cancel()
        await pool.stop()


async def test_owner_that_ray_starts_again_takes_no_slot_in_a_term_that_is_over(
    cluster: None, dsn: str
) -> None:
    """Nobody conducts here any more who could end it; another product on the database has the slot."""
    lease = await ConductorLease.open(dsn, "former")
    try:
        assert await lease.take()
        pool = SlotPool(OWNER, OwnerActor, 1, SETTINGS, dsn, detached=False, term=lease.term)
    finally:
        await lease.close()
    try:
        await pool.start()
        owner: Any = get_actor(OWNER, 0)
        process_id: int = await owner.process_id.remote()
        await fetch(dsn, "UPDATE conductor_lease SET term = term + 1")
        os.kill(process_id, signal.SIGKILL)
        async with asyncio.timeout(120):
            while (again := await process_id_of(owner)) in (None, process_id):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        assert again is not None
        refusal: BrokerError | None = await owner.ready.remote()
        assert refusal is not None
        assert refusal.log_text == "term_over"
    finally:
        await pool.stop()


async def process_id_of(owner: Any) -> int | None:
    """None while Ray starts the process again."""
    try:
        process_id: int = await owner.process_id.remote()
    except RayError:
        return None
    return process_id


async def test_names_of_ended_owners_are_not_used_again(cluster: None, dsn: str) -> None:
    """Ray may know them for a while: who made an owner of such a name could be given the dead one."""
    names: list[str] = []
    for _ in range(2):
        pool = open_pool(dsn)
        try:
            await pool.start()
            assert owner_names() == ["owner-0.1", "owner-1.1"]
            names += actor_names()
        finally:
            await pool.stop()
    assert len(set(names)) == 4


def owner_names() -> list[str]:
    """The slots of the owners with their numbers."""
    return sorted(name.rpartition(".")[0] for name in actor_names())


def actor_names() -> list[str]:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in names if name.startswith("owner-")]


async def process_ids() -> list[int]:
    handles: list[Any] = [get_actor(OWNER, index) for index in range(SETTINGS.owners)]
    return [await handle.process_id.remote() for handle in handles]


async def test_whole_life_of_a_program(pool: str) -> None:
    listener, owners = Listener(), LinkedOwners(SETTINGS, CLOCK, ids)
    topic = program_topic("demo", "q")
    try:
        head = await listener.feed.follow(topic)
        assert await listener.feed.follow(topic) == head
        event = row()
        calls = [owners.submit(publish_rows("q", [event])), owners.submit(publish_rows("q", [row()]))]
        await asyncio.gather(*calls)
        await owners.submit(UpdateEvent(ids.uuid7(), "demo", "q", event.id, {"event": "A#b"}))
        await owners.submit(DeleteEvent(ids.uuid7(), "demo", "q", event.id))
        await listener.until(topic, 4)
        # In the history the messages about the deleted event have given way to its deletion.
        told = [entry.seq for entry in listener.entries[topic] if message_id(entry.params) == event.id]
        kept = await listener.feed.history(topic, head.epoch, 0, 100)
        assert isinstance(kept, list)
        assert [entry.seq for entry in kept] == [1, 2, 3, 4]
        assert [entry.seq for entry in kept if entry.method == "eventDeleted"] == told
        assert [entry for entry in kept if entry.seq not in told] == [
            entry for entry in listener.entries[topic] if entry.seq not in told
        ]
        assert await owners.submit(DeleteEvents(ids.uuid7(), "demo", "q")) == 1
        changed = await owners.submit(UpdateProgram(ids.uuid7(), "demo", "q", {"access": Access.PRIVATE}))
        assert (changed.name, changed.access) == ("q", Access.PRIVATE)
        os.kill((await process_ids())[owner_of(topic, 2)], signal.SIGKILL)
        await owners.submit(DeleteProgram(ids.uuid7(), "demo", "q"))
        entries = await listener.until(topic, 7)
        assert [entry.kind for entry in entries] == [0, 0, 0, 0, 2, EntryKind.ATTRIBUTES, EntryKind.GONE]
        with pytest.raises(NotFound):
            await owners.submit(publish_rows("q", [row()]))
        with pytest.raises(NotFound):
            await listener.feed.follow(topic)
    finally:
        await listener.feed.close()
        await owners.close()


async def test_parallel_publishers_share_calls_and_keep_their_order(pool: str) -> None:
    owners = LinkedOwners(SETTINGS, CLOCK, ids)
    try:
        events = [row() for _ in range(1000)]
        replies = await asyncio.gather(*(owners.submit(publish_rows("p", [event])) for event in events))
        seqs = [int(reply.events[0].split(b",")[0].removeprefix(b'{"seq":')) for reply in replies]
        assert seqs == list(range(1, 1001))
    finally:
        await owners.close()


async def test_unfollowed_topic_is_silent_and_can_be_followed_again(pool: str) -> None:
    listener, owners = Listener(), LinkedOwners(SETTINGS, CLOCK, ids)
    topics = [program_topic("demo", name) for name in ("p", "q")]
    try:
        await asyncio.gather(*(listener.feed.follow(topic) for topic in topics))
        await listener.feed.unfollow(topics[0])
        await owners.submit(publish_rows("p", [row()]))
        head = await listener.feed.follow(topics[0])
        assert head.seq == 1
        await owners.submit(publish_rows("p", [row()]))
        await listener.until(topics[0], 1)
        assert [entry.seq for entry in listener.entries[topics[0]]] == [2]
    finally:
        await listener.feed.close()
        await owners.close()


async def test_pool_that_does_not_run_is_unavailable(cluster: None) -> None:
    settings = Settings(owners=2, publish_timeout_s=0.3)
    owners = LinkedOwners(settings, CLOCK, ids)
    feed = LinkedFeed(settings, CLOCK, ids, lambda topic, entries: None)
    try:
        with pytest.raises(BrokerError) as caught:
            await owners.submit(publish_rows("p", [row()]))
        assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
        with pytest.raises(BrokerError) as caught:
            await feed.follow(program_topic("demo", "p"))
        assert caught.value.status == 503
    finally:
        await feed.close()
        await owners.close()


async def test_programs_channel_hears_of_changes(pool: str) -> None:
    listener, owners = Listener(), LinkedOwners(SETTINGS, CLOCK, ids)
    topic = "demo/channel/programs"
    try:
        await listener.feed.follow(topic)
        await create_programs(pool, ["new"])
        await owners.programs_changed("demo")
        await owners.submit(UpdateProgram(ids.uuid7(), "demo", "new", {"name": "Changed"}))
        await owners.submit(DeleteProgram(ids.uuid7(), "demo", "new"))
        entries = await listener.until(topic, 3)
        assert [
            b'"change":"%s"' % change in entry.params
            for change, entry in zip([b"created", b"updated", b"deleted"], entries, strict=True)
        ] == [True] * 3
    finally:
        await listener.feed.close()
        await owners.close()
