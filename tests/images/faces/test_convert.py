"""`broker.images.faces.convert`, against the original networks.

reference.json is what face-api itself computes in Node for parts of scikit-image's astronaut; reference.cjs
made it. Differences come of the order of additions, and of what ONNX Runtime fuses.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.images.faces.convert import convert
from broker.images.faces.inference import Network, Runtime
from broker.images.faces.models import BuiltModels
from broker.images.faces.resampling import Pixels
from tests.images.faces.conftest import BUILT, PACKAGE

Built = Callable[[str], BuiltModels]


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Any]:
    expected: Mapping[str, Any] = json.loads(Path(__file__).with_name("reference.json").read_bytes())
    return expected


def test_ssd_computes_what_the_original_does(
    built: Built, cpu: Runtime, astronaut: Pixels, reference: Mapping[str, Any]
) -> None:
    found = Network(built("ssd").detector, cpu).run(astronaut[None])
    rows = np.array(reference["ssd"])
    anchors = rows[:, 0].astype(int)
    assert len(anchors) == 61
    np.testing.assert_allclose(found["scores"][0, anchors], rows[:, 1], atol=1e-4)
    left_top_right_bottom = rows[:, [3, 2, 5, 4]]
    np.testing.assert_allclose(found["boxes"][0, anchors], left_top_right_bottom, atol=2e-4)


def test_tiny_computes_what_the_original_does(
    built: Built, cpu: Runtime, astronaut: Pixels, reference: Mapping[str, Any]
) -> None:
    found = Network(built("tiny").detector, cpu).run(astronaut[None, :416, 48:464])
    rows = np.array(reference["tiny"])
    anchors = rows[:, 0].astype(int)
    np.testing.assert_allclose(found["scores"][0, anchors], rows[:, 1], atol=1e-5)
    np.testing.assert_allclose(found["boxes"][0, anchors], rows[:, 2:], atol=1e-5)
    assert np.count_nonzero(found["scores"] > 0.001) == len(anchors)


def test_landmarks_compute_what_the_original_does(
    built: Built, cpu: Runtime, astronaut: Pixels, reference: Mapping[str, Any]
) -> None:
    found = Network(built("ssd").landmarks, cpu).run(astronaut[None, 55:167, 168:280])
    np.testing.assert_allclose(found["points"].ravel(), np.ravel(reference["landmarks"]), atol=1e-5)


def test_the_same_package_gives_the_same_bytes(tmp_path: Path) -> None:
    convert(PACKAGE, tmp_path)
    for file in sorted(path.name for path in BUILT.iterdir()):
        assert digest(tmp_path / file) == digest(BUILT / file), file


def test_what_is_half_converted_has_no_index(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("{}")
    package = tmp_path / "package"
    (package / "model").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "n", "version": "1", "license": "MIT"}')
    with pytest.raises(FileNotFoundError):
        convert(package, tmp_path)
    assert not (tmp_path / "models.json").exists()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
