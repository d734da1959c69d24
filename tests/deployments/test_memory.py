"""A machine that is short of memory: Ray ends nothing of the product, and the kernel ends decoders first."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.deployments.image_door import ImageDoor
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

WATCHED_S = 4.0
"""Ray looks every quarter of a second by itself, and every second where it is told to."""


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory, image_server: ImageServer) -> Iterator[Instance]:
    """One on a machine that Ray must take for full: its threshold is a share of all memory."""
    environment = {"RAY_memory_usage_threshold": "0.001", "BROKER_IMAGES_ALLOW_HOSTS": image_server.host}
    instance = Instance(tmp_path_factory.mktemp("full") / "data", environment=environment)
    with instance.running():
        yield instance
        instance.stop()


@pytest.fixture(scope="module")
def door(instance: Instance, image_server: ImageServer) -> Iterator[ImageDoor]:
    with closing(ImageDoor(instance, image_server)) as door:
        yield door


def test_ray_ends_nothing_on_a_full_machine(instance: Instance, door: ImageDoor) -> None:
    assert door.get("w=50").status_code == 200
    kinds = ("api", "owner", "counter", "gateway", "images")
    before = {kind: door.pids(kind) for kind in kinds}
    assert [kind for kind, pids in before.items() if not pids] == []
    until_s = time.monotonic() + WATCHED_S
    number = 0
    while time.monotonic() < until_s:
        number += 1
        assert door.get("w=50", f"/a.png?{number}").status_code == 200
        assert httpx.get(f"{instance.ops_url}/readyz", timeout=30).status_code == 200
    assert {kind: door.pids(kind) for kind in kinds} == before


def test_the_kernel_ends_decoders_before_anything_else(instance: Instance, door: ImageDoor) -> None:
    door.get("w=50", "/b.png")
    decoders = {process.pid for process in door.decoders()}
    assert decoders
    adjusted = {pid: read_adjustment(pid) for pid in instance.processes()}
    assert {adjusted[pid] for pid in decoders} == {900}
    assert max(value for pid, value in adjusted.items() if pid not in decoders) <= 0


def read_adjustment(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
