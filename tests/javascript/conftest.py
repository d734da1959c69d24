"""One instance for the JavaScript client, with tokens that end soon."""

from collections.abc import Iterator

import pytest

from tests.deployments.instance import Instance

TOKEN_LIFETIME_S = "20"  # renewed four seconds before, so that a busy machine has time for it


@pytest.fixture(scope="package")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    environment = {
        "BROKER_TOKEN_LIFETIME_S": TOKEN_LIFETIME_S,
        "BROKER_LOGIN_RATE_PER_ADDRESS": "0",
        "BROKER_API_REPLICAS_MIN": "1",
        "BROKER_API_REPLICAS_MAX": "1",
    }
    instance = Instance(tmp_path_factory.mktemp("javascript") / "data", environment=environment)
    try:
        instance.start()
        yield instance
        instance.stop()
    finally:
        instance.end()
