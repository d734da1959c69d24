"""Hosts of a network of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.network import isolated, why_not

REASON = why_not()


@pytest.mark.skipif(REASON != "", reason=f"no network namespaces: {REASON}")
def test_hosts_reach_each_other_until_they_are_cut_off() -> None:
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
