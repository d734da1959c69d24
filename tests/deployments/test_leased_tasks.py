"""`broker.deployments.leased_tasks`: what a conductor does, and does not do, without its lease."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.concurrency.tasks import cancel_and_wait
from broker.deployments.leased_tasks import LeasedTasks
from broker.errors import Unavailable

pytestmark = pytest.mark.anyio


class Stage:
    """Leased tasks over a clock that a test moves; `acting` says which of them run now."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.acting: list[str] = []
        self.changed = asyncio.Event()
        self.tasks = LeasedTasks(lambda: self.now_s)

    def keep(self, name: str) -> None:
        self.tasks.keep(name, lambda: self.act(name))

    async def act(self, name: str) -> None:
        self._change([*self.acting, name])
        try:
            await asyncio.Event().wait()
        finally:
            self._change([each for each in self.acting if each != name])

    async def until(self, *acting: str) -> None:
        async with asyncio.timeout(20):
            while self.acting != [*acting]:
                self.changed.clear()
                await self.changed.wait()

    def _change(self, acting: list[str]) -> None:
        self.acting = acting
        self.changed.set()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    running = asyncio.create_task(stage.tasks.run())
    yield stage
    await cancel_and_wait(running)
    assert stage.acting == [], "nothing is left"


async def test_nothing_is_done_before_there_is_a_lease(stage: Stage) -> None:
    stage.keep("owners")
    held = asyncio.create_task(stage.tasks.until_held())
    stage.tasks.extend(99.0)  # told too late
    await asyncio.sleep(0)
    assert (stage.tasks.is_held, stage.acting, held.done()) == (False, [], False)
    stage.tasks.extend(110.0)
    await stage.until("owners")
    await held
    assert stage.tasks.is_held


async def test_a_lease_that_lapses_ends_all_until_it_is_renewed(stage: Stage) -> None:
    stage.tasks.extend(110.0)
    stage.keep("owners")
    await stage.until("owners")
    stage.keep("gateways")
    await stage.until("owners", "gateways")
    stage.now_s = 110.0
    await stage.until()
    stage.keep("counters")  # in vain for now
    stage.tasks.extend(120.0)
    await stage.until("owners", "gateways", "counters")


async def test_a_lease_that_is_renewed_in_time_ends_nothing(stage: Stage) -> None:
    stage.tasks.extend(110.0)
    stage.keep("owners")
    await stage.until("owners")
    stage.tasks.extend(120.0)
    stage.now_s = 119.0
    stage.keep("gateways")
    await stage.until("owners", "gateways")
    assert stage.tasks.is_held


async def test_who_needs_no_lease_acts_for_ever(stage: Stage) -> None:
    stage.tasks.extend(None)
    stage.keep("owners")
    stage.now_s = 1e12
    await stage.until("owners")
    assert stage.tasks.is_held


async def test_what_was_begun_once_ends_with_the_lease_and_is_not_begun_again(stage: Stage) -> None:
    stage.keep("owners")
    assert not stage.tasks.run_once("update", lambda: stage.act("update"))
    stage.tasks.extend(110.0)
    await stage.until("owners")
    assert stage.tasks.run_once("update", lambda: stage.act("update"))
    await stage.until("owners", "update")
    stage.now_s = 110.0
    assert not stage.tasks.run_once("update", lambda: stage.act("update"))
    await stage.until()
    stage.tasks.extend(120.0)
    await stage.until("owners")


async def test_a_start_is_given_up_when_the_lease_lapses(stage: Stage) -> None:
    stage.tasks.extend(110.0)
    starting = asyncio.create_task(stage.tasks.within(stage.act("start")))
    await stage.until("start")
    stage.now_s = 110.0
    with pytest.raises(Unavailable):
        await starting
    assert stage.acting == []


async def test_a_start_that_is_over_before_is_over(stage: Stage) -> None:
    async def fail() -> None:
        raise KeyError

    stage.tasks.extend(110.0)
    await stage.tasks.within(asyncio.sleep(0))
    with pytest.raises(KeyError):
        await stage.tasks.within(fail())
