"""Running networks: sessions of ONNX Runtime, their providers, and batches of tested sizes.

On a GPU the first run of a batch size costs up to a second: memory is taken and kernels are chosen. So there
are few sizes, each is run once at the start, and a batch is padded to the next one. On a CPU a padded image
costs as much as a real one and a batch saves nothing (four together took 295 ms of CPU time, one 68 ms), so
there images go one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from broker.images.errors import FacesUnavailable

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
GPU_BUCKETS = (1, 4, 8, 16)
CPU_BUCKETS = (1,)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where networks run.

    Attributes:
        providers: of ONNX Runtime, the preferred one first.
        buckets: sizes of batches, ascending, the first one 1.
        threads: that one run computes with on a CPU.
    """

    providers: tuple[str, ...]
    buckets: tuple[int, ...]
    threads: int

    @property
    def is_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self.providers[0] == CUDA


def choose_runtime(available: Sequence[str], *, may_use_gpu: bool, threads: int) -> Runtime:
    """CUDA where there is one and it may be used, else the CPU.

    Args:
        available: the providers that ONNX Runtime was built with.
    """
    if may_use_gpu and CUDA in available:
        return Runtime((CUDA, CPU), GPU_BUCKETS, threads)
    return Runtime((CPU,), CPU_BUCKETS, threads)


def available_providers() -> list[str]:
    """What the installed ONNX Runtime was built with; that a GPU is there it does not say."""
    return list(onnxruntime.get_available_providers())


class Network:
    """One model that is loaded and warm. One run at a time; it lets other threads run meanwhile."""

    def __init__(self, file: Path, runtime: Runtime) -> None:
        if runtime.is_gpu:
            onnxruntime.preload_dlls()  # CUDA's libraries that pip installed lie where no loader looks
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), session_options(runtime), providers=list(runtime.providers)
            )
        except Exception as error:  # its errors are classes of native code without a common base
            raise FacesUnavailable(f"{file} cannot be loaded: {error}") from error
        source = self._session.get_inputs()[0]
        self._input = source.name
        self._shape = tuple(source.shape[1:])
        self.provider: str = self._session.get_providers()[0]
        # Where CUDA cannot be loaded, ONNX Runtime takes the next provider, whose batches are others.
        self._buckets = runtime.buckets if self.provider == runtime.providers[0] else CPU_BUCKETS
        for bucket in self._buckets:
            self._session.run(None, {self._input: np.zeros((bucket, *self._shape), np.uint8)})

    @property
    def largest_batch(self) -> int:
        """Of one run; more inputs are several runs."""
        return self._buckets[-1]

    def run(self, inputs: NDArray[np.uint8]) -> Mapping[str, NDArray[np.float32]]:
        """Every output by its name, in the order of the inputs; there is at least one.

        Args:
            inputs: (N, …) of the model's shape; more than the largest bucket run one bucket after another.
        """
        parts = [self._run(inputs[at : at + self._buckets[-1]]) for at in self._starts(len(inputs))]
        names = [output.name for output in self._session.get_outputs()]
        return {name: np.concatenate([part[at] for part in parts]) for at, name in enumerate(names)}

    def _starts(self, count: int) -> range:
        return range(0, count, self._buckets[-1])

    def _run(self, inputs: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        padded = pad_to_bucket(inputs, self._buckets)
        outputs: list[NDArray[np.float32]] = self._session.run(None, {self._input: padded})
        return [output[: len(inputs)] for output in outputs]


def pad_to_bucket(inputs: NDArray[np.uint8], buckets: Sequence[int]) -> NDArray[np.uint8]:
    """The batch with zeros behind it, as long as the smallest bucket that holds it."""
    bucket = next(bucket for bucket in buckets if bucket >= len(inputs))
    if bucket == len(inputs):
        return inputs
    padding = np.zeros((bucket - len(inputs), *inputs.shape[1:]), np.uint8)
    return np.concatenate([inputs, padding])


def session_options(runtime: Runtime) -> Any:
    """Of every session: bounded threads that sleep between runs, and memory that is given back."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; what fails is raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
