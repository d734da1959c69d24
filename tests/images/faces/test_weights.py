"""`broker.images.faces.weights`."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from broker.images.faces.weights import WeightsError, read_weights

PLAIN = {"name": "plain", "dtype": "float32", "shape": [2]}
SMALL = {
    "name": "small",
    "dtype": "float32",
    "shape": [1, 3],
    "quantization": {"dtype": "uint8", "scale": 0.5, "min": -1.0},
}


def written(folder: Path, entries: list[dict[str, Any]], content: bytes) -> Path:
    (folder / "net.bin").write_bytes(content)
    manifest = [{"weights": entries, "paths": ["net.bin"]}]
    (folder / "net-weights_manifest.json").write_bytes(orjson.dumps(manifest))
    return folder


def test_tensors_follow_each_other_and_are_scaled(tmp_path: Path) -> None:
    content = np.array([1.5, -2.0], np.float32).tobytes() + bytes([0, 2, 255])
    tensors = read_weights(written(tmp_path, [PLAIN, SMALL], content), "net")
    assert tensors["plain"].tolist() == [1.5, -2.0]
    assert tensors["small"].tolist() == [[-1.0, 0.0, 126.5]]


def test_several_files_are_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(np.float32(1).tobytes()[:3])
    (tmp_path / "b").write_bytes(np.float32(1).tobytes()[3:] + np.float32(2).tobytes())
    manifest = [{"weights": [PLAIN], "paths": ["a", "b"]}]
    (tmp_path / "net-weights_manifest.json").write_bytes(orjson.dumps(manifest))
    assert read_weights(tmp_path, "net")["plain"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("count", "fault"), [(7, "1 bytes are missing"), (9, "1 bytes are left")])
def test_bytes_that_do_not_fit_are_refused(tmp_path: Path, count: int, fault: str) -> None:
    with pytest.raises(WeightsError, match=fault):
        read_weights(written(tmp_path, [PLAIN], bytes(count)), "net")
