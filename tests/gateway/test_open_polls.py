"""`broker.gateway.open_polls`: what native code is told of polls, and for how long."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from broker.domain.audit import Actor
from broker.gateway.open_polls import LINGER_S, OPEN_S, OpenPolls, PollName
from broker.storage.polls import Polls
from broker.storage.visitor_rules import StoredRules, VisitorRules
from tests.gateway.test_responses import ASKED
from tests.gateway.world import World
from tests.maintenance import maintained

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


class Table:
    """Takes the place of the native server."""

    def __init__(self) -> None:
        self.opened: dict[PollName, dict[str, Any]] = {}

    def open_poll(self, *name: str, **facts: Any) -> None:
        self.opened[PollName(*name)] = facts

    def close_poll(self, *name: str) -> None:
        self.opened.pop(PollName(*name), None)


class Case:
    """Polls that open into a table, as of one served vote."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.product.clock
        self.table = Table()
        self.polls = OpenPolls(self.table, world.gateway._topics, world.product.services)
        world.link.owner._held_s = self.clock.monotonic_s()  # an earlier test may have moved the clock

    async def ask(self, metadata: dict[str, Any], **program: Any) -> PollName:
        """An event of a new program, of which a vote is served and taken."""
        program_id = await self.world.program(**program)
        admin = await self.world.admin()
        event = await admin.call("producer", programId=program_id, event="Vote#ask", metadata=metadata)
        name = PollName("demo", program_id, event["id"], "whoWins")
        await self.see(name)
        return name

    async def see(self, name: PollName) -> None:
        """Do what follows a served vote."""
        params = {
            "programId": name.program_id,
            "contextId": name.context_id,
            "measureName": name.measure_name,
        }
        self.polls.answered("demo", params)
        await self.polls.open_wanted()

    async def change(self, name: PollName, metadata: dict[str, Any]) -> None:
        """Give the event of a poll other metadata."""
        admin = await self.world.admin()
        place = {"programId": name.program_id, "eventId": name.context_id}
        await admin.call("updateProgramEvent", **place, event="Vote#ask", metadata=metadata)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the feed brings."""
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - nothing here says when
                await asyncio.sleep(0.005)


@pytest.fixture
def case(world: World) -> Case:
    return Case(world)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries as they are asked, but for those that a clock asks."""
    asked: list[str] = []
    prepare = asyncpg.Connection._get_statement

    async def get_statement(connection: Any, query: str, *args: Any, **kwargs: Any) -> Any:
        if any(table in query for table in ("programs", "program_heads", "events", "answer", "owner_slots")):
            asked.append(query)
        return await prepare(connection, query, *args, **kwargs)

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", get_statement)
    return asked


async def test_a_poll_is_opened_as_it_is_declared(case: Case) -> None:
    name = await case.ask(ASKED | {"allowChange": True}, projectId="own")
    facts = case.table.opened[name]
    assert (facts["options"], facts["allow_change"], facts["projects"]) == (2, True, ["own"])
    assert (facts["open_s"], len(facts["key"]), facts["shards"]) == (OPEN_S, 16, 1)
    other = await case.ask({})
    facts = case.table.opened[other]
    assert (facts["options"], facts["allow_change"]) == (1_000, False)
    assert facts["projects"] == ["undefiend", "undefined"]


async def test_a_poll_is_not_open_longer_than_its_event_says(case: Case) -> None:
    case.clock.stop()
    now_ms = case.clock.now_ms()
    soon = await case.ask(ASKED | {"closes": now_ms + 700})
    assert case.table.opened[soon]["open_s"] == 0.7
    assert await case.ask(ASKED | {"opens": now_ms + 1}) not in case.table.opened
    assert await case.ask(ASKED | {"closes": now_ms}) not in case.table.opened


async def test_no_poll_is_opened_during_maintenance(case: Case) -> None:
    name = await case.ask(ASKED)
    async with maintained(case.world.product.services):
        case.clock.forward_ms += int(OPEN_S * 1_000)  # to be opened again
        await case.see(name)  # a vote that was served before
        assert name not in case.table.opened
    await case.see(name)
    assert name in case.table.opened


async def test_private_and_unknown_ones_are_left_to_python(case: Case) -> None:
    assert await case.ask(ASKED, access="private") not in case.table.opened
    name = await case.ask(ASKED)
    for odd in (name._replace(program_id="unknown"), name._replace(context_id="unknown")):
        await case.see(odd)
        assert odd not in case.table.opened
    free = name._replace(
        program_id=await case.world.program(metadata={"freeContexts": True}), context_id="any"
    )
    await case.see(free)
    assert free in case.table.opened


async def test_what_is_used_is_opened_anew_as_it_is_now(case: Case) -> None:
    used, unused = await case.ask(ASKED), await case.ask(ASKED)
    poll = case.table.opened[used]["poll"]
    case.table.opened.clear()
    place = case.polls.use(poll)
    assert place is not None
    assert place.name == used
    await case.polls.renew()
    assert used in case.table.opened
    assert unused not in case.table.opened
    await case.polls.renew()
    case.polls.use(poll)
    await case.world.set_access(used.program_id, "private")
    await case.polls.renew()
    assert used not in case.table.opened


async def test_what_the_account_requires_closes_polls_that_say_nothing(case: Case) -> None:
    silent, said = await case.ask(ASKED), await case.ask(ASKED | {"visitors": "any"})
    try:
        await require(case, "issued")
        await case.polls.renew()
        assert case.table.opened.keys() == {said}
        await case.see(silent)
        assert case.table.opened.keys() == {said}
    finally:
        await require(case, "any")  # other tests have the same account


async def require(case: Case, visitors: str) -> None:
    """Set whom the account's polls count, and have the process see it."""
    services = case.world.product.services
    rules = StoredRules([], None, visitors)
    await VisitorRules(services.database).change("demo", lambda _: rules, Actor.operator())
    case.clock.forward_ms += 5_001  # what is remembered of the account is too old then
    await services.audience.visitors.rules("demo")


async def test_an_open_poll_is_not_opened_by_each_vote(case: Case) -> None:
    name = await case.ask(ASKED)
    case.table.opened.clear()
    await case.see(name)
    assert not case.table.opened
    case.clock.forward_ms += int(OPEN_S * 1_000)
    await case.see(name)
    assert name in case.table.opened


async def test_a_poll_that_is_gone_is_closed(case: Case) -> None:
    name = await case.ask(ASKED)
    poll = case.table.opened[name]["poll"]
    case.polls.gone(poll)
    assert name not in case.table.opened
    assert case.polls.use(poll) is None


async def test_nothing_is_read_while_nothing_is_open(case: Case) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await case.polls.renew_when_open()
    name = await case.ask(ASKED)
    async with asyncio.timeout(5):
        await case.polls.renew_when_open()  # it is open, and was not used
        case.clock.forward_ms += int(LINGER_S * 1_000)
        await case.polls.renew_when_open()  # it has lapsed
    assert name not in case.table.opened
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await case.polls.renew_when_open()


async def test_a_round_asks_the_database_nothing(case: Case, queries: list[str]) -> None:
    names = [await case.ask(ASKED) for _ in range(5)]
    await case.world.publish(names[0].program_id, 3)
    opened = {name: case.table.opened[name] for name in names}
    case.table.opened.clear()
    await asyncio.sleep(0.05)  # what is told of the publishing
    queries.clear()
    for facts in opened.values():
        case.polls.use(facts["poll"])
    await case.polls.renew()
    await case.until(lambda: len(case.table.opened) == 5)
    before = {name: facts | {"open_s": 0} for name, facts in opened.items()}
    assert {name: facts | {"open_s": 0} for name, facts in case.table.opened.items()} == before
    await case.polls.renew()
    looks = [query for query in queries if "owner_slots" in query]  # of the owner, each four seconds
    assert queries == looks


async def test_a_change_counts_as_soon_as_it_is_told(case: Case) -> None:
    name, other = await case.ask(ASKED), await case.ask(ASKED)
    await case.change(name, ASKED | {"options": ["Home", "Away", "Draw"]})
    await case.until(lambda: name not in case.table.opened)
    await case.polls.open_wanted()
    assert case.table.opened[name]["options"] == 3
    closes = {"closes": case.clock.now_ms() + 60_000, "allowChange": True}
    await case.change(name, ASKED | closes)
    await case.until(lambda: name not in case.table.opened)
    await case.polls.open_wanted()
    assert case.table.opened[name]["allow_change"]
    for ending in ({"closes": case.clock.now_ms() - 1}, {"options": "none can be chosen"}):
        await case.change(name, ASKED | ending)
        await case.until(lambda: name not in case.table.opened)
        await case.polls.open_wanted()
        assert name not in case.table.opened
        await case.change(name, ASKED)  # who votes now is served, and opens it
        await case.see(name)
        assert name in case.table.opened
    admin = await case.world.admin()
    await admin.call("deleteProgramEvent", programId=name.program_id, eventId=name.context_id)
    await case.until(lambda: name not in case.table.opened)
    await case.polls.open_wanted()
    assert name not in case.table.opened
    assert other in case.table.opened


async def test_what_ends_a_program_ends_its_polls_at_once(case: Case) -> None:
    private, erased, deleted = [await case.ask(ASKED) for _ in range(3)]
    admin = await case.world.admin()
    await case.world.set_access(private.program_id, "private")
    await admin.call("admin/deleteAllProgramEvents", programId=erased.program_id)
    await admin.call("admin/deleteProgram", programId=deleted.program_id)
    await case.until(lambda: not case.table.opened)
    await case.polls.open_wanted()
    assert not case.table.opened
    # Made again under its id it is another program, with polls of its own.
    await admin.call("admin/createProgram", id=deleted.program_id, name="again")
    event = await admin.call(
        "producer", programId=deleted.program_id, event="Vote#ask", metadata=ASKED | {"allowChange": True}
    )
    again = deleted._replace(context_id=event["id"])
    await case.see(again)
    assert case.table.opened[again]["allow_change"]
    await case.change(again, ASKED)
    await case.until(lambda: again not in case.table.opened)


async def test_free_contexts_end_as_soon_as_it_is_told(case: Case) -> None:
    program_id = await case.world.program(metadata={"freeContexts": True})
    name = PollName("demo", program_id, "any", "whoWins")
    await case.see(name)
    admin = await case.world.admin()
    times = {"scheduledStartTime": None, "scheduledEndTime": None}
    await admin.call("updateProgram", programId=program_id, id=program_id, name="p", metadata={}, **times)
    await case.until(lambda: name not in case.table.opened)
    await case.polls.open_wanted()
    assert name not in case.table.opened


async def test_what_is_not_told_lets_a_poll_lapse(case: Case) -> None:
    """While what an owner tells is late, what it has committed is found by where the program stands."""
    same, changed = await case.ask(ASKED), await case.ask(ASKED)
    opened = dict(case.table.opened)
    case.world.link.cut = {"poll", "open"}
    try:
        # The poll that waits at the owner is answered still; none comes after it.
        followed = case.world.gateway._topics.find(f"demo/program/{same.program_id}")
        assert followed is not None
        await case.world.publish(same.program_id)
        await case.until(lambda: (case.world.gateway._topics.position(followed) or ("", 0))[1] == 2)
        await case.change(changed, ASKED | {"options": ["only one"]})
        case.table.opened.clear()
        for facts in opened.values():
            case.polls.use(facts["poll"])
        await case.polls.renew()
        assert set(case.table.opened) == {same}
    finally:
        case.world.link.cut = set()
    case.table.opened[changed] = opened[changed]
    await case.until(lambda: changed not in case.table.opened)
    await case.polls.open_wanted()
    assert case.table.opened[changed]["options"] == 1


async def test_an_owner_that_is_silent_or_not_certain_lets_polls_lapse(case: Case) -> None:
    name = await case.ask(ASKED)
    poll = case.table.opened[name]["poll"]
    owner = case.world.link.owner

    async def is_renewed() -> bool:
        case.table.opened.clear()
        case.polls.use(poll)
        await case.polls.renew()
        return name in case.table.opened

    assert await is_renewed()
    case.world.link.cut = {"heads"}
    assert not await is_renewed()
    case.world.link.cut = set()
    for _ in range(3):  # the owner looks after its slot meanwhile
        seen_s, owner._held_s = owner._held_s, owner._clock.monotonic_s() - 7
        if not (renewed := await is_renewed()):
            break
    assert not renewed, "another may have the slot since"
    owner._held_s = seen_s
    owner._writer._unsettled.add(name[:2])
    assert not await is_renewed(), "the database may have lost something"
    owner._writer._unsettled.clear()
    assert await is_renewed()


async def test_a_change_while_a_poll_is_read_is_not_missed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, find = await case.ask(ASKED), Polls.find_contexts

    async def read_before_a_change(polls: Polls, *wanted: Any) -> Any:
        found = await find(polls, *wanted)
        monkeypatch.undo()
        await case.change(name, ASKED | {"options": ["only one"]})
        await case.until(lambda: not case.polls._programs[name[:2]].reading)
        return found

    case.clock.forward_ms += int(OPEN_S * 1_000)
    case.table.opened.clear()
    monkeypatch.setattr(Polls, "find_contexts", read_before_a_change)
    await case.see(name)
    assert name not in case.table.opened
    await case.polls.open_wanted()
    assert case.table.opened[name]["options"] == 1
