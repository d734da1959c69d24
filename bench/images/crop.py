"""A crop by face through the whole product, beside the sum of its parts called alone; and the second crop."""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

from bench.images.instance import ImageInstance, running_images, running_upstream
from bench.images.photographs import portrait_jpeg
from bench.report import Medians
from bench.rest.instance import process_cpu_s
from bench.scenes import Outcome
from broker.images.decoding import check_image, open_libvips
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import choose_runtime
from broker.images.faces.models import BuiltModels, find_models
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import preview, render

SOURCE = (4_000, 3_000)
MOST = 1.1
"""Times the sum of decoding, detection, landmarks and encoding alone."""
_ROUNDS = 5
"""Product and parts take turns, so that what else the machine does meets both; each figure is a median."""
_OPTIONS = "w=400,h=400,fit=face,f=jpg"
_SECOND = "w=400,h=400,fit=face-and-shoulders,f=webp"
_WARM = 3
_PARTS = ("images", "faces", "ingress")


def measure_crop(images: int) -> Outcome:
    """CPU of one crop by all processes of the product, of its parts alone, and searches for faces."""
    body = portrait_jpeg(*SOURCE)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        (directory / "photograph.jpg").write_bytes(body)
        _, address = stack.enter_context(running_upstream(directory))
        instance = stack.enter_context(running_images(address))
        instance.wait_for_faces("photograph.jpg")
        for number in range(_WARM):
            instance.get(_OPTIONS, f"photograph.jpg?salt=warm-{number}")
        alone = Parts(body)
        sources = [f"photograph.jpg?salt={number}" for number in range(images)]
        rounds = [sources[at::_ROUNDS] for at in range(min(_ROUNDS, images))]
        before = count_searches(instance)
        measured = [(alone.measure(len(some)), measure_product(instance, some)) for some in rounds]
        searches = count_searches(instance) - before
        seconds = [sum(measure_requests(instance, _SECOND, some).values()) for some in rounds]
        again = count_searches(instance) - before - searches
    alone_ms, product_ms = (medians(side) for side in zip(*measured, strict=True))
    shares = [ours["CPU_ms"] / sum(parts.values()) for parts, ours in measured]
    scenes = {
        "parts alone": alone_ms,
        "crop by face": product_ms
        | {"of_the_parts": statistics.median(shares), "searches": searches / images},
        "second crop of the same source": {
            "CPU_ms": statistics.median(seconds),
            "searches": again / images,
        },
    }
    faults = [f"{again:.0f} searches for faces that were known"] if again else []
    return scenes, faults


def measure_product(instance: ImageInstance, sources: list[str]) -> dict[str, float]:
    """CPU of one crop by all processes, ms, in all and by part; sources are new ones."""
    replicas_s = own_cpu_s(instance.pids("images"))
    found = measure_requests(instance, _OPTIONS, sources)
    replica_ms = (own_cpu_s(instance.pids("images")) - replicas_s) / len(sources) * 1_000
    return {
        "CPU_ms": sum(found.values()),
        **{f"{part}_CPU_ms": figure for part, figure in found.items()},
        "images_without_decoders_CPU_ms": replica_ms,
    }


def measure_requests(instance: ImageInstance, options: str, sources: list[str]) -> dict[str, float]:
    """Part of the product → CPU of one request, ms."""
    before = {part: instance.cpu_s(part) for part in _PARTS}
    for source in sources:
        instance.get(options, source)
    return {part: (instance.cpu_s(part) - before[part]) / len(sources) * 1_000 for part in _PARTS}


def count_searches(instance: ImageInstance) -> float:
    """How often faces have been looked for."""
    return instance.count("broker_face_searches_total")


def own_cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes without their children."""
    return sum(map(process_cpu_s, pids))


class Parts:
    """The work of one crop in this process, without any of the service around it; warm."""

    def __init__(self, body: bytes) -> None:
        open_libvips()
        limits, options = DecodeLimits(), parse_options(_OPTIONS)
        models = find_models(None, "ssd")
        assert isinstance(models, BuiltModels), "the build makes them"
        net = BuiltNet(models, choose_runtime(["CPUExecutionProvider"], may_use_gpu=False, threads=1), 0.5)
        checked = check_image(body, limits)
        small = preview(checked)
        pixels = np.frombuffer(small.pixels, np.uint8).reshape(small.size.height, small.size.width, 3)
        (faces,) = net.find([pixels])
        in_source = tuple(face.scaled(small.scale) for face in faces)
        self._acts: dict[str, Callable[[], object]] = {
            "decode_CPU_ms": lambda: preview(check_image(body, limits)),
            "detection_and_landmarks_CPU_ms": lambda: net.find([pixels]),
            "crop_and_encode_CPU_ms": lambda: render(check_image(body, limits), options, in_source),
        }
        self.measure(_WARM)

    def measure(self, images: int) -> dict[str, float]:
        """Part → CPU of one image, ms."""
        return {name: cpu_ms(act, images) for name, act in self._acts.items()}


def cpu_ms(act: Callable[[], object], times: int) -> float:
    """CPU of one call, ms, of all threads."""
    process = psutil.Process(os.getpid())
    before = process.cpu_times()
    for _ in range(times):
        act()
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / times * 1_000


def medians(rounds: Iterable[dict[str, float]]) -> Medians:
    """Of each figure."""
    found = list(rounds)
    return {name: statistics.median(figures[name] for figures in found) for name in found[0]}


def targets() -> dict[str, dict[str, float]]:
    """What must not be passed."""
    return {"crop by face": {"of_the_parts": MOST}}
