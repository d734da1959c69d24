"""A server of the database takes the place of another while producers publish and viewers follow and vote.

One that lacks what was acknowledged may not be taken for the other: its new events have the numbers of those
that it lost. Whoever followed is told, whoever comes back is told, and who is new never hears of them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from broker.domain.audit import Actor
from broker.owners.owner import Owner
from broker.storage.visitor_rules import VisitorRules
from tests.adversity.votes import VISITORS, VotingShow
from tests.auth.visitor_tokens import SECRET
from tests.gateway.world import RpcError, Viewer, World, open_world
from tests.servers import Servers, make_template

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

VIEWERS = 5
_SWITCH_S = 60.0
_OPTIONS = {"title": "Winner", "options": ["a", "b"]}
_PROJECT = "show"
# More than an owner remembers; a standby gives up to 32 numbers away, which its primary has in reserve.
_LOST_VALUES = 80
_NEWEST_VALUE = "SELECT max(number) AS number FROM stored_values"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@asynccontextmanager
async def open_servers(root: Path, template: Path) -> AsyncIterator[Servers]:
    servers = Servers(root, template)
    try:
        yield servers
    finally:
        await servers.stop()


@dataclass
class Show:
    """A program with a poll, producers and viewers that go on whatever happens."""

    world: World
    program: str
    viewers: list[Viewer] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    acknowledged: list[dict[str, Any]] = field(default_factory=list)
    poll: str = ""
    voters: int = 0

    async def begin(self) -> None:
        (event,) = await self.publish(1, _OPTIONS)
        self.poll = event["id"]
        for _ in range(VIEWERS):
            viewer = await self.world.join()
            self.heads.append(await viewer.call("subscribe", programId=self.program))
            self.viewers.append(viewer)

    async def publish(self, count: int, metadata: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Publish `count` events in turn, each until it is acknowledged."""
        events: list[dict[str, Any]] = []
        body = {"event": "Score#update", "metadata": metadata or {}}
        async with self.world.product.door() as door, asyncio.timeout(_SWITCH_S):
            while len(events) < count:
                answer = await door.post(f"/programs/{self.program}/events", json=body)
                if answer.status_code == httpx.codes.CREATED:
                    events.append(answer.json())
        self.acknowledged += events
        return events

    async def vote(self, count: int) -> None:
        """New visitors vote, each until it is acknowledged."""
        async with asyncio.timeout(_SWITCH_S):
            for _ in range(count):
                self.voters += 1
                await self._vote(self.voters)

    async def vote_again(self) -> None:
        """Everybody who has voted votes again, and the same."""
        async with asyncio.timeout(_SWITCH_S):
            for visitor in range(1, self.voters + 1):
                await self._vote(visitor)

    async def _vote(self, visitor: int) -> None:
        viewer = await self.world.join()
        while True:
            try:
                await viewer.call(
                    "respond",
                    programId=self.program,
                    contextId=self.poll,
                    measureName="winner",
                    measureValue=visitor % 2,
                    visitorId=f"visitor-{visitor}",
                )
            except (RpcError, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return

    async def until_told(self, number: int, last: dict[str, Any]) -> list[dict[str, Any]]:
        """Everything that one viewer is told up to an event."""
        told: list[dict[str, Any]] = []
        async with asyncio.timeout(_SWITCH_S):
            while not told or told[-1]["params"].get("id") != last["id"]:
                told.append(await self.viewers[number].told.get())
        return told

    async def results(self) -> dict[str, Any]:
        """The live results of the poll, as the database has them now."""
        await asyncio.sleep(1.1)  # they may be a second old
        async with self.world.product.door(None) as door:
            answer = await door.get("/responses/demo/winner/results", params={"programId": self.program})
        return dict(answer.json())

    async def stored(self) -> list[dict[str, Any]]:
        """The events as the broker has them."""
        async with self.world.product.door() as door:
            answer = await door.get(f"/programs/{self.program}/events")
        return list(answer.json())


@asynccontextmanager
async def open_show(servers: Servers) -> AsyncIterator[Show]:
    async with open_world(servers.dsn, ws_messages_per_s=0) as world:
        show = Show(world, await world.program())
        await show.begin()
        yield show


async def behind_standby(servers: Servers, show: Show) -> Callable[[], Awaitable[None]]:
    """An asynchronous standby that gets nothing from here on, and is promoted."""

    async def switch() -> None:
        await servers.kill("first")
        await servers.promote("second")

    await servers.cut_off("second")
    return switch


async def dump(servers: Servers, show: Show) -> Callable[[], Awaitable[None]]:
    """A dump of this moment, on a server of its own."""

    async def switch() -> None:
        await servers.kill("first")
        await servers.put_in_charge("restored")

    await servers.dump_into("restored", "first")
    return switch


async def copy(servers: Servers, show: Show) -> Callable[[], Awaitable[None]]:
    """A copy of the files of this moment: system identifier and timeline are those of the server."""
    backup = await servers.back_up("first")

    async def switch() -> None:
        await servers.kill("first")
        await servers.start("restored", backup)
        await servers.put_in_charge("restored")

    return switch


@pytest.mark.parametrize("lose", [behind_standby, dump, copy])
async def test_what_was_lost_is_told_and_what_is_new_arrives(
    lose: Callable[[Servers, Show], Awaitable[Callable[[], Awaitable[None]]]], tmp_path: Path, template: Path
) -> None:
    async with open_servers(tmp_path, template) as servers:
        await servers.start("first")
        if lose is behind_standby:
            await servers.add_standby("second", "first")
        await servers.put_in_charge("first")
        async with open_show(servers) as show:
            kept = await show.publish(20)
            await show.vote(3)
            if lose is behind_standby:
                await servers.catch_up("second", "first")
            switch = await lose(servers, show)
            lost = await show.publish(10)
            await show.vote(2)
            epoch = kept[0]["epoch"]

            publishing = asyncio.create_task(show.publish(5))
            voting = asyncio.create_task(show.vote(4))
            await switch()
            await asyncio.gather(publishing, voting)
            # The killed server may have taken all of those: its backends outlive it for a moment.
            (*_, last) = await show.publish(10)
            stored = await show.stored()

            # The database is what counts; it has no number twice, and nothing of what was lost.
            assert [event["seq"] for event in stored] == list(range(1, len(stored) + 1))
            ids = {event["id"] for event in stored}
            assert ids.isdisjoint(event["id"] for event in lost)
            assert {event["id"] for event in kept} <= ids
            assert {event["epoch"] for event in stored} == {last["epoch"]} != {epoch}
            for number in range(VIEWERS):
                told = await show.until_told(number, last)
                (at,) = [n for n, each in enumerate(told) if each["method"] == "historyReplaced"]
                base = told[at]["params"]["seq"]
                assert told[at]["params"]["epoch"] == last["epoch"]
                after = [each["params"]["id"] for each in told[at + 1 :]]
                assert after == [event["id"] for event in stored if base < event["seq"] <= last["seq"]]

            # Who comes back with what it saw before, and who comes for the first time.
            for event, is_recovered in ((lost[-1], False), (last, True)):
                viewer = await show.world.join()
                since = {name: event[name] for name in ("epoch", "seq", "id")}
                answer = await viewer.call("subscribe", programId=show.program, since=since)
                assert answer["recovered"] is is_recovered
                assert (answer["epoch"], answer["seq"], answer["id"]) == (
                    last["epoch"],
                    last["seq"],
                    last["id"],
                )
            answer = await (await show.world.join()).call("subscribe", programId=show.program, history=100)
            assert [event["id"] for event in answer["events"]] == [event["id"] for event in stored]
            assert {event["epoch"] for event in answer["events"]} == {last["epoch"]}

            assert show.voters == 9
            assert 3 <= (await show.results())["total"] <= 9 - 2
            await show.vote_again()
            assert (await show.results())["results"] == {"0": 4, "1": 5}


async def start_pair(servers: Servers) -> None:
    """A server with a synchronous standby."""
    await servers.start("first")
    await servers.add_standby("second", "first")
    await servers.put_in_charge("first")
    await servers.fetch("first", "ALTER SYSTEM SET synchronous_standby_names = '*'")
    await servers.fetch("first", "SELECT pg_reload_conf()")


@asynccontextmanager
async def served(world: World) -> AsyncIterator[str]:
    """The URL of the HTTP door while it listens."""
    config = uvicorn.Config(world.product.app, port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    try:
        async with asyncio.timeout(10):
            while not server.started:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        yield f"http://localhost:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.timeout(300)
async def test_votes_of_every_kind_of_visitor_count_once_over_a_synchronous_standby(
    tmp_path: Path, template: Path
) -> None:
    """Over HTTP and WebSocket, while a server dies and its standby takes over."""
    limits = dict.fromkeys(
        ("responses_rate_per_address", "visitors_rate_per_address", "visitors_rate_per_network"), 0
    )
    async with open_servers(tmp_path, template) as servers:
        await start_pair(servers)
        async with open_world(servers.dsn, **limits) as world, served(world) as url:
            rules = VisitorRules(world.product.services.database)
            await rules.change("demo", lambda was: was._replace(keys=(SECRET,)), Actor.operator())
            headers = {"Authorization": f"Bearer {world.product.tokens['admin']}"}
            ws_url = f"ws://localhost:{world.port}/api/v1/ws"
            shows = [
                VotingShow(url, f"votes-{kind}", headers, ws_url=ws_url, visitors=kind, secret=SECRET)
                for kind in VISITORS
            ]
            disturbed = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for show in shows:
                    group.create_task(show.run(disturbed, doors=1, after=10, sockets=1))
                async with asyncio.timeout(_SWITCH_S):
                    while not all(show.chosen for show in shows):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.05)
                await servers.kill("first")
                await servers.promote("second")
                disturbed.set()
            assert [(show.visitors, finding) for show in shows for finding in show.judge()] == []


async def test_synchronous_standby_loses_nothing_and_no_epoch_changes(tmp_path: Path, template: Path) -> None:
    async with open_servers(tmp_path, template) as servers:
        await start_pair(servers)
        async with open_show(servers) as show:
            before = await show.publish(10)
            await show.vote(3)
            publishing = asyncio.create_task(show.publish(15))
            voting = asyncio.create_task(show.vote(3))
            await servers.kill("first")
            await servers.promote("second")
            await asyncio.gather(publishing, voting)
            last = show.acknowledged[-1]
            assert last["epoch"] == before[0]["epoch"]
            stored = await show.stored()
            assert {event["id"] for event in show.acknowledged} <= {event["id"] for event in stored}
            for number in range(VIEWERS):
                told = await show.until_told(number, last)
                assert [each["params"]["id"] for each in told] == [event["id"] for event in stored[1:]]
            assert (await show.results())["results"] == {"0": 3, "1": 3}


@dataclass
class Values:
    """Stored values of a project, and a viewer who follows them and reads them as it is told to."""

    world: World
    viewer: Viewer
    known: dict[str, Any] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)
    resumes: int = 0

    async def store(self, count: int) -> list[str]:
        """Store `count` new values in turn, each until it is acknowledged; returns their ids."""
        ids: list[str] = []
        async with self.world.product.door() as door, asyncio.timeout(_SWITCH_S):
            while len(ids) < count:
                id_ = f"v{len(self.stored)}"
                body = {"id": id_, "metadata": {"of": id_}}
                answer = await door.post(f"/storage/{_PROJECT}", json=body)
                if answer.is_success:
                    ids.append(id_)
                    self.stored.append(id_)
        return ids

    async def read(self) -> dict[str, Any]:
        """The values as the broker has them."""
        found = {}
        async with self.world.product.door() as door:
            for id_ in self.stored:
                answer = await door.get(f"/storage/{_PROJECT}/{id_}")
                if answer.status_code == httpx.codes.OK:
                    found[id_] = answer.json()
        return found

    async def until_known(self, ids: list[str]) -> None:
        async with asyncio.timeout(_SWITCH_S):
            while not self.known.keys() >= set(ids):
                told = await self.viewer.told.get()
                if told["method"] == "resumed":
                    self.resumes += 1
                    self.known = await self.read()
                elif told["method"] == "stored":
                    self.known[told["params"]["value"]["id"]] = told["params"]["value"]


@asynccontextmanager
async def owner_away(world: World, dsn: str, stack: AsyncExitStack) -> AsyncIterator[None]:
    """The owner is gone in the block, after which there is another one, until the stack ends."""
    owners, services = world.product.owners, world.product.services
    world.link.is_cut = True
    await owners.owner.close()
    yield
    settings = replace(services.settings, database_pool=2)
    owner = await Owner.start(settings, dsn, 0, clock=services.clock)
    stack.push_async_callback(owner.close)
    owners.owner = world.link.owner = owner
    world.link.is_cut = False


@pytest.mark.parametrize(
    ("lose", "is_owner_replaced"), [(behind_standby, False), (behind_standby, True), (dump, True)]
)
async def test_values_under_numbers_of_lost_ones_are_told(
    lose: Callable[[Servers, Show], Awaitable[Callable[[], Awaitable[None]]]],
    is_owner_replaced: bool,
    tmp_path: Path,
    template: Path,
) -> None:
    async with open_servers(tmp_path, template) as servers:
        await servers.start("first")
        if lose is behind_standby:
            await servers.add_standby("second", "first")
        await servers.put_in_charge("first")
        async with open_world(servers.dsn, ws_messages_per_s=0) as world, AsyncExitStack() as stack:
            await (await world.admin()).call("createProject", id=_PROJECT, name="n")
            values = Values(world, await world.join())
            await values.viewer.call("subscribe", channel=f"storage:{_PROJECT}")
            kept = await values.store(5)
            if lose is behind_standby:
                await servers.catch_up("second", "first")
            switch = await lose(servers, Show(world, ""))
            lost = await values.store(_LOST_VALUES)
            await values.until_known([*kept, *lost])
            (before,) = await servers.fetch("first", _NEWEST_VALUE)

            # The owner learns of the loss by itself, or its successor by the cursor of the gateway.
            async with owner_away(world, servers.dsn, stack) if is_owner_replaced else nullcontext():
                await switch()
                new = await values.store(3)
            await values.until_known(new)
            (after,) = await servers.fetch("second" if lose is behind_standby else "restored", _NEWEST_VALUE)
            assert after["number"] <= before["number"], "numbers are used again"
            assert values.known == await values.read()
            assert values.known.keys() == {*kept, *new}
            assert values.resumes == 1
