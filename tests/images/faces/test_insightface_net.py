"""`broker.images.faces.insightface_net`: an operator's directory, loaded by insightface's model zoo.

The models are the converted ones in insightface's format, since those that insightface offers may not be
used here.
"""

import asyncio
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from broker.images.errors import FacesUnavailable
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.finder import FacesConfig, LocalFaceFinder
from broker.images.faces.inference import Runtime
from broker.images.faces.insightface_net import InsightFaceNet
from broker.images.faces.resampling import Pixels
from broker.images.geometry import Size
from tests.images.faces.conftest import PACKAGE
from tests.images.faces.insightface_format import write_insightface_models


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("insightface")
    write_insightface_models(PACKAGE, made)
    return made


@pytest.fixture(scope="module")
def net(directory: Path, cpu: Runtime) -> InsightFaceNet:
    return InsightFaceNet(directory, cpu, min_score=0.5)


def test_it_finds_the_same_faces(net: InsightFaceNet, ssd: BuiltNet, friends: Pixels) -> None:
    (ours,), (theirs,) = ssd.find([friends]), net.find([friends])
    assert len(theirs) == len(ours) == 6
    for face in theirs:
        near = min(ours, key=lambda other: abs(other.left - face.left) + abs(other.top - face.top))
        assert np.hypot(face.left - near.left, face.top - near.top) < 6
        assert abs(face.score - near.score) < 0.1


def test_landmarks_are_those_of_the_face(net: InsightFaceNet, astronaut: Pixels) -> None:
    ((face,),) = net.find([astronaut])
    assert len(face.landmarks) == 68
    assert np.hypot(face.nose.x - 223, face.nose.y - 127) < 6
    assert np.hypot(face.landmarks[30].x - 223, face.landmarks[30].y - 127) < 6


def test_a_directory_is_a_setting(directory: Path, astronaut: Pixels) -> None:
    async def main() -> None:
        finder = LocalFaceFinder(FacesConfig(models=directory, threads=1, timeout_s=60))
        assert await finder.start() == "CPUExecutionProvider"
        (face,) = await finder.find(Size(512, 512), astronaut.tobytes())
        await finder.close()
        assert len(face.landmarks) == 68

    asyncio.run(main())


def test_without_landmarks_faces_have_none(
    directory: Path, tmp_path: Path, cpu: Runtime, astronaut: Pixels
) -> None:
    shutil.copy(directory / "det_ssd.onnx", tmp_path)
    ((face,),) = InsightFaceNet(tmp_path, cpu, min_score=0.5).find([astronaut])
    assert face.landmarks == ()
    assert face.nose == face.center


def test_a_directory_without_a_detector_is_refused(directory: Path, tmp_path: Path, cpu: Runtime) -> None:
    shutil.copy(directory / "1k3d68.onnx", tmp_path)
    with pytest.raises(FacesUnavailable, match="has no detector"):
        InsightFaceNet(tmp_path, cpu, min_score=0.5)


def test_what_insightface_cannot_load_is_refused(tmp_path: Path, cpu: Runtime) -> None:
    (tmp_path / "det.onnx").write_bytes(b"nothing")
    with pytest.raises(FacesUnavailable, match="cannot be loaded by insightface"):
        InsightFaceNet(tmp_path, cpu, min_score=0.5)


def test_without_insightface_the_error_says_what_to_install(
    directory: Path, cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "insightface.model_zoo.model_zoo", None)
    with pytest.raises(FacesUnavailable, match=r"pip install 'onair-broker\[insightface\]'"):
        InsightFaceNet(directory, cpu, min_score=0.5)
