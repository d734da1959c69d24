"""`broker.deployments.node_address`: a process on a node learns the address from its raylet."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker.deployments.node_address import node_address, on_this_node
from broker.settings import SettingError, Settings

SETTINGS = Settings(ray_address="head:6379", bind_host="node", ops_host="node")


@pytest.fixture
def _on_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A raylet runs, as far as its command line goes."""
    options = ["--object_manager_port=0", "--node_ip_address=192.0.2.7", "--resources=x"]
    raylet = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert raylet.stdout is not None
    raylet.stdout.readline()
    monkeypatch.setenv("RAY_RAYLET_PID", str(raylet.pid))
    yield
    raylet.communicate(b"\n")


@pytest.mark.usefixtures("_on_node")
def test_node_stands_for_the_address_that_the_node_joined_with() -> None:
    settings = on_this_node(SETTINGS)
    assert (settings.bind_host, settings.ops_host) == ("192.0.2.7", "192.0.2.7")


@pytest.mark.usefixtures("_on_node")
def test_the_url_of_a_gateway_may_name_its_node() -> None:
    url = "wss://{account}{node}.live.example/api/v1/ws"
    settings = on_this_node(Settings(ray_address="head:6379", public_ws_url=url))
    assert settings.public_ws_url == "wss://{account}192-0-2-7.live.example/api/v1/ws"


@pytest.mark.usefixtures("_on_node")
def test_other_addresses_stay_as_they_are() -> None:
    settings = on_this_node(Settings(ray_address="head:6379", bind_host="0.0.0.0", ops_host="node"))
    assert (settings.bind_host, settings.ops_host) == ("0.0.0.0", "192.0.2.7")
    assert on_this_node(Settings()) == Settings()


@pytest.mark.parametrize("process", ["", "none", "999999999", "self"])
def test_a_process_on_no_node_is_told_so(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_RAYLET_PID", process)
    with pytest.raises(SettingError, match="BROKER_BIND_HOST: node is only allowed"):
        node_address()
