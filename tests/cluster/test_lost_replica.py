"""The ingress and a replica whose node loses its power, on hosts of a network of their own."""

import json
import subprocess
import sys

import pytest

from tests.cluster.network import isolated, why_not

REASON = why_not()


@pytest.mark.skipif(REASON != "", reason=f"no network namespaces: {REASON}")
def test_requests_to_a_replica_whose_node_is_gone_are_answered() -> None:
    """Nothing says that it is gone, and the time for a response is an hour."""
    command = isolated([sys.executable, "-m", "tests.cluster.try_lost_replica"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"] == 200
    assert found["statuses"] == [503, 503]
    assert found["errors"][0] == "outcome_unknown", "which may have been carried out"
    assert found["errors"][1] in ("outcome_unknown", "unavailable")
    assert found["after"] == 200
