"""What `deploy/` gives to operators agrees with what the product itself uses."""

from pathlib import Path

from broker.deployments.environment import memory_environment, serve_environment
from broker.deployments.ray_internals import haproxy

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_nodes_of_a_cluster_get_the_environment_that_ray_needs() -> None:
    lines = (DEPLOY / "node.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    ours = (
        haproxy.ingress_environment(Path("/opt/broker/.venv/bin/broker-ingress"), Path("/run/broker"))
        | serve_environment()
        | memory_environment()
    )
    assert {name: given.get(name) for name in ours} == ours


def test_the_unit_waits_longer_than_the_product_needs_to_stop() -> None:
    unit = (DEPLOY / "broker.service").read_text()
    assert "ExecStart=/opt/broker/.venv/bin/broker up" in unit
    assert int(unit.split("TimeoutStopSec=")[1].split()[0]) > 15


def test_the_unit_has_a_file_that_a_reload_reads_again() -> None:
    unit = (DEPLOY / "broker.service").read_text()
    assert "Environment=BROKER_SETTINGS_FILE=" in unit
    assert "EnvironmentFile" not in unit, "what is in the environment wins, so a reload would change nothing"
    assert "ExecReload=/opt/broker/.venv/bin/broker reload" in unit


def test_the_unit_gives_other_users_of_the_machine_nothing() -> None:
    lines = (DEPLOY / "broker.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    wanted = {
        "User": "broker",
        "UMask": "0077",
        "StateDirectoryMode": "0700",
        "PrivateTmp": "yes",
        "NoNewPrivileges": "yes",
        "ProtectProc": "invisible",
        "LimitCORE": "0",
    }
    assert {name: unit.get(name) for name in wanted} == wanted
