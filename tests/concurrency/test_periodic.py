"""Repeated work: `broker.concurrency.periodic`."""

import asyncio

import pytest

from broker.concurrency.periodic import Periodic
from broker.errors import Unavailable

pytestmark = pytest.mark.anyio


async def test_a_round_that_fails_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Exception | None] = [Unavailable("away"), RuntimeError("broken"), None]
    done = asyncio.Event()

    async def work() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        done.set()
        await asyncio.Event().wait()

    periodic = Periodic("rounds", 0.001, work)
    periodic.start()
    async with asyncio.timeout(10):
        await done.wait()
    await periodic.stop()
    await periodic.stop()
    assert [(record.message, record.levelname) for record in caplog.records] == [
        ("round_failed", "WARNING"),
        ("round_failed", "ERROR"),
    ]
