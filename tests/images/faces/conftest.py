"""The models that the build made, and photographs out of packages."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import pyvips
from skimage import data

from broker.images.errors import FacesUnavailable
from broker.images.faces.built_net import BuiltNet
from broker.images.faces.inference import Runtime, choose_runtime
from broker.images.faces.models import BUILT, BuiltModels, find_models
from broker.images.faces.resampling import Pixels

PACKAGE = Path(__file__).parents[3] / ".build/faces/node_modules/@vladmandic/face-api"


@pytest.fixture(scope="session")
def cpu() -> Runtime:
    return choose_runtime(["CPUExecutionProvider"], may_use_gpu=False, threads=1)


@pytest.fixture(scope="session")
def built() -> Callable[[str], BuiltModels]:
    def find(detector: str) -> BuiltModels:
        try:
            models = find_models(None, detector)
        except FacesUnavailable as error:
            pytest.fail(f"these tests need the models that `make build` makes: {error.message}")
        assert isinstance(models, BuiltModels)
        return models

    return find


@pytest.fixture(scope="session")
def ssd(built: Callable[[str], BuiltModels], cpu: Runtime) -> BuiltNet:
    return BuiltNet(built("ssd"), cpu, min_score=0.5)


@pytest.fixture(scope="session")
def tiny(built: Callable[[str], BuiltModels], cpu: Runtime) -> BuiltNet:
    return BuiltNet(built("tiny"), cpu, min_score=0.5)


@pytest.fixture(scope="session")
def astronaut() -> Pixels:
    """512 × 512; one face, whose nose is at about (223, 127)."""
    image: Pixels = data.astronaut()
    return image


@pytest.fixture(scope="session")
def friends() -> Pixels:
    """640 × 443; six faces."""
    return photograph("t1.jpg")


@pytest.fixture(scope="session")
def portrait() -> Pixels:
    """112 × 112, and all of it a face."""
    return photograph("Tom_Hanks_54745.png")


def photograph(name: str) -> Pixels:
    path = str(files("insightface") / "data" / "images" / name)
    image: Pixels = np.asarray(pyvips.Image.thumbnail(path, 640, height=640, size="down")[:3].copy_memory())
    return image


__all__ = ["BUILT", "PACKAGE"]
