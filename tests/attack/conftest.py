"""One instance for all attacks."""

from collections.abc import Iterator

import pytest

from tests.attack.target import Target, environment_of
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("attack")
    with (
        ImageServer() as image_server,
        Instance(directory / "data", environment=environment_of(image_server)).running() as instance,
    ):
        target = Target(instance, image_server)
        target.prepare()
        yield target
        instance.stop()
