import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.deployments.processes import MARK, end_marked, list_marked

# A child that has written over its environment, as setproctitle does, and lives in the session of its parent.
NESTED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], env={})
time.sleep(60)
"""


# One that goes on starting others, each of which is soon in the list and a moment before is not.
BREEDING = """
import subprocess, time
import broker.deployments.processes as p
code = "n=0; while [ $n -lt 1000 ]; do sleep 60 & n=$((n+1)); done"
subprocess.Popen(["/bin/sh", "-c", code])
time.sleep(0.1)
p.end_own_session()
"""


@pytest.fixture
def mark() -> Iterator[str]:
    mark = secrets.token_hex(16)
    yield mark
    end_marked(mark)


def start(mark: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", NESTED],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def test_processes_are_found_by_their_mark_and_their_session(mark: str) -> None:
    process = start(mark)
    try:
        found = list_marked(mark)
        assert process.pid in found
        assert len(found) == 2
    finally:
        end_marked(mark)
        process.communicate()


def test_a_process_that_becomes_another_program_is_not_overlooked(mark: str, tmp_path: Path) -> None:
    """It has no environment for a moment; this one is in such moments a good part of its time."""
    script = tmp_path / "again"
    script.write_text('exec /bin/sh "$0"\n')
    process = subprocess.Popen(["/bin/sh", script], env=os.environ | {MARK: mark}, start_new_session=True)
    try:
        assert [process.pid in list_marked(mark) for _ in range(100)] == [True] * 100
    finally:
        end_marked(mark)
        process.wait()


def test_all_processes_of_an_instance_are_ended_and_no_others(mark: str) -> None:
    process, other_mark = start(mark), secrets.token_hex(16)
    other = start(other_mark)
    try:
        assert end_marked(mark) == 2
        process.communicate(timeout=5)
        assert list_marked(mark) == []
        assert other.poll() is None
    finally:
        end_marked(other_mark)
        other.communicate()


def test_session_without_its_marked_leader_is_ended_by_its_number(mark: str) -> None:
    process = start(mark)
    process.kill()
    process.wait()
    assert list_marked(mark) == []
    assert end_marked(mark, process.pid) == 1
    process.communicate(timeout=5)


def test_leader_ends_its_own_session_and_no_other(mark: str) -> None:
    other = start(mark)
    code = (
        f"{NESTED.rpartition('time.sleep')[0]}import broker.deployments.processes as p; p.end_own_session()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=20, check=True, start_new_session=True
    )
    assert done.stdout in (b"", b"1\n")  # the pipe has ended, so the child that held it is gone
    assert other.poll() is None
    end_marked(mark)
    other.communicate()


def test_what_a_process_starts_while_its_session_is_ended_ends_too(mark: str) -> None:
    for _ in range(5):
        subprocess.run(
            [sys.executable, "-c", BREEDING],
            env=os.environ | {MARK: mark},
            timeout=20,
            check=True,
            start_new_session=True,
        )
        assert list_marked(mark) == []


def test_nothing_marked_is_nothing_to_end(mark: str) -> None:
    assert end_marked(mark) == 0
