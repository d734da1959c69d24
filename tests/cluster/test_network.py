"""Hosts of a network of their own; where a machine allows none, that it says why."""

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.network import isolated, why_not


def test_hosts_reach_each_other_until_they_are_cut_off() -> None:
    if reason := why_not():
        assert reason.strip()
        return
    before = sorted(path.name for path in Path("/sys/class/net").iterdir())
    command = isolated([sys.executable, "-m", "tests.cluster.try_network"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad_s"] >= 0.2, "both ways are late by a tenth of a second"
    assert found["good_s"] < found["bad_s"]
    assert found["again_s"] < found["bad_s"]
    assert found["carried"] >= 2
    assert found["is_cut"]
    assert found["is_healed"]
    assert found["inhabitants"] == 1
    assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == before, "nothing is left"
