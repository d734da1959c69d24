"""Load by Locust, started as a newcomer starts it."""

import os
import subprocess
import sys
from pathlib import Path

from broker.deployments.ports import free_port

FILE = Path(__file__).parents[2] / "bench" / "locustfile.py"


def test_where_no_broker_answers_the_run_ends_and_says_so() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", FILE, "--headless", "--users", "6", "--run-time", "60s"],
        env=os.environ | {"BROKER_URL": url, "BROKER_PASSWORD": "secret"},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,  # before the time of the run is over
    )
    assert done.returncode == 1, done.stderr
    assert f"no response from {url}/api/v1: " in done.stderr
    assert "is `broker up` running?" in done.stderr
    assert "secret" not in done.stdout + done.stderr
