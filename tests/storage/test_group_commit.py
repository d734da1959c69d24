"""`broker.storage.group_commit`, with a work that only remembers, under a fence in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from broker.clock import SystemClock
from broker.concurrency.batch_queue import BatchLimits
from broker.errors import BrokerError, InternalError, OutcomeUnknown, Unavailable
from broker.storage.database import Database
from broker.storage.fence import Fence, Fenced, Term
from broker.storage.group_commit import Again, GroupCommit, Pending, Refusals

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SLOT = "tested"
CLOCK = SystemClock()
REFUSALS = Refusals(closed="it is closed", full="it is full", late="it is late", failed="it cannot be")
LIMITS = BatchLimits(batch_size=100, queue_size=1_000, queue_items=5)


class Twice(Again):
    """May come twice in the life of a group."""

    most = 2


@dataclass(slots=True, eq=False)
class Text(Pending):
    """Something to write, and the replies that came."""

    text: str
    replies: list[str | BrokerError] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Work:
    """Remembers what is written; fails as it is told, and commits nothing while its gate is closed."""

    is_unsettled = False

    def __init__(self) -> None:
        self.written: list[str] = []
        self.seen: list[tuple[int, list[type[Exception]]]] = []
        self.forgotten: list[str] = []
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()

    def admission(self) -> Callable[[Text], bool]:
        return lambda _: True

    async def settle(self, group: Sequence[Text], /) -> None:
        """Nothing is in memory."""

    async def commit(self, generation: int, group: Sequence[Text], earlier: Sequence[Exception]) -> list[str]:
        self.seen.append((generation, [type(error) for error in earlier]))
        self.begun.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if any(each.text == "bad" for each in group):
            raise ValueError("bad")
        self.written.append("".join(each.text for each in group))
        return [each.text.upper() for each in group]

    def forget(self, group: Sequence[Text]) -> None:
        self.forgotten.append("".join(each.text for each in group))

    def answer(self, pending: Text, reply: str | BrokerError) -> None:
        pending.replies.append(reply)
        pending.answered.set()


class Stage:
    """A group commit that runs, and its work."""

    def __init__(self, fence: Fence, generation: int) -> None:
        self.fence = fence
        self.work = Work()
        self.term = Term(fence, generation)
        self.commits: GroupCommit[Text, str] = GroupCommit(
            self.work, self.term, CLOCK, LIMITS, REFUSALS, name="tested", slot=SLOT
        )
        self.task = asyncio.create_task(self.commits.run())

    def add(self, *texts: str, wait_s: float = 30) -> list[Text]:
        added = [Text(len(text), CLOCK.monotonic_s() + wait_s, text) for text in texts]
        for each in added:
            self.commits.add(each)
        return added

    async def write(self, *texts: str) -> list[str | BrokerError]:
        added = self.add(*texts)
        for each in added:
            await each.answered.wait()
        assert all(len(each.replies) == 1 for each in added), "each is answered once"
        return [each.replies[0] for each in added]


@pytest.fixture
async def stage(migrated_dsn: str) -> AsyncIterator[Stage]:
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    fence = Fence(database, SLOT)
    stage = Stage(fence, await fence.acquire())
    yield stage
    stage.task.cancel()
    await asyncio.gather(stage.task, return_exceptions=True)
    await database.close()


async def test_what_arrives_during_a_commit_goes_with_the_next(stage: Stage) -> None:
    stage.work.gate.clear()
    writing = asyncio.create_task(stage.write("a"))
    await stage.work.begun.wait()
    more = asyncio.create_task(stage.write("b", "c"))
    await asyncio.sleep(0)
    stage.work.gate.set()
    assert (await writing, await more) == (["A"], ["B", "C"])
    assert stage.work.written == ["a", "bc"], "nothing waits for company, and what waits goes together"


async def test_a_commit_in_doubt_is_repeated_under_a_new_generation(stage: Stage) -> None:
    stage.work.failures = [OutcomeUnknown("lost"), Unavailable("away")]
    assert await stage.write("a") == ["A"]
    (first, _), (second, seen), (third, both) = stage.work.seen
    assert first < second < third, "a new generation ends the doubt"
    assert (seen, both) == ([OutcomeUnknown], [OutcomeUnknown, Unavailable])
    assert stage.work.forgotten == ["a", "a"], "what memory says of a group in doubt is forgotten"
    assert await stage.fence.standing() == (stage.term.generation, 0, 0)


async def test_again_is_at_once_and_bounded(stage: Stage) -> None:
    stage.work.failures = [Twice(), Twice()]
    assert await stage.write("a") == ["A"]
    stage.work.failures = [Twice(), Twice(), Twice()]
    (reply,) = await stage.write("b")
    assert isinstance(reply, Unavailable), "the third time in the life of a group is one too many"
    generations = {generation for generation, _ in stage.work.seen}
    assert len(generations) == 1, "nothing was in doubt, since nothing was written"


async def test_what_cannot_be_written_fails_alone(stage: Stage) -> None:
    good, bad, last = await stage.write("a", "bad", "c")
    assert (good, last) == ("A", "C")
    assert isinstance(bad, InternalError), "the fault of one item is told to nobody else"


async def test_a_full_queue_refuses_at_once(stage: Stage) -> None:
    stage.work.gate.clear()
    stage.add("a")
    await stage.work.begun.wait()
    added = stage.add(*"bcdefg")
    assert [str(reply) for each in added for reply in each.replies] == ["it is full"]


async def test_nobody_waits_over_his_time(stage: Stage) -> None:
    stage.work.failures = [OutcomeUnknown("lost"), *[Unavailable("away")] * 9]
    (doubtful,) = stage.add("a", wait_s=0.5)
    await stage.work.begun.wait()
    (queued,) = stage.add("b", wait_s=0.5)
    await doubtful.answered.wait()
    await queued.answered.wait()
    assert type(doubtful.replies[0]) is OutcomeUnknown, "one try of it may have been committed"
    assert type(queued.replies[0]) is Unavailable, "it was never tried"


async def test_draining_answers_what_waits_and_refuses_what_comes(stage: Stage) -> None:
    stage.work.gate.clear()
    waiting = stage.add("a", "b")
    await stage.work.begun.wait()
    draining = asyncio.create_task(stage.commits.drain())
    await asyncio.sleep(0)
    (late,) = stage.add("c")
    assert [str(reply) for reply in late.replies] == ["it is closed"]
    stage.work.gate.set()
    await draining
    assert [each.replies for each in waiting] == [["A"], ["B"]]


async def test_an_end_in_the_middle_answers_everything(stage: Stage) -> None:
    stage.work.gate.clear()
    (writing,) = stage.add("a")
    await stage.work.begun.wait()
    (queued,) = stage.add("b")
    stage.task.cancel()
    await asyncio.gather(stage.task, return_exceptions=True)
    assert [type(reply) for reply in (*writing.replies, *queued.replies)] == [OutcomeUnknown, Unavailable]


async def test_a_holder_that_was_shut_out_ends(stage: Stage) -> None:
    stage.work.failures = [Unavailable("away")]
    await stage.fence.acquire()
    (lost,) = await stage.write("a")
    assert isinstance(lost, Unavailable)
    with pytest.raises(Fenced):
        await stage.task
