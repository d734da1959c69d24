"""Each kind of process dies or is exchanged while events flow; nothing is lost, doubled or reordered."""

import asyncio
import secrets
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.adversity.faults import find, kill
from tests.adversity.show import Show
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

_BEFORE_S = 1.0  # of quiet flow before the kill


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("adversity") / "data")
    instance.start()
    yield instance
    instance.end()


@pytest.mark.parametrize(
    "title",
    [
        "ray::OwnerActor",
        "ray::GatewayActor",
        "ray::ServeReplica",
        "ray::ServeController",
        "ray::HAProxyManager",
        "haproxy -db",
        "postgres: broker",
        "postgres -D",
        "broker.deployments.conductor",
    ],
)
async def test_nothing_is_lost_or_doubled_when_one_dies(instance: Instance, title: str) -> None:
    show = Show(instance.url, f"show-{secrets.token_hex(4)}", "admin", PASSWORD)
    disturb = asyncio.Event()
    playing = asyncio.create_task(show.run(disturb, producers=3, viewers=5, after=60))
    await asyncio.sleep(_BEFORE_S)
    assert kill(instance, title), f"no process is called {title}"
    disturb.set()
    await playing
    show.judge()


async def test_nothing_is_lost_or_doubled_while_gateways_and_replicas_are_exchanged(
    instance: Instance,
) -> None:
    show = Show(instance.url, f"show-{secrets.token_hex(4)}", "admin", PASSWORD)
    disturb = asyncio.Event()
    playing = asyncio.create_task(show.run(disturb, producers=3, viewers=5, after=120))
    await asyncio.sleep(_BEFORE_S)
    old = find(instance, "ray::GatewayActor")
    instance.process.send_signal(signal.SIGHUP)
    # `psutil` waits for processes that are not our children by asking; a thread keeps the show going.
    _, alive = await asyncio.to_thread(psutil.wait_procs, old, 60)
    assert alive == []
    disturb.set()
    await playing
    show.judge()
