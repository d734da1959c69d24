"""Face detection as a deployment of Ray Serve that is reached through handles only.

It has replicas only while images need them, on a share of a GPU where the cluster has any, else on CPUs;
the class is the same. What a replica is given decides where it computes. Ray hides no GPU from an actor that
claims none, so such an actor hides them itself.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from broker import heap
from broker.concurrency.tasks import keep_running, run_once
from broker.logs import configure_logs
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.images.geometry import Face, Size
    from broker.metrics.counts import Sample

NAME = "Faces"
APPLICATION = "faces"

_CPUS = 0.1  # a claim, not a limit: replicas must fit beside everything else on two cores
_MEMORY_BYTES = 256 << 20  # the SSD detector takes 220 MiB on a CPU
_ROOM = 4  # times as much must be there for it to be claimed, so that a small machine has faces, too
_WAITING = 64  # images of one replica at a time, and as many in each caller's queue
_GPU_IMAGES = 16  # under way in a replica on the average; it is what its largest batch takes
_CPU_IMAGES = 2
_PART_BYTES = 96_000
"""Of pixels in one argument. Ray puts arguments of over 100 KiB into the object store of the node, and
smaller ones into the call: 0.9 MB of pixels took 9.6 ms of CPU in caller, raylet and replica as one argument,
and 6.3 ms in parts (medians of 4 rounds of 60 calls in turns, load 7 to 9)."""
_DOWNSCALE_S = 300  # a model takes seconds to load, and shows have pauses

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FaceRefusal:
    """Why a replica could not look. A value, because Serve wraps and logs what is raised."""

    reason: str


def deployment_options(settings: Settings, resources: Mapping[str, float]) -> dict[str, Any]:
    """How Serve runs the deployment.

    Args:
        resources: of the whole cluster, as `ray.cluster_resources()` names them.
    """
    has_gpu = resources.get("GPU", 0) > 0
    actor: dict[str, Any] = {"num_cpus": _CPUS}
    if resources.get("memory", 0) >= _ROOM * _MEMORY_BYTES:
        actor["memory"] = _MEMORY_BYTES
    if has_gpu:
        actor["num_cpus"] = 0  # a node may be for GPUs alone
        actor["num_gpus"] = settings.faces_gpu_share
    return {
        "max_ongoing_requests": _WAITING,
        "max_queued_requests": _WAITING,
        "autoscaling_config": {
            "min_replicas": 0,
            "max_replicas": settings.faces_replicas_max,
            "target_ongoing_requests": _GPU_IMAGES if has_gpu else _CPU_IMAGES,
            "upscale_delay_s": 3,
            "downscale_delay_s": _DOWNSCALE_S,
        },
        "ray_actor_options": actor,
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "graceful_shutdown_timeout_s": settings.faces_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 3,
        "health_check_timeout_s": 30,  # loading models keeps an interpreter busy
    }


def build_faces(settings: Settings, resources: Mapping[str, float]) -> serve.Application:
    """The deployment, bound: an application, or an argument that makes another deployment get its handle."""
    deployment = serve.deployment(name=NAME, **deployment_options(settings, resources))(FacesReplica)
    application: serve.Application = deployment.bind(settings)
    return application


def faces_target(settings: Settings) -> serve.RunTarget:
    """The deployment as an application of its own, without a route, for `serve.run_many`. Asks Ray."""
    resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray leaves it so
    return serve.RunTarget(build_faces(settings, resources), name=APPLICATION, route_prefix=None)


def find_served_faces(settings: Settings) -> "ServedFaceFinder":
    """Who asks the deployment, from a process that is connected to Ray. It need not be there yet."""
    return ServedFaceFinder(settings.faces_timeout_s)


class FacesReplica:
    """One replica: models in its process, on the GPU that Ray gave it or on the CPU."""

    def __init__(self, settings: Settings) -> None:
        # Not above: the conductor, which makes the deployment and no more, would hold all of it.
        from broker.clock import SystemClock
        from broker.deployments.ray_internals.replica_listeners import close_grpc
        from broker.images.faces.finder import FacesConfig, LocalFaceFinder
        from broker.metrics.exporter import Exporter
        from broker.operations.face_state import KIND

        configure_logs(settings, KIND)
        close_grpc()
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        hide_gpus_unless_given(gpus)
        config = FacesConfig.of(settings, may_use_gpu=bool(gpus))
        self._finder = LocalFaceFinder(config)
        self._config = config
        self._provider = ""
        self._exporter = Exporter(KIND, KIND, settings.data_dir, SystemClock(), [self._figures])
        self._start = run_once("face models", self._warm())

    async def find(self, size: "Size", *parts: bytes) -> "tuple[Face, ...] | FaceRefusal":
        """The faces of `(height, width, 3)` uint8 sRGB, in parts, or why nobody looked for them."""
        from broker.images.errors import FacesUnavailable

        try:
            return await self._finder.find(size, b"".join(parts))
        except FacesUnavailable as error:
            return FaceRefusal(error.message)

    async def check_health(self) -> None:
        """Answer; a loop that hangs does not."""
        await asyncio.sleep(0)

    async def _warm(self) -> None:
        from broker.images.errors import FacesUnavailable

        await self._exporter.start()
        try:
            self._provider = await self._finder.start()
            _log.info("faces_ready", extra={"provider": self._provider})
        except FacesUnavailable as error:
            _log.warning("faces_unavailable", extra={"reason": error.message})
        self._trimming = keep_running("heap", heap.keep_trimmed)  # after the models, which stay

    def _figures(self) -> "Iterator[Sample]":
        from broker.metrics import catalogue
        from broker.metrics.counts import Sample

        models = str(self._config.models or self._config.detector)
        yield Sample(catalogue.FACE_MODELS.name, (models, self._provider), int(bool(self._provider)))


def hide_gpus_unless_given(gpus: list[str]) -> None:
    """Leave this process without GPUs if Ray gave it none; before anything loads CUDA."""
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class ServedFaceFinder:
    """A `FaceFinder` that asks the deployment."""

    def __init__(self, timeout_s: float, handle: DeploymentHandle[Any] | None = None) -> None:
        """A finder that has asked nobody yet.

        Args:
            timeout_s: of one image; starting a first replica took 3 seconds.
            handle: of the deployment; without one, Serve is asked for it with the first image.
        """
        self._timeout_s = timeout_s
        self._handle = handle

    async def find(self, size: "Size", pixels: bytes) -> "tuple[Face, ...]":
        """The faces, in pixels of the image. Any number of calls may run at once; safe to cancel.

        Args:
            pixels: `(height, width, 3)` uint8 sRGB, row-major.

        Raises:
            FacesUnavailable: no replica is there in time, too much waits, or it has no models.
        """
        from broker.images.errors import FacesUnavailable

        try:
            async with asyncio.timeout(self._timeout_s):
                if self._handle is None:
                    self._handle = serve.get_deployment_handle(NAME, APPLICATION)
                reply = await self._handle.find.remote(size, *_split(pixels))
        except TimeoutError:
            raise FacesUnavailable(f"no reply within {self._timeout_s:g} s") from None
        except (RayError, RayServeException) as error:
            raise FacesUnavailable(f"no face-detection replica is available: {error}") from error
        if isinstance(reply, FaceRefusal):
            raise FacesUnavailable(reply.reason)
        faces: tuple[Face, ...] = reply
        return faces


def _split(pixels: bytes) -> list[bytes]:
    return [pixels[at : at + _PART_BYTES] for at in range(0, len(pixels), _PART_BYTES)]
