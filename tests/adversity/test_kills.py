"""Each kind of process dies while events flow; nothing is lost, doubled or reordered."""

import asyncio
import secrets

import pytest

from tests.adversity.faults import TITLES, kill
from tests.adversity.show import SdkShow
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

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
