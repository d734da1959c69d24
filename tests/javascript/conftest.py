"""One instance for the JavaScript client, with tokens that end soon, beside a Matomo and an image server."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from broker.demo.analytics import settings_for
from broker.demo.matomo import StandIn, open_stand_in
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance

TOKEN_LIFETIME_S = "20"  # renewed four seconds before, so that a busy machine has time for it


@pytest.fixture(scope="package")
def matomo() -> Iterator[StandIn]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_stand_in()) as stand_in:
        yield stand_in


@pytest.fixture(scope="package")
def image_server() -> Iterator[ImageServer]:
    with ImageServer() as server:
        yield server


@pytest.fixture(scope="package")
def instance(
    tmp_path_factory: pytest.TempPathFactory, matomo: StandIn, image_server: ImageServer
) -> Iterator[Instance]:
    environment = {
        "BROKER_IMAGES_ALLOW_HOSTS": image_server.host,
        "BROKER_TOKEN_LIFETIME_S": TOKEN_LIFETIME_S,
        "BROKER_LOGIN_RATE_PER_ADDRESS": "0",
        "BROKER_DRAIN_S": "1",  # clients that are still there at a stop are the tests' own
        "BROKER_TRUSTED_PROXIES": "127.0.0.0/8,::1/128",  # votes of several networks
        "BROKER_API_REPLICAS_MIN": "1",
        "BROKER_API_REPLICAS_MAX": "1",
        **settings_for(matomo),
    }
    instance = Instance(tmp_path_factory.mktemp("javascript") / "data", environment=environment)
    with instance.running():
        yield instance
        instance.stop()
