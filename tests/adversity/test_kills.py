"""Each kind of process dies while events flow; nothing is lost, doubled or reordered."""

import asyncio
import secrets

import pytest

from tests.adversity.faults import RAY_TITLES, TITLES, find, kill
from tests.adversity.show import SdkShow
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

_CONDUCTOR = TITLES["Ray with everything on it"]
_TAKE_OVER_S = 300.0  # on a machine that does other things too; alone it takes ten seconds
_BEFORE_S = 1.0  # of quiet flow before the kill


@pytest.mark.parametrize("title", TITLES.values(), ids=TITLES)
async def test_nothing_is_lost_or_doubled_when_one_dies(instance: Instance, title: str) -> None:
    show = SdkShow(instance.url, f"show-{secrets.token_hex(4)}", "admin", PASSWORD)
    disturb = asyncio.Event()
    playing = asyncio.create_task(show.run(disturb, producers=3, viewers=5, after=60))
    await asyncio.sleep(_BEFORE_S)
    assert kill(instance, title), f"no process is called {title}"
    disturb.set()
    await playing
    assert show.judge() == []


@pytest.mark.parametrize("title", RAY_TITLES.values(), ids=RAY_TITLES)
async def test_another_ray_takes_over_from_a_damaged_one(instance: Instance, title: str) -> None:
    show = SdkShow(instance.url, f"show-{secrets.token_hex(4)}", "admin", PASSWORD)
    disturb = asyncio.Event()
    playing = asyncio.create_task(show.run(disturb, producers=3, viewers=5, after=60))
    await asyncio.sleep(_BEFORE_S)
    damaged = find(instance, _CONDUCTOR)
    assert kill(instance, title) == 1
    async with asyncio.timeout(_TAKE_OVER_S):
        while any(process.is_running() for process in damaged):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
    assert len(find(instance, title)) == 1
    assert kill(instance, TITLES["owner"])  # and it replaces what dies
    disturb.set()
    await playing
    assert show.judge() == []
