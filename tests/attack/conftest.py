"""One instance for all attacks."""

from collections.abc import Iterator

import pytest

from tests.attack.target import ENVIRONMENT, Target
from tests.deployments.instance import Instance


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    instance = Instance(tmp_path_factory.mktemp("attack") / "data", environment=ENVIRONMENT)
    with instance.running():
        target = Target(instance)
        target.prepare()
        yield target
        instance.stop()
