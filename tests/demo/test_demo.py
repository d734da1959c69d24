"""The whole product, played by one command: the demonstration ends well, and leaves nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.deployments.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SCRIPT = "from broker.cli.main import main; main()"


def _processes(mark: str) -> list[str]:
    """Command lines of running processes that name `mark`."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            lines.append(line)
    return lines


def test_every_viewer_sees_the_whole_show_and_every_answer_counts(tmp_path: Path) -> None:
    ports = ["--http-port", str(free_port()), "--ws-port", str(free_port())]
    arguments = ["demo", "--seconds", "5", "--viewers", "25", "--voters", "100", *ports]
    arguments += ["--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"BROKER_DATABASE_URL": "postgresql://nowhere"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 viewers" in done.stdout
    assert "analytics: site 1 is ok, and its report counts 3 visits" in done.stdout
    assert "every viewer saw every event, once and in order" in done.stdout
    answers = re.search(r"100 voters, (\d+) answers sent, (\d+) acknowledged", done.stdout)
    assert answers is not None, done.stdout
    assert int(answers[1]) == int(answers[2]) > 0
    assert "the report counts every acknowledged answer, each visitor once" in done.stdout
    told = re.search(
        r"portraits: (\d+) photographs, cropped around a face; see http://demo\.localhost:", done.stdout
    )
    assert told is not None, done.stdout
    assert int(told[1]) >= 1
    assert _processes(str(tmp_path)) == []
