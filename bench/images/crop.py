"""A crop by face through the whole product, beside the sum of its parts called alone; and the second crop."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

from bench.images.instance import running_images, running_upstream
from bench.images.photographs import portrait_jpeg
from bench.rest.instance import process_cpu_s
from bench.scenes import Outcome
from broker.images.decoding import open_libvips
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import choose_runtime
from broker.images.faces.models import BuiltModels, find_models
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import preview, render

SOURCE = (4_000, 3_000)
MOST = 1.1
"""Times the sum of decoding, detection, landmarks and encoding alone."""
_OPTIONS = "w=400,h=400,fit=face,f=jpg"
_SECOND = "w=400,h=400,fit=face-and-shoulders,f=webp"
_WARM = 3


def measure_crop(pictures: int) -> Outcome:
    """CPU of one crop by all processes of the product, of its parts alone, and searches for faces."""
    body = portrait_jpeg(*SOURCE)
    alone = measure_parts(body, pictures)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        (directory / "photograph.jpg").write_bytes(body)
        _, address = stack.enter_context(running_upstream(directory))
        instance = stack.enter_context(running_images(address))
        instance.wait_for_faces("photograph.jpg")
        for number in range(_WARM):
            instance.get(_OPTIONS, f"photograph.jpg?salt=warm-{number}")
        parts = ("images", "faces", "ingress")
        before = {part: instance.cpu_s(part) for part in parts}
        replicas_s = own_cpu_s(instance.pids("images"))
        searched = instance.count("broker_face_searches_total")
        for number in range(pictures):
            instance.get(_OPTIONS, f"photograph.jpg?salt={number}")
        first = {part: (instance.cpu_s(part) - before[part]) / pictures * 1_000 for part in parts}
        replica_ms = (own_cpu_s(instance.pids("images")) - replicas_s) / pictures * 1_000
        searches = instance.count("broker_face_searches_total") - searched
        before_s = instance.cpu_s(*parts)
        for number in range(pictures):
            instance.get(_SECOND, f"photograph.jpg?salt={number}")
        second_ms = (instance.cpu_s(*parts) - before_s) / pictures * 1_000
        again = instance.count("broker_face_searches_total") - searched - searches
    total_ms = sum(first.values())
    scenes = {
        "parts alone": {f"{part}_CPU_ms": figure for part, figure in alone.items()},
        "crop by face": {
            "CPU_ms": total_ms,
            **{f"{part}_CPU_ms": figure for part, figure in first.items()},
            "images_without_decoders_CPU_ms": replica_ms,
            "of_the_parts": total_ms / sum(alone.values()),
            "searches": searches / pictures,
        },
        "second crop of the same source": {"CPU_ms": second_ms, "searches": again / pictures},
    }
    faults = [f"{again:.0f} searches for faces that were known"] if again else []
    return scenes, faults


def own_cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes without their children."""
    return sum(map(process_cpu_s, pids))


def measure_parts(body: bytes, pictures: int) -> dict[str, float]:
    """Part → CPU of one picture, ms, in this process, without any of the service around it."""
    open_libvips()
    limits, options = DecodeLimits(), parse_options(_OPTIONS)
    models = find_models(None, "ssd")
    assert isinstance(models, BuiltModels), "the build makes them"
    net = BuiltNet(models, choose_runtime(["CPUExecutionProvider"], may_use_gpu=False, threads=1), 0.5)
    small = preview(body, limits)
    pixels = np.frombuffer(small.pixels, np.uint8).reshape(small.size.height, small.size.width, 3)
    (faces,) = net.find([pixels])
    in_source = tuple(face.scaled(small.scale) for face in faces)
    return {
        "decode": cpu_ms(lambda: preview(body, limits), pictures),
        "detection_and_landmarks": cpu_ms(lambda: net.find([pixels]), pictures),
        "crop_and_encode": cpu_ms(lambda: render(body, options, in_source, limits), pictures),
    }


def cpu_ms(act: Callable[[], object], times: int) -> float:
    """CPU of one call, ms, of all threads; the first calls do not count."""
    for _ in range(_WARM):
        act()
    process = psutil.Process(os.getpid())
    before = process.cpu_times()
    for _ in range(times):
        act()
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / times * 1_000


def targets() -> dict[str, dict[str, float]]:
    """What must not be passed."""
    return {"crop by face": {"of_the_parts": MOST}}
