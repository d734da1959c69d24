"""A `FaceFinder` in this process: models loaded once, their thread, batches and a time-out."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker.concurrency.tasks import cancel_and_wait
from broker.images.errors import FacesUnavailable
from broker.images.faces.batcher import FaceBatcher
from broker.images.faces.models import InsightFaceModels, find_models
from broker.images.faces.net import FaceNet
from broker.images.faces.resampling import Pixels
from broker.images.geometry import Face, Size
from broker.settings import Settings


@dataclass(frozen=True, slots=True)
class FacesConfig:
    """Which models find faces, and how long that may take.

    Attributes:
        models: directory of an operator's models; None for those that the build made.
        detector: `ssd` or `tiny`, of the latter.
        min_score: below it a box is no face, 0 to 1.
        timeout_s: of one image, with its waiting.
        waiting: images that wait; more are refused.
        may_use_gpu: whether one that is there is used.
        threads: of one run on a CPU; 0 is half of the cores, at most 4.
    """

    models: Path | None = None
    detector: str = "ssd"
    min_score: float = 0.5
    timeout_s: float = 10.0
    waiting: int = 64
    may_use_gpu: bool = False
    threads: int = 0

    @classmethod
    def of(cls, settings: Settings, *, may_use_gpu: bool) -> "FacesConfig":
        """What the settings say of faces."""
        return cls(
            models=Path(settings.faces_models) if settings.faces_models else None,
            detector=settings.faces_detector,
            min_score=settings.faces_min_score,
            timeout_s=settings.faces_timeout_s,
            may_use_gpu=may_use_gpu,
        )


class LocalFaceFinder:
    """Runs the models in a thread of its own. `close` ends it.

    Models are loaded by `start`, or when a face is first looked for. Where that fails, it is not tried again.
    """

    def __init__(self, config: FacesConfig) -> None:
        self._config = config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="faces")
        self._net: asyncio.Task[FaceNet] | None = None
        self._batcher: FaceBatcher[Pixels, tuple[Face, ...]] | None = None

    async def start(self) -> str:
        """Load and warm the models; the provider of ONNX Runtime that computes.

        Raises:
            FacesUnavailable: there are none that run here.
        """
        if self._net is None:
            self._net = asyncio.create_task(self._load())
        return (await asyncio.shield(self._net)).provider

    async def find(self, size: Size, pixels: bytes) -> tuple[Face, ...]:
        """The faces, in pixels of the image. Any number of calls may run at once; safe to cancel.

        Args:
            pixels: `(height, width, 3)` uint8 sRGB, row-major.

        Raises:
            FacesUnavailable: there is no model, too much waits, or there is no answer in time.
        """
        image = np.frombuffer(pixels, np.uint8).reshape(size.height, size.width, 3)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await self.start()
                assert self._batcher is not None, "`_load` makes it before it comes back"
                return await self._batcher.submit(image)
        except TimeoutError:
            raise FacesUnavailable(f"no reply within {self._config.timeout_s:g} s") from None

    async def close(self) -> None:
        """End what waits, and the thread when its run is over."""
        if self._batcher is not None:
            await self._batcher.close()
        await cancel_and_wait(self._net)
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _load(self) -> FaceNet:
        loop = asyncio.get_running_loop()
        net = await loop.run_in_executor(self._thread, load_net, self._config)

        async def run(images: Sequence[Pixels]) -> Sequence[tuple[Face, ...]]:
            return await loop.run_in_executor(self._thread, _find, net, images)

        self._batcher = FaceBatcher(run, largest=net.largest_batch, waiting=self._config.waiting)
        return net


def load_net(config: FacesConfig) -> FaceNet:
    """The models of a configuration, loaded and warm. Blocks.

    Raises:
        FacesUnavailable: there are none that run here.
    """
    models = find_models(config.models, config.detector)
    try:
        from broker.images.faces.inference import available_providers, choose_runtime
    except ImportError as error:
        raise FacesUnavailable(f"ONNX Runtime cannot be loaded: {error}") from error
    runtime = choose_runtime(
        available_providers(), may_use_gpu=config.may_use_gpu, threads=config.threads or _threads()
    )
    if isinstance(models, InsightFaceModels):
        from broker.images.faces.insightface_net import InsightFaceNet

        return InsightFaceNet(models.directory, runtime, config.min_score)
    from broker.images.faces.built_net import BuiltNet

    return BuiltNet(models, runtime, config.min_score)


def _find(net: FaceNet, images: Sequence[Pixels]) -> Sequence[tuple[Face, ...]]:
    try:
        return net.find(images)
    except Exception as error:  # of native code: what one run fails with is no fault of the caller's
        raise FacesUnavailable(f"the face detector failed: {error}") from error


def _threads() -> int:
    """Of one run: half of the cores, since decoders want some, and at most 4: a replica is one of several."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))
