"""Each kind of process is killed once while events flow; nothing is lost, doubled or reordered."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.adversity.show import Show
from tests.running import PASSWORD, Running, run_product

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(240)]

_BEFORE_S = 1.0  # of quiet flow before the kill


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with run_product(tmp_path_factory.mktemp("adversity") / "data", BROKER_DRAIN_S="1") as running:
        yield running


@pytest.mark.parametrize(
    "title",
    [
        "ray::OwnerActor",
        "ray::GatewayActor",
        "ray::ServeReplica",
        "ray::ServeController",
        "postgres: broker",
        "postgres -D",
        "haproxy -db",
        "ray::HAProxyManager",
    ],
)
async def test_nothing_is_lost_or_doubled_when_one_dies(running: Running, title: str) -> None:
    show = Show(running.url, f"show-{secrets.token_hex(4)}", "admin", PASSWORD)
    disturb = asyncio.Event()
    playing = asyncio.create_task(show.run(disturb, producers=3, viewers=5, after=60))
    await asyncio.sleep(_BEFORE_S)
    victims = running.find(title)
    assert victims, f"no process is called {title}"
    kill(victims)
    disturb.set()
    await playing
    show.judge()


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL ends its processes when one of them has died
            process.kill()
