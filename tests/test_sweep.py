"""An interrupted, terminated or killed test run leaves no PostgreSQL behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.storage.embedded import process

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[1]
SLEEPER = """
import time

def test_sleeper(postgres_server):
    print(postgres_server, flush=True)
    time.sleep(60)
"""
INTERRUPTED = 2  # pytest's exit status


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, INTERRUPTED),
        (signal.SIGTERM, INTERRUPTED),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_ended_run_leaves_no_server(tmp_path: Path, number: signal.Signals, status: int) -> None:
    (tmp_path / "test_sleeper.py").write_text(SLEEPER)
    options = ["-s", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'run'}"]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_sleeper.py")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline()
        (pid_file,) = (tmp_path / "run").rglob("postmaster.pid")
        pid = process.find_postmaster(pid_file.parent)
        assert pid is not None
        run.send_signal(number)
        run.communicate(timeout=30)
        assert run.returncode == status
        deadline_s = time.monotonic() + 30
        while process.works_in(pid, pid_file.parent):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        run.kill()
        run.communicate()
