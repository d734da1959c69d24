"""One instance for all attacks."""

from collections.abc import Iterator

import pytest

from tests.attack.target import Target, environment_of
from tests.deployments.instance import Instance
from tests.deployments.picture_server import PictureServer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("attack")
    with (
        PictureServer() as pictures,
        Instance(directory / "data", environment=environment_of(pictures)).running() as instance,
    ):
        target = Target(instance, pictures)
        target.prepare()
        yield target
        instance.stop()
