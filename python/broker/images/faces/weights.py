"""The weights of one network of face-api, as TensorFlow.js stores them.

A manifest names tensors in the order in which their bytes follow each other in the binary files beside it.
A quantised tensor is an integer per weight: `value * scale + min`
(https://github.com/tensorflow/tfjs/tree/master/tfjs-converter, "Weight quantization").
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[np.float32]


class WeightsError(Exception):
    """A manifest and its bytes do not fit together; the text says where."""


def read_weights(folder: Path, network: str) -> Mapping[str, Array]:
    """Every tensor of a network, by name, in the shape that TensorFlow gives it.

    Raises:
        OSError: a file is missing.
        WeightsError: there are fewer or more bytes than the manifest names.
    """
    tensors: dict[str, Array] = {}
    for group in orjson.loads((folder / f"{network}-weights_manifest.json").read_bytes()):
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        at = 0
        for entry in group["weights"]:
            tensors[entry["name"]], at = _tensor(entry, content, at)
        if at != len(content):
            raise WeightsError(f"{network}: {len(content) - at} bytes are left after the last tensor")
    return tensors


def _tensor(entry: Mapping[str, Any], content: bytes, at: int) -> tuple[Array, int]:
    """One tensor that begins at byte `at`, and where it ends."""
    quantization = entry.get("quantization")
    kind = np.dtype(quantization["dtype"] if quantization else entry["dtype"])
    count = int(np.prod(entry["shape"]))
    end = at + count * kind.itemsize
    if end > len(content):
        raise WeightsError(f"{entry['name']}: {end - len(content)} bytes are missing")
    values = np.frombuffer(content, kind, count, at).astype(np.float32)
    if quantization:
        values = values * np.float32(quantization["scale"]) + np.float32(quantization["min"])
    return values.reshape(entry["shape"]), end
