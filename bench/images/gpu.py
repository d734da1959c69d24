"""The detector on a GPU, batched and not, beside the CPU's: only where ONNX Runtime finds one."""

import time
from collections.abc import Callable

import numpy as np

from bench.images.crop import Parts
from bench.images.photographs import portrait_jpeg
from bench.scenes import Outcome
from broker.images.decoding import check_image, open_libvips
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import CUDA, Runtime, available_providers, choose_runtime
from broker.images.faces.models import BuiltModels, find_models
from broker.images.jobs import DecodeLimits
from broker.images.rendering import preview

CORES = 16
"""Of the node that requests a second are projected for."""
NOT_MEASURED = "GPU: not measured, because none is here"
_BATCH = 16


def measure_gpu(times: int) -> Outcome:
    """Images a second of the detector, and what a node with one GPU could serve; nothing without a GPU."""
    cpu, gpu = (choose_runtime(available_providers(), may_use_gpu=may, threads=1) for may in (False, True))
    body = portrait_jpeg(2_000, 1_500)
    if not gpu.is_gpu or not _computes_on_gpu(gpu):
        print(NOT_MEASURED)
        return {}, []
    open_libvips()
    small = preview(check_image(body, DecodeLimits()))
    pixels = np.frombuffer(small.pixels, np.uint8).reshape(small.size.height, small.size.width, 3)
    on_cpu, on_gpu = load(cpu), load(gpu)
    cpu_per_s = 1 / seconds(lambda: on_cpu.find([pixels]), times)
    one_per_s = 1 / seconds(lambda: on_gpu.find([pixels]), times)
    batch_per_s = _BATCH / seconds(lambda: on_gpu.find([pixels] * _BATCH), times)
    parts_ms = Parts(body).measure(times)
    other_ms = parts_ms["decode_CPU_ms"] + parts_ms["crop_and_encode_CPU_ms"]
    figures = {"CPU_per_s": cpu_per_s, "one_by_one_per_s": one_per_s, "batched_per_s": batch_per_s}
    return {"detection on a GPU": figures | project(batch_per_s, cpu_per_s, other_ms)}, []


def project(batch_per_s: float, cpu_per_s: float, other_ms: float) -> dict[str, float]:
    """What the detector's rates mean for a request and for a node.

    Args:
        batch_per_s: images of the GPU, and `cpu_per_s` of one core.
        other_ms: CPU of a request beside detection, which the node's cores share.
    """
    return {
        "of_the_CPU": batch_per_s / cpu_per_s,
        "share_of_a_request": 1_000 / batch_per_s / (1_000 / batch_per_s + other_ms),
        f"projected_per_s_of_{CORES}_cores": min(batch_per_s, CORES * 1_000 / other_ms),
    }


def _computes_on_gpu(runtime: Runtime) -> bool:
    """Whether CUDA can be loaded and has a device; that ONNX Runtime was built with it says neither."""
    return load(runtime).provider == CUDA


def load(runtime: Runtime) -> BuiltNet:
    """The default models."""
    models = find_models(None, "ssd")
    assert isinstance(models, BuiltModels), "the build makes them"
    return BuiltNet(models, runtime, 0.5)


def seconds(act: Callable[[], object], times: int) -> float:
    """Of one call."""
    act()
    began_s = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - began_s) / times
