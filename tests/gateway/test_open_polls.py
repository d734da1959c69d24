"""`broker.gateway.open_polls`: what native code is told of polls, and for how long."""

import asyncio
from typing import Any

import pytest

from broker.gateway.open_polls import OPEN_S, OpenPolls, PollName
from tests.gateway.test_responses import ASKED
from tests.gateway.world import World

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
        self.polls = OpenPolls(self.table, world.product.services)

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


@pytest.fixture
def case(world: World) -> Case:
    return Case(world)


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
        case.clock.forward_ms += int(OPEN_S * 1_000)
        await case.polls.renew_when_open()  # it has lapsed
    assert name in case.table.opened
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await case.polls.renew_when_open()
