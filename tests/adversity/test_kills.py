"""Each kind of process is killed once while events flow; nothing is lost, doubled or reordered."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

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


def kill(instance: Instance, title: str) -> int:
    """`kill -9` of the instance's processes with `title` in their command lines; returns how many."""
    killed = 0
    for process in psutil.Process(instance.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # PostgreSQL ends its processes when one of them has died
            if title in " ".join(process.cmdline()):
                process.kill()
                killed += 1
    return killed
