"""One instance for the tests that need none of their own, with the settings of them all.

Each makes programs, projects and users with names that no other has. Strangers of a test who reach a limit of
their address come from loopback addresses that no other test uses.
"""

from collections.abc import Iterator

import pytest

from broker.deployments.ports import free_port
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance
from tests.deployments.joined import Cluster, joined_cluster

BIND_HOST = "127.0.0.77"
"""Stands for the address that clients reach; what is for this machine alone is on another."""


@pytest.fixture(scope="package")
def image_server() -> Iterator[ImageServer]:
    with ImageServer() as server:
        yield server


@pytest.fixture(scope="package")
def instance(tmp_path_factory: pytest.TempPathFactory, image_server: ImageServer) -> Iterator[Instance]:
    ws_port = free_port()
    environment = {
        "BROKER_API_REPLICAS_MIN": "2",
        "BROKER_API_REPLICAS_MAX": "2",
        "BROKER_BIND_HOST": BIND_HOST,
        "BROKER_DRAIN_S": "4",
        "BROKER_IMAGES_ALLOW_HOSTS": image_server.host,
        "BROKER_IMAGES_FETCH_TIMEOUT_S": "3",
        "BROKER_IMAGES_TIMEOUT_S": "120",
        "BROKER_IMAGES_WARM_FIELDS": "photo,players.photo",
        "BROKER_IMAGES_WARM_OPTIONS": "w=100,f=webp w=50",
        "BROKER_PUBLIC_WS_URL": f"ws://{BIND_HOST}:{ws_port}/api/v1/ws",
        "BROKER_STORAGE_PROJECT_VALUES": "200",
        # Nobody is there but while a test is.
        "BROKER_MATOMO_URL": f"http://127.0.0.1:{free_port()}",
        "BROKER_MATOMO_TOKEN": "a-token-of-matomo",
        "BROKER_MATOMO_READER": "reader",
        "BROKER_MATOMO_READER_TOKEN": "a-reader-token-of-matomo",
    }
    instance = Instance(
        tmp_path_factory.mktemp("shared") / "data", ws_port=ws_port, host=BIND_HOST, environment=environment
    )
    with instance.running():
        yield instance
        instance.stop()


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Two nodes for the tests of several, which leave it as they have found it."""
    with joined_cluster() as cluster:
        yield cluster
