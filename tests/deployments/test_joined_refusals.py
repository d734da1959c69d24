"""What a start on a cluster of two nodes is refused for. The last of them: the product is stopped before."""

import socket
import time
from contextlib import suppress

import pytest

from tests.adversity.two_nodes import SECOND
from tests.deployments.joined import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_start_is_refused_where_the_ingress_of_another_node_is_not_ours(cluster: Cluster) -> None:
    """The other node's port is taken by somebody else."""
    cluster.instance.stop()
    with _take((SECOND, cluster.instance.http_port)):
        refused = cluster.instance.fail()
    assert "the ingress of this node is not the product's" in refused
    assert f" at {SECOND}:" in refused


def _take(address: tuple[str, int]) -> socket.socket:
    """Listen there, once the ingress that was there has ended, which nobody waits for on other nodes."""
    for _ in range(300):
        with suppress(OSError):
            return socket.create_server(address)
        time.sleep(0.1)
    return socket.create_server(address)
