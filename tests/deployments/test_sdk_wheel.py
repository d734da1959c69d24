"""The SDK's wheel, alone in an environment, against the product."""

import subprocess
from pathlib import Path

import pytest

from tests.client import wheel
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

PROGRAM = """
import sys
from broker.client import Client

url, password = sys.argv[1:]
with Client(url, username="admin", password=password) as client:
    client.programs.create("from-a-wheel", "The final")
    client.publish("from-a-wheel", "Score#update", {"home": 1})
    for event in client.subscribe("from-a-wheel", history=1):
        print(event.seq, event.event, event.metadata)
        break
assert "broker._native" not in sys.modules
"""


def test_the_wheel_publishes_and_subscribes(instance: Instance, tmp_path: Path) -> None:
    python = wheel.install(wheel.build(tmp_path), tmp_path / "environment")
    run = subprocess.run(
        [python, "-I", "-c", PROGRAM, instance.url, PASSWORD], capture_output=True, text=True, timeout=120
    )
    assert run.stderr == "", f"the program failed:\n{run.stderr}"
    assert run.stdout == "1 Score#update {'home': 1}\n"
