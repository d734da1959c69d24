import asyncio
from collections.abc import Sequence

import pytest

from broker.deployments import clock_watch

pytestmark = pytest.mark.anyio


class SteppedClock:
    """A clock whose wall time is set anew at each look; a second passes in between."""

    def __init__(self, ahead_s: Sequence[float]) -> None:
        self._ahead_s = list(ahead_s)
        self._looks = 0
        self.is_over = asyncio.Event()

    def now_ms(self) -> int:
        ahead_s = self._ahead_s[min(self._looks, len(self._ahead_s) - 1)]
        if self._looks == len(self._ahead_s):
            self.is_over.set()
        return round((1_700_000_000 + self.monotonic_s() + ahead_s) * 1000)

    def monotonic_s(self) -> float:
        return 100.0 + self._looks

    def look(self) -> None:
        self._looks += 1


@pytest.mark.parametrize(
    ("ahead_s", "steps"),
    [
        ([0, 0, 0], 0),
        ([0, 3600, 3600], 0),
        ([0, -9.9, -9.9], 0),
        ([0, -10, -10], 1),
        ([0, 3600, 0, -3600, 0], 2),
        ([0, -6, -12, -18], 0),
    ],
    ids=["steady", "forward", "a little", "back", "to and fro", "slowly"],
)
async def test_steps_back_are_told(
    monkeypatch: pytest.MonkeyPatch, ahead_s: Sequence[float], steps: int
) -> None:
    clock = SteppedClock(ahead_s)
    told: list[int] = []
    sleep = asyncio.sleep

    async def pass_time(_: float) -> None:
        clock.look()
        await sleep(0)

    async def set_back() -> None:
        told.append(1)

    monkeypatch.setattr(clock_watch.asyncio, "sleep", pass_time)
    watching = asyncio.create_task(clock_watch.watch_clock(clock, set_back))
    await asyncio.wait_for(clock.is_over.wait(), 10)
    watching.cancel()
    await asyncio.wait([watching])
    assert len(told) == steps
