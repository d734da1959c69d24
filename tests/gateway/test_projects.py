from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker.clock import SystemClock, to_datetime
from broker.domain.programs import Access, Program
from broker.gateway.projects import ProjectChannels
from broker.gateway.topics import FollowedTopics
from broker.operations.services import Services
from broker.owners.protocol import Entry, EntryKind
from broker.storage.programs import Programs
from tests.auth.services import open_services
from tests.gateway.ports import MemoryFeed, MemoryLogs, attributes, gone, push, settle

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

NEWS = "demo/channel/programs"
CHANNEL = "demo/channel/project:sport"


def topic(program_id: str) -> str:
    return f"demo/program/{program_id}"


def news(change: str, program_id: str, project_id: str | None) -> Entry:
    program = {"id": program_id, "projectId": project_id}
    params = orjson.dumps({"channel": "programs", "change": change, "program": program})
    return Entry(EntryKind.NOTICE, "", 0, "program", params)


class Bench:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.logs = MemoryLogs()
        self.topics = FollowedTopics(self.logs, lambda *args: self.channels.attributes_changed(*args))
        self.channels = ProjectChannels(self.topics, self.logs, services)
        self.feed = MemoryFeed(self.topics.take_entries)
        self.topics.use(self.feed)
        self.feed.add(NEWS, public=False)

    async def store(self, program_id: str, project_id: str | None, seq: int = 0) -> None:
        now = to_datetime(SystemClock().now_ms())
        program = Program(
            id=program_id,
            name=program_id,
            project_id=project_id,
            access=Access.PUBLIC,
            created_time=now,
            updated_time=now,
        )
        await self.services.programs.create("demo", program, f"epoch-{program_id}")
        self.feed.add(topic(program_id), seq, project_id=project_id)

    @property
    def linked(self) -> set[str]:
        return {linked.rsplit("/", 1)[-1] for linked, channel in self.logs.links if channel == CHANNEL}


Open = Callable[[], Awaitable[Bench]]


@asynccontextmanager
async def open_bench(dsn: str) -> AsyncIterator[Bench]:
    async with open_services(dsn) as services:
        programs: Any = Programs(services.database, services.clock)
        bench = Bench(replace(services, programs=programs))
        try:
            yield bench
        finally:
            await bench.channels.close()
            await bench.topics.close()


async def test_channel_links_the_programs_of_its_project(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        await bench.store("b", "sport")
        await bench.store("c", "news")
        await bench.store("d", None)
        await bench.channels.open("demo", "sport")
        assert bench.linked == {"a", "b"}
        assert bench.channels.is_open(CHANNEL)
        head = bench.logs.logs[CHANNEL]
        assert not head.public
        bench.feed.tell(topic("a"), push(1))
        assert bench.logs.linked[CHANNEL] == [1]


async def test_program_that_is_created_joins_with_its_first_pushes(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.channels.open("demo", "sport")
        bench.feed.add(topic("new"), 2, project_id="sport")
        bench.feed.tell(NEWS, news("created", "new", "sport"), news("created", "other", "news"))
        await settle()
        assert bench.linked == {"new"}
        assert bench.logs.linked[CHANNEL] == [1, 2]


async def test_program_that_moves_in_joins_from_now_on(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.channels.open("demo", "sport")
        bench.feed.add(topic("old"), 7, project_id="sport")
        bench.feed.tell(NEWS, news("updated", "old", "sport"))
        await settle()
        bench.feed.tell(topic("old"), push(8))
        assert bench.logs.linked[CHANNEL] == [8]


async def test_program_that_moves_out_leaves_at_its_place(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        await bench.channels.open("demo", "sport")
        bench.feed.tell(topic("a"), push(1), attributes(public=True, project_id="news"), push(2))
        assert bench.logs.linked[CHANNEL] == [1]
        await settle()
        assert topic("a") not in bench.feed.followed


async def test_program_that_moves_in_while_followed_joins_at_its_place(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.channels.open("demo", "sport")
        bench.feed.add(topic("a"), 0, project_id="news")
        await bench.topics.open(topic("a"))
        bench.feed.tell(topic("a"), push(1), attributes(public=True, project_id="sport"), push(2))
        assert bench.logs.linked[CHANNEL] == [2]
        # It is the channel's now: that the last viewer has left changes nothing.
        assert not bench.topics.close_if_idle(topic("a"))


async def test_program_that_is_deleted_leaves(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        await bench.channels.open("demo", "sport")
        bench.feed.tell(topic("a"), gone(0))
        await settle()
        assert bench.linked == set()


async def test_program_listed_but_gone_is_left_out(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        await bench.store("b", "sport")
        del bench.feed.heads[topic("a")]
        await bench.channels.open("demo", "sport")
        assert bench.linked == {"b"}


async def test_idle_channel_lets_its_programs_go(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        await bench.channels.open("demo", "sport")
        bench.logs.logs[CHANNEL].subscribers = 1
        assert not bench.channels.close_if_idle(CHANNEL)
        bench.logs.logs[CHANNEL].subscribers = 0
        assert bench.channels.close_if_idle(CHANNEL)
        await settle()
        assert bench.feed.followed == set()
        assert bench.logs.logs == {}
        await bench.channels.open("demo", "sport")
        assert bench.linked == {"a"}


async def test_more_programs_than_a_page_are_all_followed(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.gateway.projects.PAGE_PROGRAMS", 2)
    async with open_bench(migrated_dsn) as bench:
        for name in "abcde":
            await bench.store(name, "sport")
        await bench.channels.open("demo", "sport")
        assert bench.linked == set("abcde")


async def test_failure_to_open_leaves_nothing_behind(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.store("a", "sport")
        del bench.feed.heads[NEWS]
        with pytest.raises(Exception, match="there is no such topic"):
            await bench.channels.open("demo", "sport")
        await settle()
        assert bench.logs.logs == {}
        assert not bench.channels.is_open(CHANNEL)
