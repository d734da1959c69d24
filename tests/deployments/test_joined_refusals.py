"""What a start on a cluster of two nodes is refused for. The last of them: the product is stopped before."""

import socket
import time
from contextlib import suppress

import pytest

from tests.adversity.two_nodes import SECOND
from tests.deployments.joined import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_start_is_refused_where_another_program_has_the_port_of_a_node(cluster: Cluster) -> None:
    cluster.instance.stop()
    with _take((SECOND, cluster.instance.http_port)):
        refused = cluster.instance.fail()
    assert f"port {cluster.instance.http_port} of the node {SECOND} is in use" in refused


def _take(address: tuple[str, int]) -> socket.socket:
    """Listen there, once the ingress that was there has ended, which nobody waits for on other nodes."""
    for _ in range(300):
        with suppress(OSError):
            return socket.create_server(address)
        time.sleep(0.1)
    return socket.create_server(address)
