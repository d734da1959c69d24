"""`broker.owners.responses_channel`, with counts and a clock that are moved by hand."""

from typing import Any, cast

import orjson
import pytest

from broker.clock import to_datetime
from broker.domain.programs import Access, Program
from broker.owners.log import LogLimits, Step
from broker.owners.protocol import Attributes, EntryKind
from broker.owners.responses_channel import ResponsesChannel
from broker.storage.polls import PollCount
from tests.auth.services import StoppedClock

pytestmark = pytest.mark.anyio


class Stored:
    """What the database says, as the repositories of programs and of polls."""

    def __init__(self) -> None:
        self.program: Program | None = Program.model_construct(
            id="p",
            name="n",
            access=Access.PUBLIC,
            project_id=None,
            created_time=to_datetime(0),
            updated_time=to_datetime(0),
        )
        self.counts: dict[str, list[int]] = {}
        self.looks = 0

    async def find(self, account: str, program_id: str) -> Program | None:
        return self.program

    async def count(self, account: str, measure: None, *, program_id: str) -> list[PollCount]:
        self.looks += 1
        event = orjson.dumps({"options": ["a", "b"], "measureName": "new"})
        return [
            PollCount(uid, "p", None, name, "c", 0, totals, 0, 0, 0, False, event)
            for uid, (name, totals) in enumerate(self.counts.items())
        ]


class Scene:
    def __init__(self) -> None:
        self.stored, self.clock = Stored(), StoppedClock()

    async def open(self) -> ResponsesChannel | None:
        stored = cast("Any", self.stored)
        return await ResponsesChannel.load("demo", "p", stored, stored, self.clock, LogLimits())


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def opened(scene: Scene) -> ResponsesChannel:
    channel = await scene.open()
    assert channel is not None
    return channel


def told(steps: Any) -> list[dict[str, int]]:
    """Of each notification the totals by measure."""
    return [
        {result["measureName"]: result["total"] for result in orjson.loads(step.entry.params)["results"]}
        for step in cast("list[Step]", steps)
        if step.entry.kind == EntryKind.NOTICE
    ]


def log(channel: ResponsesChannel) -> list[dict[str, int]]:
    return told(channel.log.since(channel.log.first, 100))


async def test_what_was_there_is_not_told_and_what_changes_is(scene: Scene) -> None:
    scene.stored.counts = {"old": [1], "other": [2, 3]}
    channel = await opened(scene)
    await channel._look()
    assert log(channel) == []
    scene.stored.counts |= {"old": [1, 1], "new": []}
    await channel._look()
    assert log(channel) == [{"old": 2, "new": 0}]
    (step,) = channel.log.since(0, 10)
    results = orjson.loads(step.entry.params)["results"]
    assert results[0]["results"] == {"0": 1, "1": 1}
    assert {each["measureName"]: each["isDeclared"] for each in results} == {"old": False, "new": True}


async def test_it_tells_at_most_once_a_second_and_the_newest(scene: Scene) -> None:
    channel = await opened(scene)
    scene.stored.counts = {"m": [1]}
    await channel._look()
    for count, forward_ms, left_s in ((2, 0, 1), (3, 500, 0.5), (4, 499, 0.001)):
        scene.clock.ms += forward_ms
        scene.stored.counts = {"m": [count]}
        assert await channel._look() == pytest.approx(left_s, abs=1e-5)
    assert log(channel) == [{"m": 1}]
    scene.clock.ms += 1
    await channel._look()
    assert log(channel) == [{"m": 1}, {"m": 4}]


async def test_poll_that_the_database_has_lost_is_told_as_empty_and_once(scene: Scene) -> None:
    scene.stored.counts = {"kept": [1], "lost": [2, 1]}
    channel = await opened(scene)
    scene.stored.counts = {"kept": [1]}
    for _ in range(2):
        await channel._look()
        scene.clock.ms += 1_000
    assert log(channel) == [{"lost": 0}]
    (step,) = channel.log.since(0, 10)
    assert orjson.loads(step.entry.params)["results"][0]["results"] == {"0": 0, "1": 0}
    scene.stored.counts = {"kept": [1], "lost": [0, 1]}
    await channel._look()
    assert log(channel)[1:] == [{"lost": 1}]


async def test_who_was_behind_is_told_how_it_is_now(scene: Scene) -> None:
    channel = await opened(scene)
    before = channel.head().seq
    assert await channel.read_behind("", before, 10) == ([], 0)
    for count in (1, 2):
        scene.stored.counts = {"m": [count]}
        await channel._look()
        scene.clock.ms += 1_000
    steps, offset = await channel.read_behind("", before, 10)
    assert (told(steps), offset) == ([{"m": 2}], channel.log.end)
    assert {step.seq for step in steps} == {channel.head().seq}


async def test_a_later_owner_begins_behind_an_earlier_one(scene: Scene) -> None:
    channel = await opened(scene)
    for count in range(3):
        scene.stored.counts = {"m": [count]}
        await channel._look()
        scene.clock.ms += 1_000
    assert (await opened(scene)).head().seq > channel.head().seq


async def test_follower_of_an_owner_whose_clock_went_back_is_told_how_it_is_now(scene: Scene) -> None:
    """The database was exchanged for one that is behind; what was counted meanwhile was told to nobody."""
    former = await opened(scene)
    scene.clock.ms -= 60_000
    scene.stored.counts = {"m": [1]}
    channel = await opened(scene)
    steps, offset = await channel.read_behind("", former.head().seq, 10)
    assert (told(steps), offset) == ([{"m": 1}], channel.log.end)
    assert {step.seq for step in steps} == {channel.head().seq}


async def test_a_change_of_access_is_told(scene: Scene) -> None:
    channel = await opened(scene)
    assert channel.head().attributes == Attributes(public=True, project_id=None)
    assert scene.stored.program is not None
    scene.stored.program = scene.stored.program.model_copy(update={"access": Access.PRIVATE})
    await channel._look()
    assert channel.head().attributes == Attributes(public=False, project_id=None)
    assert [step.entry.kind for step in channel.log.since(0, 10)] == [EntryKind.ATTRIBUTES]


async def test_a_program_that_is_gone_ends_it_once(scene: Scene) -> None:
    channel = await opened(scene)
    scene.stored.program = None
    await channel._look()
    await channel._look()
    assert [step.entry.kind for step in channel.log.since(0, 10)] == [EntryKind.GONE]
    assert await scene.open() is None


async def test_very_many_results_come_in_turns(scene: Scene) -> None:
    channel = await opened(scene)
    scene.stored.counts = {f"m{number}": [1] for number in range(1_500)}
    for _ in range(3):
        await channel._look()
        scene.clock.ms += 1_000
    assert [len(notice) for notice in log(channel)] == [1_000, 500]
