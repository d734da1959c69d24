"""The disk of the database fills up and is emptied again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.settings import child_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_full_disk_is_unavailable_and_nothing_is_half_done(tmp_path: Path) -> None:
    # who is not root may mount in a user namespace of its own
    namespace = ["--mount"] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps", "--mount"]
    program = [sys.executable, "-m", "tests.adversity.disk_full", str(tmp_path)]
    done = subprocess.run(
        ["unshare", *namespace, "--", *program],
        cwd=ROOT,
        env=child_environment({}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
