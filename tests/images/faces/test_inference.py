"""`broker.images.faces.inference`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from broker.images.errors import FacesUnavailable
from broker.images.faces.inference import (
    CPU,
    CUDA,
    Network,
    Runtime,
    choose_runtime,
    pad_to_bucket,
)
from broker.images.faces.models import BuiltModels


def test_a_gpu_is_preferred_where_it_may_be_used() -> None:
    runtime = choose_runtime(["TensorrtExecutionProvider", CUDA, CPU], may_use_gpu=True, threads=2)
    assert runtime == Runtime(("CUDAExecutionProvider", "CPUExecutionProvider"), (1, 4, 8, 16), 2)
    assert runtime.is_gpu


@pytest.mark.parametrize(
    ("available", "may_use_gpu"),
    [([CUDA, CPU], False), ([CPU], True), (["AzureExecutionProvider", CPU], True)],
)
def test_else_the_cpu_takes_images_one_by_one(available: list[str], may_use_gpu: bool) -> None:
    runtime = choose_runtime(available, may_use_gpu=may_use_gpu, threads=3)
    assert runtime == Runtime(("CPUExecutionProvider",), (1,), 3)
    assert not runtime.is_gpu


@pytest.mark.parametrize(("count", "bucket"), [(1, 1), (2, 4), (4, 4), (5, 8), (9, 16), (16, 16)])
def test_a_batch_is_padded_to_the_next_bucket(count: int, bucket: int) -> None:
    inputs = np.full((count, 2, 2, 3), 7, np.uint8)
    padded = pad_to_bucket(inputs, (1, 4, 8, 16))
    assert padded.shape == (bucket, 2, 2, 3)
    assert np.all(padded[:count] == 7)
    assert not padded[count:].any()


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_padding_changes_no_result(built: Callable[[str], BuiltModels], cpu: Runtime, count: int) -> None:
    file = built("ssd").landmarks
    inputs = np.random.default_rng(2).integers(0, 256, (count, 112, 112, 3), np.uint8)
    alone = Network(file, cpu)
    together = Network(file, Runtime(cpu.providers, (1, 4), 1))
    expected = np.concatenate([alone.run(inputs[at : at + 1])["points"] for at in range(count)])
    np.testing.assert_allclose(together.run(inputs)["points"], expected, atol=1e-5)


def test_the_provider_that_computes_is_told(built: Callable[[str], BuiltModels], cpu: Runtime) -> None:
    assert Network(built("ssd").landmarks, cpu).provider == "CPUExecutionProvider"


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_where_cuda_cannot_be_loaded_the_cpu_takes_images_one_by_one(
    built: Callable[[str], BuiltModels],
) -> None:
    network = Network(built("ssd").landmarks, choose_runtime([CUDA, CPU], may_use_gpu=True, threads=1))
    assert (network.provider, network.largest_batch) == ("CPUExecutionProvider", 1)


def test_what_is_no_model_is_unavailable(tmp_path: Path, cpu: Runtime) -> None:
    (tmp_path / "net.onnx").write_bytes(b"nothing")
    with pytest.raises(FacesUnavailable, match="cannot be loaded"):
        Network(tmp_path / "net.onnx", cpu)
