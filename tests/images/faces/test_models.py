"""`broker.images.faces.models`."""

import shutil
from pathlib import Path

import pytest

from broker.images.errors import FacesUnavailable
from broker.images.faces.models import BUILT, BuiltModels, InsightFaceModels, find_models, name_models


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of what was built, without the larger detector."""
    for name in ("models.json", "tiny.onnx", "landmarks.onnx"):
        shutil.copy(BUILT / name, tmp_path)
    return tmp_path


def test_the_setting_chooses_the_detector() -> None:
    ssd, tiny = find_models(None, "ssd"), find_models(None, "tiny")
    assert isinstance(ssd, BuiltModels)
    assert isinstance(tiny, BuiltModels)
    assert (ssd.detector.name, tiny.detector.name) == ("ssd.onnx", "tiny.onnx")
    assert ssd.origin == "npm @vladmandic/face-api 1.7.15, MIT"


def test_a_directory_with_our_index_is_ours(copied: Path) -> None:
    models = find_models(copied, "tiny")
    assert isinstance(models, BuiltModels)
    assert models.detector.parent == copied


def test_a_changed_file_is_refused(copied: Path) -> None:
    with (copied / "landmarks.onnx").open("r+b") as file:
        file.seek(1_000)
        file.write(b"\xff\xff")
    with pytest.raises(FacesUnavailable, match="differs from the build"):
        find_models(copied, "tiny")


def test_a_missing_file_is_refused(copied: Path) -> None:
    with pytest.raises(FacesUnavailable, match=r"ssd\.onnx cannot be read"):
        find_models(copied, "ssd")


def test_a_broken_index_is_refused(copied: Path) -> None:
    (copied / "models.json").write_text("{")
    with pytest.raises(FacesUnavailable, match=r"models\.json cannot be read"):
        find_models(copied, "ssd")


def test_any_other_directory_with_models_is_the_operators(tmp_path: Path) -> None:
    (tmp_path / "det_10g.onnx").touch()
    assert find_models(tmp_path, "ssd") == InsightFaceModels(tmp_path)


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FacesUnavailable, match="has no models"):
        find_models(tmp_path, "ssd")


def test_models_are_named_without_being_read(copied: Path) -> None:
    assert name_models(None, "tiny") == "built, tiny"
    assert name_models(copied, "ssd") == f"{copied}, ssd"
    (copied / "models.json").unlink()
    assert name_models(copied, "ssd") == str(copied)
    for file in copied.glob("*.onnx"):
        file.unlink()
    with pytest.raises(FacesUnavailable, match="has no models"):
        name_models(copied, "ssd")


def test_a_build_without_models_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.images.faces.models.BUILT", tmp_path)
    with pytest.raises(FacesUnavailable, match="`make build`"):
        find_models(None, "ssd")
    with pytest.raises(FacesUnavailable, match="`make build`"):
        name_models(None, "ssd")
