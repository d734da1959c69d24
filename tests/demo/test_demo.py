"""The whole product, played by one command: the demonstration ends well, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.deployments.ports import free_port
from tests.javascript.watch import Watch

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


def test_it_can_be_watched_until_ctrl_c_and_every_vote_counts(tmp_path: Path) -> None:
    ports = ["--http-port", str(free_port()), "--ws-port", str(free_port())]
    arguments = ["demo", "--viewers", "25", "--voters", "100", *ports, "--data-dir", str(tmp_path / "data")]
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"BROKER_DATABASE_URL": "postgresql://nowhere"},
        ) as demo,
    ):
        try:
            said = _watch(demo)
            demo.send_signal(signal.SIGINT)
            said += demo.communicate(timeout=100)[0]
        finally:
            demo.terminate()
    assert demo.returncode == 0, said + errors.read_text()
    assert "25 viewers" in said
    assert "analytics: site 1 is ok, and its report counts 3 visits" in said
    assert "every viewer saw every event, once and in order" in said
    answers = re.search(r"100 voters, (\d+) answers sent, (\d+) acknowledged .*, (\d+) too late", said)
    assert answers is not None, said
    sent, acknowledged, late = map(int, answers.groups())
    # On a slow machine a voter may come after the poll has closed.
    assert sent == acknowledged + late
    assert acknowledged > 0
    assert "the report counts every acknowledged answer, each visitor once" in said
    told = re.search(
        r"portraits: (\d+) photographs, cropped around a face; see http://demo\.localhost:", said
    )
    assert told is not None, said
    assert int(told[1]) >= 1
    assert _processes(str(tmp_path)) == []


def _watch(demo: "subprocess.Popen[str]") -> str:
    """Look at the pages that it names, until votes have come; what it has said so far."""
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if line.startswith("WebSocket "):
            break
    pages = dict(line.split(maxsplit=1) for line in said.splitlines() if " http" in line)
    with Watch() as watch:
        watch.open(pages["dashboard"].strip())
        watch.until("button", "Log in")
        watch.open(pages["overlay"].strip())
        watch.until(".score .goals")  # it is on air
        watch.until(".score .time")
    votes = re.compile(r"votes [1-9]")
    for line in demo.stdout:
        said += line
        if votes.search(line):
            return said
    return said
