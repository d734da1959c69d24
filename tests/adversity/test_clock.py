"""The wall clock of the whole product steps an hour forward and back while events flow.

The database keeps its own time, as it would on another machine. Order is by seq and times never decrease.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.adversity.clock import SteppedClock
from tests.adversity.faults import TITLES, kill
from tests.adversity.soak import Size, open_show
from tests.deployments.instance import Instance

HOUR_S = 3_600
_AGAIN_S = 30.0
_PAUSE_S = 0.2
CREATED = """
SELECT count(*) FILTER (WHERE created_time < before) AS backward,
    extract(epoch FROM max(created_time) - min(created_time)) AS span_s
FROM (SELECT e.created_time, lag(e.created_time) OVER (PARTITION BY history ORDER BY e.seq) AS before
    FROM events e JOIN program_heads h USING (history) JOIN programs p ON p.uid = h.program_uid
    WHERE p.id = any($1)) AS times
"""


@pytest.fixture
def clock(tmp_path: Path) -> SteppedClock:
    """The wall clock of `stepped`."""
    return SteppedClock(tmp_path)


@pytest.fixture
def stepped(tmp_path: Path, clock: SteppedClock) -> Iterator[Instance]:
    """An instance of this test's own: Ray's processes keep timers that were set before a step back."""
    environment = {"BROKER_TOKEN_LIFETIME_S": "86400", **clock.environment}  # longer than the steps
    instance = Instance(tmp_path / "data", environment=environment)
    instance.start()
    yield instance
    instance.end()


def test_stepped_clock_moves_the_time_of_day_only(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    clock.set(HOUR_S)
    code = "import time; print(time.time(), time.monotonic())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clock.environment, check=True, capture_output=True, text=True
    )
    wall_s, monotonic_s = map(float, done.stdout.split())
    assert wall_s - time.time() == pytest.approx(HOUR_S, abs=60)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=60)


@pytest.mark.anyio
@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_clock_that_steps_loses_and_reorders_nothing(stepped: Instance, clock: SteppedClock) -> None:
    size = Size(producers=6, viewers=12, programs=3, events_per_s=600.0, gives_up=0.0)
    async with open_show(stepped, size) as show:
        token = await log_in(stepped)
        for ahead_s in (HOUR_S, 0, -HOUR_S, 0):
            clock.set(ahead_s)
            await show.until_at_work(time.monotonic())
            await require_access(stepped, token)
            await require_access(stepped, await log_in(stepped))
        # What looks after the replicas goes by that clock; it still sees one die.
        assert kill(stepped, TITLES["API replica"])
        await show.until_at_work(time.monotonic())
        await require_access(stepped, token)
        verdict = await show.close()
        assert verdict.findings == []
        connection = await asyncpg.connect(show.dsn)
        try:
            times = await connection.fetchrow(CREATED, show.programs)
        finally:
            await connection.close()
    assert times["backward"] == 0
    assert times["span_s"] >= HOUR_S


async def log_in(instance: Instance) -> dict[str, str]:
    """A new token. After a step back a rate limit may need a moment, and the ingress to start."""
    async with asyncio.timeout(_AGAIN_S):
        while True:
            try:
                return await asyncio.to_thread(instance.token)
            except httpx.TransportError:
                await asyncio.sleep(_PAUSE_S)
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (429, 503):
                    raise
                await asyncio.sleep(int(error.response.headers["Retry-After"]))


async def require_access(instance: Instance, token: dict[str, str]) -> None:
    """The token is neither too old nor too new."""
    async with httpx.AsyncClient(timeout=20) as client, asyncio.timeout(_AGAIN_S):
        while True:
            with suppress(httpx.TransportError):
                reply = await client.get(f"{instance.url}/api/v1/users/me", headers=token)
                if reply.status_code != 503:
                    break
            await asyncio.sleep(_PAUSE_S)
    assert reply.status_code == 200, reply.text
