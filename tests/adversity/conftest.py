"""One instance for nearly all tests of adversity, on code that a test may change."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversity.votes import UNLIMITED
from tests.deployments.instance import Instance

_PACKAGE = Path(__file__).parents[2] / "python" / "broker"


@pytest.fixture(scope="package")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the package that `instance` runs."""
    directory = tmp_path_factory.mktemp("code") / "broker"
    shutil.copytree(_PACKAGE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


@pytest.fixture(scope="package")
def instance(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Instance]:
    environment = {"PYTHONPATH": str(package.parent)} | UNLIMITED
    instance = Instance(tmp_path_factory.mktemp("adversity") / "data", environment=environment)
    with instance.running():
        yield instance
