"""One instance for all tests of adversity: with a clock to set, on code that a test may change."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversity.clock import SteppedClock
from tests.deployments.instance import Instance

_PACKAGE = Path(__file__).parents[2] / "python" / "broker"


@pytest.fixture(scope="package")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the package that `instance` runs."""
    directory = tmp_path_factory.mktemp("code") / "broker"
    shutil.copytree(_PACKAGE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


@pytest.fixture(scope="package")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SteppedClock:
    """The wall clock of `instance`."""
    return SteppedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="package")
def instance(
    tmp_path_factory: pytest.TempPathFactory, package: Path, clock: SteppedClock
) -> Iterator[Instance]:
    environment = {
        "PYTHONPATH": str(package.parent),
        "BROKER_TOKEN_LIFETIME_S": "86400",  # longer than the steps of the clock
        **clock.environment,
    }
    instance = Instance(tmp_path_factory.mktemp("adversity") / "data", environment=environment)
    instance.start()
    yield instance
    instance.end()
