"""The wall clock of the whole product steps a day forward and back while events flow.

The database keeps its own time, as it would on another machine, and all of the product goes by it.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import httpx
import pytest
from websockets.asyncio.client import connect

from tests.adversity.clock import SteppedClock
from tests.adversity.faults import TITLES, kill
from tests.adversity.soak import Size, open_show
from tests.deployments.instance import Instance

DAY_S = 86_400
HOUR_MS = 3_600_000
_AGAIN_S = 30.0
_PAUSE_S = 0.2
_LOOK_S = 6.0  # longer than the period of the looks at a replica
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
    instance = Instance(tmp_path / "data", environment=clock.environment)
    with instance.running():
        yield instance


def test_stepped_clock_moves_the_time_of_day_only(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    clock.set(DAY_S)
    code = "import time; print(time.time(), time.monotonic())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clock.environment, check=True, capture_output=True, text=True
    )
    wall_s, monotonic_s = map(float, done.stdout.split())
    assert wall_s - time.time() == pytest.approx(DAY_S, abs=60)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=60)


@pytest.mark.anyio
@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_clock_that_steps_loses_and_reorders_nothing(stepped: Instance, clock: SteppedClock) -> None:
    size = Size(producers=6, viewers=12, programs=3, events_per_s=600.0, gives_up=0.0)
    async with open_show(stepped, size) as show:
        token = await log_in(stepped)
        for ahead_s in (DAY_S, 0, -DAY_S, 0):
            clock.set(ahead_s)
            await show.until_at_work(time.monotonic())
            await require_access(stepped, token)
            await require_access(stepped, await log_in(stepped))
            await require_polls(stepped, token, f"polls{ahead_s}-{time.monotonic_ns()}")
        # What looks after the replicas has looked a day ahead; it still sees one die now.
        clock.set(DAY_S)
        await asyncio.sleep(_LOOK_S)
        clock.set(0)
        assert kill(stepped, TITLES["API replica"])
        await show.until_at_work(time.monotonic())
        await require_access_again(stepped, token)
        verdict = await show.close()
        assert verdict.findings == []
        connection = await asyncpg.connect(show.dsn)
        try:
            times = await connection.fetchrow(CREATED, show.programs)
        finally:
            await connection.close()
    assert times["backward"] == 0
    assert times["span_s"] < HOUR_MS / 1_000


async def log_in(instance: Instance) -> dict[str, str]:
    """A new token. After a step back a rate limit may need a moment."""
    async with asyncio.timeout(_AGAIN_S):
        while True:
            try:
                return await asyncio.to_thread(instance.token)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 429:
                    raise
                await asyncio.sleep(int(error.response.headers["Retry-After"]))


async def require_access(instance: Instance, token: dict[str, str]) -> None:
    """The token is neither too old nor too new."""
    reply = await ask(instance, token)
    assert reply.status_code == 200, reply.text


async def require_access_again(instance: Instance, token: dict[str, str]) -> None:
    """It is so, once it is known that a replica has died."""
    async with asyncio.timeout(_AGAIN_S):
        while True:
            with suppress(httpx.TransportError):
                reply = await ask(instance, token)
                if reply.status_code != 503:
                    break
            await asyncio.sleep(_PAUSE_S)
    assert reply.status_code == 200, reply.text


async def ask(instance: Instance, token: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20, headers=token) as client:
        return await client.get(f"{instance.url}/api/v1/users/me")


async def require_polls(instance: Instance, token: dict[str, str], program: str) -> None:
    """Polls open and close by the true time, at both doors, and a key is as old as it is."""
    now_ms = round(time.time() * 1_000)
    times = {
        "open": {"opens": now_ms - HOUR_MS, "closes": now_ms + HOUR_MS},
        "closed": {"closes": now_ms - HOUR_MS},
        "not open yet": {"opens": now_ms + HOUR_MS},
    }
    api = f"{instance.url}/api/v1"
    async with httpx.AsyncClient(timeout=20, headers=token) as client, asyncio.timeout(_AGAIN_S):
        await client.post(f"{api}/programs", json={"id": program, "name": program})
        told = {}
        for name, metadata in times.items():
            event = {"event": "Vote#ask", "metadata": {"measureName": "m", "options": ["a"], **metadata}}
            key = {"Idempotency-Key": f"{name} {now_ms}"}
            events = f"{api}/programs/{program}/events"
            ids = {(await client.post(events, json=event, headers=key)).json()["id"] for _ in range(2)}
            assert len(ids) == 1
            place = {"measureName": "m", "contextId": ids.pop(), "measureValue": 0}
            vote = {"responses": [place | {"visitorId": "http"}]}
            reply = await client.post(f"{api}/responses/demo/undefined/{program}", json=vote)
            told[name] = reply.status_code, await answers(instance, {"programId": program, **place})
    assert told == {"open": (202, {None}), "closed": (409, {409}), "not open yet": (409, {409})}, told


async def answers(instance: Instance, vote: dict[str, object]) -> set[int | None]:
    """The codes of the errors that votes over WebSocket got, of which native code takes the later ones."""
    codes = set()
    async with connect(f"ws://localhost:{instance.ws_port}/api/v1/ws", proxy=None) as socket:
        for number in range(20):
            params = vote | {"visitorId": f"ws {number}"}
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "respond", "params": params}))
            codes.add(json.loads(await socket.recv()).get("error", {}).get("code"))
    return codes
