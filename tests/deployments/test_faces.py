"""`broker.deployments.faces`: what a replica claims, and what its callers meet."""

import asyncio
import os
import warnings
from typing import Any

import pytest
from ray.exceptions import RayActorError

from broker.images.errors import FacesUnavailable
from broker.images.geometry import Face, Size
from broker.settings import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Serve's use of pydantic is its own business
    from ray.serve.exceptions import BackPressureError

    from broker.deployments.faces import (
        FaceRefusal,
        ServedFaceFinder,
        build_faces,
        deployment_options,
        hide_gpus_unless_given,
    )

CPUS = {"CPU": 2.0, "memory": 8e9}
GPUS = {"CPU": 16.0, "GPU": 1.0}
FACE = Face(1, 2, 3, 4, 0.9)


def test_without_a_gpu_replicas_claim_cpus_only() -> None:
    options = deployment_options(Settings(), CPUS)
    assert options["ray_actor_options"] == {"num_cpus": 0.1, "memory": 268_435_456}
    assert options["autoscaling_config"]["target_ongoing_requests"] == 2


def test_memory_is_claimed_where_it_keeps_no_replica_from_its_start() -> None:
    for resources in ({"CPU": 2.0}, {"CPU": 2.0, "memory": 500e6}):
        assert deployment_options(Settings(), resources)["ray_actor_options"] == {"num_cpus": 0.1}
    assert "memory" in deployment_options(Settings(), {"CPU": 2.0, "memory": 1.2e9})["ray_actor_options"]


def test_with_a_gpu_they_share_it() -> None:
    options = deployment_options(Settings(faces_gpu_share=0.5), GPUS)
    assert options["ray_actor_options"]["num_gpus"] == 0.5
    assert options["autoscaling_config"]["target_ongoing_requests"] == 16


def test_a_gpu_that_is_gone_is_not_claimed() -> None:
    assert "num_gpus" not in deployment_options(Settings(), {"CPU": 2.0, "GPU": 0.0})["ray_actor_options"]


def test_there_are_none_while_nobody_asks_and_they_leave_late() -> None:
    scaling = deployment_options(Settings(faces_replicas_max=7), CPUS)["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (0, 7)
    assert scaling["downscale_delay_s"] >= 300


def test_serve_takes_the_options() -> None:
    for resources in (CPUS, GPUS):
        build_faces(Settings(), resources)


def test_an_actor_without_a_gpu_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    hide_gpus_unless_given(["1"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    hide_gpus_unless_given([])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


class Handle:
    """Serve's handle as far as it is used; replies are given beforehand."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.find = self
        self.parts: tuple[bytes, ...] = ()

    async def remote(self, size: Size, *parts: bytes) -> Any:
        self.parts = parts
        if isinstance(self._reply, BaseException):
            raise self._reply
        if self._reply is None:
            await asyncio.Event().wait()
        return self._reply


def ask(reply: Any, timeout_s: float = 30) -> tuple[Face, ...]:
    finder = ServedFaceFinder(timeout_s, Handle(reply))  # type: ignore[arg-type]  # all of a handle that is used
    return asyncio.run(finder.find(Size(1, 1), bytes(3)))


def test_faces_come_back_as_they_were_found() -> None:
    assert ask((FACE,)) == (FACE,)


def test_pixels_travel_in_parts_that_ray_puts_into_no_object_store() -> None:
    handle, pixels = Handle((FACE,)), os.urandom(640 * 640 * 3)
    finder = ServedFaceFinder(30, handle)  # type: ignore[arg-type]  # all of a handle that is used
    assert asyncio.run(finder.find(Size(640, 640), pixels)) == (FACE,)
    assert b"".join(handle.parts) == pixels
    assert max(map(len, handle.parts)) < 100 << 10  # max_direct_call_object_size, with some room for a head
    assert len(pixels) < 10 << 20  # task_rpc_inlined_bytes_limit, of all of a call


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (FaceRefusal("no models"), "no models"),
        (RayActorError(), "no face-detection replica"),
        (BackPressureError(num_queued_requests=64, max_queued_requests=64), "no face-detection replica"),
    ],
)
def test_whatever_is_in_the_way_is_unavailable(reply: object, reason: str) -> None:
    with pytest.raises(FacesUnavailable, match=reason):
        ask(reply)


def test_a_replica_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(FacesUnavailable, match="no reply within"):
        ask(None, timeout_s=0.01)
